"""Embeddings of prompts for the predictor, by a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vipray.arrays import FloatArray
from vipray.sources import resolve_source


@dataclass(frozen=True)
class Embeddings:
    """Unit vectors [Q, D] of Q texts, and how many of the texts the encoder cut."""

    vectors: FloatArray
    num_truncated: int


def embed(texts: Sequence[str], model: str) -> Embeddings:
    """Embed texts with the sentence-transformers model at `model` (a folder or `package:NAME/FOLDER`)."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(resolve_source("predictor.embedding_model", model)), device="cpu")
    vectors = encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True)
    limit = encoder.max_seq_length
    lengths = [len(ids) for ids in encoder.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]]
    num_truncated = sum(length > limit for length in lengths) if limit else 0
    return Embeddings(np.asarray(vectors, dtype=np.float64), num_truncated)
