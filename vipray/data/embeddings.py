"""Embeddings of prompts for the predictor, by a sentence-transformers model; computed once a text and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from vipray.arrays import FloatArray
from vipray.run_log import write_table
from vipray.sources import resolve_source

_DIGEST_CHARS = 32


@dataclass(frozen=True)
class Embeddings:
    """Unit vectors [Q, D] of Q texts, how many of the texts the encoder cuts, and how many were embedded just now."""

    vectors: FloatArray
    num_truncated: int
    num_new: int


def embed(texts: Sequence[str], model: str, *, cache_dir: str | Path) -> Embeddings:
    """Embed texts, each of them once for all runs that share `cache_dir`.

    Args:
        texts: Q texts.
        model: folder of a sentence-transformers model, or `package:NAME/FOLDER`.
        cache_dir: keeps one Parquet file a model, by the text's SHA-256.
    """
    folder = resolve_source("predictor.embedding_model", model)
    cache = Path(cache_dir).expanduser() / "embeddings" / f"{_fingerprint(folder)}.parquet"
    cache.parent.mkdir(parents=True, exist_ok=True)
    keys = [hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS] for text in texts]
    with FileLock(f"{cache}.lock"):
        known = _read(cache)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            known |= _encode(folder, missing)
            write_table(pa.Table.from_pylist([{"key": k, **v} for k, v in known.items()]), cache)
    rows = [known[key] for key in keys]
    vectors = np.array([row["vector"] for row in rows], dtype=np.float64)
    return Embeddings(vectors, sum(row["truncated"] for row in rows), len(missing))


def _encode(folder: Path, texts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Vectors of texts by key, and whether the encoder had to cut them."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(folder), device="cpu")
    values = list(texts.values())
    vectors = encoder.encode(values, normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True)
    lengths = [len(ids) for ids in encoder.tokenizer(values, truncation=False, verbose=False)["input_ids"]]
    limit = encoder.max_seq_length
    return {
        key: {"vector": vector.tolist(), "truncated": bool(limit and length > limit)}
        for key, vector, length in zip(texts, vectors, lengths, strict=True)
    }


def _read(cache: Path) -> dict[str, dict[str, Any]]:
    if not cache.exists():
        return {}
    return {row.pop("key"): row for row in pq.read_table(cache).to_pylist()}


def _fingerprint(folder: Path) -> str:
    """Of the model: its configuration and the size of its weights, wherever it lies."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)} {path.stat().st_size}".encode())
            if path.suffix == ".json":
                digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIGEST_CHARS]
