"""Faults that published data sets have, as small files: copies, one huge row group, long and blank prompts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.support import byte_tokens
from vipray.config import DataConfig, FileConfig, PredictorConfig
from vipray.data.build import Reason, build_prompt_set
from vipray.data.sampler import PromptSampler
from vipray.data.sources import prompt_sources
from vipray.predictors.build import build_predictor

TEXTS = [f"Solve problem number {n}: what is {n} + {n}?" for n in range(5)]


def published_row(n):
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": TEXTS[n]}],
        "ability": "MATH",
        "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": f"{2 * n:03d}"},
        "extra_info": {"index": f"9a9b6eb4-a1cb-49d1-8c1e-62eaf2f7407{n}"},
    }


def load(path, max_tokens=1000):
    data = DataConfig(files={"train": FileConfig(str(path))})
    return build_prompt_set(prompt_sources(data), byte_tokens, max_tokens)


@pytest.mark.parametrize(("num_prompts", "num_copies"), [(5, 100), (3, 32)])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_copies_are_one_prompt(tmp_path, num_prompts, num_copies, is_sorted):
    order = [n for n in range(num_prompts) for _ in range(num_copies)]
    rows = [published_row(n) for n in (order if is_sorted else list(range(num_prompts)) * num_copies)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    kept, report = load(tmp_path / "train.parquet")
    assert kept.texts == TEXTS[:num_prompts]
    assert [kept.prompt(p).answer for p in kept.prompt_ids] == [f"{2 * n:03d}" for n in range(num_prompts)]
    total = num_prompts * num_copies
    (line,) = report.lines()
    assert line == f"{num_prompts} prompts ({total} read, {total - num_prompts} exact duplicates removed)"
    sampler = PromptSampler(kept.prompt_ids, min(4, num_prompts), 0)
    assert all(len(set(batch)) == len(batch) for batch in (sampler.next_batch() for _ in range(50)))
    predictor = build_predictor(PredictorConfig(kind="beta", embedding_model=""), kept)
    success_prob, _ = predictor.predict(tuple(kept.prompt_ids))
    assert success_prob.shape == (num_prompts,)


def test_long_and_blank_prompts_are_dropped_each_under_its_reason_and_nothing_is_cut(tmp_path):
    long = "word " * 300
    rows = [{"prompt": text, "answer": "4"} for text in ("2+2?", long, "", " \n", "3+3?")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    data = DataConfig(files={"x": FileConfig(str(tmp_path / "x.parquet"), verifier="math")})
    kept, report = build_prompt_set(prompt_sources(data), byte_tokens, 64)
    assert kept.prompt_ids == ["x/1", "x/5"] and kept.texts == ["2+2?", "3+3?"]
    assert [kept.token_ids(p) for p in kept.prompt_ids] == [list(b"2+2?"), list(b"3+3?")]
    assert {r: n for r in Reason if (n := report.num_dropped(r))} == {Reason.TOO_LONG: 1, Reason.EMPTY: 2}
    assert report.lines()[1].endswith("x.parquet row 3; " + str(tmp_path / "x.parquet row 4"))


def test_prompts_of_one_huge_row_group_are_all_there_where_arrow_cannot_read_it_whole(tmp_path, monkeypatch):
    texts = [f"{n} " + "long text " * 20 for n in range(4000)]
    rows = [published_row(0) | {"prompt": [{"role": "user", "content": text}]} for text in texts]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=len(rows))

    def refuse(*_args, **_kwargs):
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")

    monkeypatch.setattr(pq.ParquetFile, "read", refuse)
    monkeypatch.setattr(pq, "read_table", refuse)
    kept, _ = load(tmp_path / "x.parquet")
    assert kept.texts == texts
