"""Prediction: a step (predict a batch, then observe it) beside a GP that keeps the whole kernel matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.bench.measure import HOW_LIMITED, in_child, median_time_s, peak_memory_bytes, time_s
from jobs.bench.results import Benchmark, Comparison, Target
from vipray.arrays import FloatArray, IntArray
from vipray.predictors.hybrid import Hybrid
from vipray.predictors.paper_gp import PaperGP

Float32Array = npt.NDArray[np.float32]

KINDS = ("paper_gp", "hybrid")
NUM_PROMPTS, LARGE_NUM_PROMPTS = 17_000, 1_000_000
NUM_DIMENSIONS, BATCH = 384, 512
STEP_LIMITS_S = {NUM_PROMPTS: 0.3, LARGE_NUM_PROMPTS: 10.0}
MEMORY_LIMITS_BYTES = {LARGE_NUM_PROMPTS: 3e9}
_PARTS = (  # what, its key, its unit, what the paper states
    ("predict and observe", "step_s", "s", "0.745 s"),
    ("start, predict and observe", "first_s", "s", "11.397 s (kernel 10.652 s)"),
    ("memory above the embeddings", "memory_bytes", "bytes", "over 1 GB"),
)
_CORES = 2
_CLIP, _JITTER = 0.05, 1e-3
_BLOCK_ROWS = 2048


def benchmark(
    sizes: Sequence[int] = (NUM_PROMPTS,), *, compare_up_to: int = NUM_PROMPTS, num_dimensions: int = NUM_DIMENSIONS
) -> Benchmark:
    """Measure predictors of Q prompts for each size Q; the cached kernel only where Q² numbers fit into memory."""
    rows: list[Comparison] = []
    targets: list[Target] = []
    for q in sizes:
        measured = {
            kind: in_child(measure, cores=_CORES, kind=kind, num_prompts=q, num_dimensions=num_dimensions)
            for kind in (*KINDS, *(["cached"] if q <= compare_up_to else []))
        }
        for kind in KINDS:
            rows += _compare(f"{kind}, Q={q}", measured[kind], measured.get("cached"))
            targets += _targets(f"{kind}, Q={q}", q, measured[kind])
    title = f"Prediction, D={num_dimensions}, B={BATCH}, float32 embeddings, on {_CORES} cores ({HOW_LIMITED})"
    return Benchmark(title, tuple(rows), tuple(targets))


def measure(kind: str, num_prompts: int, num_dimensions: int) -> dict[str, float]:
    """Median seconds of a step, the same with the start, and peak memory above the embeddings: of the whole process."""
    x = random_embeddings(num_prompts, num_dimensions)
    ids = [f"prompt-{q}" for q in range(num_prompts)]
    repeats = 3 if num_prompts > NUM_PROMPTS else 9
    steps = iter([_batch(ids, seed) for seed in range(repeats + 1)])
    predictors: list[Any] = []
    start_s = time_s(lambda: predictors.append(_make(kind, ids, x)))

    def step() -> None:
        prompts, successes, trials = next(steps)
        predictors[0].predict(prompts)
        predictors[0].observe(prompts, successes, trials)

    step_s = median_time_s(step, repeats)
    return {
        "step_s": step_s,
        "start_s": start_s,
        "first_s": start_s + step_s,
        "memory_bytes": float(peak_memory_bytes() - x.nbytes),
    }


def random_embeddings(num_prompts: int, num_dimensions: int) -> Float32Array:
    """Random unit vectors [Q, D], made in place."""
    x = np.empty((num_prompts, num_dimensions), dtype=np.float32)
    rng = np.random.default_rng(0)
    for start in range(0, num_prompts, _BLOCK_ROWS):
        block = x[start : start + _BLOCK_ROWS]
        rng.standard_normal(dtype=np.float32, out=block)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return x


class CachedKernelGP:
    """The paper's update on a kernel matrix [Q, Q] in float32 that is computed once and kept."""

    def __init__(self, prompt_ids: Sequence[str], embeddings: Float32Array, *, bandwidth: float) -> None:
        self._row = {prompt_id: row for row, prompt_id in enumerate(prompt_ids)}
        self._mean = np.zeros(len(prompt_ids))
        self._kernel = np.empty((len(prompt_ids), len(prompt_ids)), dtype=np.float32)
        sq_norm = (embeddings**2).sum(axis=1)
        for start in range(0, len(prompt_ids), _BLOCK_ROWS):
            block = self._kernel[start : start + _BLOCK_ROWS]
            x = embeddings[start : start + _BLOCK_ROWS]
            np.matmul(x * np.float32(2.0), embeddings.T, out=block)
            block -= sq_norm[start : start + _BLOCK_ROWS, None]
            block -= sq_norm[None, :]
            np.minimum(block, np.float32(0.0), out=block)
            block /= np.float32(2.0 * bandwidth**2)
            np.exp(block, out=block)

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return `success_prob` [B] and `gradient_variance` [B]."""
        g = self._mean[[self._row[prompt_id] for prompt_id in prompt_ids]]
        p = 0.5 * (1.0 + np.tanh(0.5 * g))
        return p, 4.0 * p * (1.0 - p)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Update all latents from [B] successes and trials."""
        s = np.array([self._row[prompt_id] for prompt_id in prompt_ids])
        rate = np.clip(successes / trials, _CLIP, 1.0 - _CLIP)
        g_hat = np.log(rate / (1.0 - rate))
        rows = self._kernel[s]  # contiguous, unlike columns
        k_ss = rows[:, s].astype(np.float64) + _JITTER * np.eye(len(s))
        self._mean += rows.T @ np.linalg.solve(k_ss, g_hat - self._mean[s]).astype(np.float32)
        self._mean[s] = g_hat


def _batch(ids: Sequence[str], seed: int) -> tuple[list[str], IntArray, IntArray]:
    """Random distinct prompts [B], successes [B] and trials [B]."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(ids), min(BATCH, len(ids)), replace=False)
    trials = np.full(len(rows), 8)
    return [ids[row] for row in rows], rng.binomial(trials, 0.4), trials


def _make(kind: str, ids: Sequence[str], x: Any) -> Any:
    if kind == "hybrid":
        return Hybrid(ids, x)
    if kind == "cached":
        return CachedKernelGP(ids, x, bandwidth=2.0**0.5)  # the distance of random unit vectors
    return PaperGP(ids, x, clip=_CLIP, jitter=_JITTER)


def _compare(what: str, ours: dict[str, float], cached: dict[str, float] | None) -> list[Comparison]:
    if cached is None:
        return [Comparison(f"{what}: {part}", ours[key], "-", None, unit) for part, key, unit, _ in _PARTS]
    return [
        Comparison(f"{what}: {part}", ours[key], "GP with a cached kernel", cached[key], unit, paper)
        for part, key, unit, paper in _PARTS
    ]


def _targets(what: str, num_prompts: int, measured: dict[str, float]) -> list[Target]:
    found = []
    if num_prompts in STEP_LIMITS_S:
        name = f"{what}: predict and observe, {_CORES} cores"
        found.append(Target(name, STEP_LIMITS_S[num_prompts], measured["step_s"]))
    if num_prompts in MEMORY_LIMITS_BYTES:
        name = f"{what}: memory above the embeddings"
        found.append(Target(name, MEMORY_LIMITS_BYTES[num_prompts], measured["memory_bytes"], "bytes"))
    return found
