"""How the weights reach the engine: stochastic or nearest rounding to bf16, fp16, or an fp32 engine.

A closed loop of the real parts in one process: vLLM samples the demo's prompts, their verifier scores, the learner
trains, and the engine takes what is published. Every mode starts from the same model and draws the same prompts by
seed; engine and learner are compared in every step. Rewards of short runs are noisy: the table shows their spread over
the seeds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from jobs.bench.learner import free_rendezvous
from jobs.bench.measure import in_child
from jobs.prompts import read_prompts
from vipray.config import Config, load_config
from vipray.data.prompts import PromptSet
from vipray.data.sampler import PromptSampler
from vipray.inference.protocol import Engine
from vipray.records import ROLLOUT_SCHEMA, Allocation, RolloutId, Span
from vipray.verifiers.reasoning_gym import ReasoningGymVerifier

if TYPE_CHECKING:
    from vipray.learner.trainer import TrainerOptions

CONFIG = Path("conf/demo.yaml")
MODES = {  # dtype of the engine, rounding, and what the learner computes in
    "bf16, stochastic; bf16 learner": ("bfloat16", "stochastic", "bf16"),
    "bf16, stochastic; fp32 learner": ("bfloat16", "stochastic", "fp32"),
    "bf16, nearest; bf16 learner": ("bfloat16", "nearest", "bf16"),
    "bf16, nearest; fp32 learner": ("bfloat16", "nearest", "fp32"),
    "fp16, nearest; fp32 learner": ("float16", "nearest", "fp32"),
    "fp32; fp32 learner": ("float32", "nearest", "fp32"),
}
LEARNING_RATES = (1e-5, 1e-6)
SEEDS = (0, 1, 2)
STEPS = 12
_PROMPTS, _ROLLOUTS = 4, 8  # of a step, half of the demo's
_LAST = 3  # steps whose reward counts as the end of a run
_CORES = 2


@dataclass(frozen=True)
class Run:
    """One run's figures, by step."""

    mode: str
    learning_rate: float
    seed: int
    difference: tuple[float, ...]  # nats, mean over tokens of |engine - learner|
    reward: tuple[float, ...]
    step_s: tuple[float, ...]


@dataclass(frozen=True)
class PrecisionBenchmark:
    """All runs; an engine dtype that did not run has a reason instead."""

    runs: tuple[Run, ...]
    failures: dict[str, str]
    targets: tuple[Any, ...] = ()

    def table(self) -> Table:
        """Means over the seeds, for the terminal."""
        title = f"Published weights: engine against learner, reward and time, {_PROMPTS} x {_ROLLOUTS} rollouts a step"
        table = Table(title=title, title_justify="left")
        for heading in ("learning rate", "mode", "seeds", "difference, first step", "last step", "reward", "s a step"):
            table.add_column(heading, justify="left" if heading == "mode" else "right")
        for rate, mode in dict.fromkeys((run.learning_rate, run.mode) for run in self.runs):
            runs = [run for run in self.runs if (run.learning_rate, run.mode) == (rate, mode)]
            table.add_row(f"{rate:g}", mode, str(len(runs)), *_cells(runs))
        for dtype, reason in self.failures.items():
            table.add_row("-", dtype, "0", reason, "", "", "")
        return table

    def as_json(self) -> dict[str, Any]:
        """Every run, step by step."""
        return {"runs": [asdict(run) for run in self.runs], "failures": self.failures}


def benchmark(
    modes: Sequence[str] = tuple(MODES),
    learning_rates: Sequence[float] = LEARNING_RATES,
    seeds: Sequence[int] = SEEDS,
    steps: int = STEPS,
    overrides: Sequence[str] = (),
) -> PrecisionBenchmark:
    """Run every mode with every learning rate from every seed, one engine for all runs of its dtype."""
    runs: list[Run] = []
    failures: dict[str, str] = {}
    for dtype in dict.fromkeys(MODES[mode][0] for mode in modes):
        mine = [mode for mode in modes if MODES[mode][0] == dtype]
        plan = [[mode, rate, seed] for rate in learning_rates for mode in mine for seed in seeds]
        try:
            found = in_child(measure, cores=_CORES, dtype=dtype, plan=plan, steps=steps, overrides=list(overrides))
        except RuntimeError as error:  # such as a CPU without fp16
            failures[dtype] = str(error).rpartition(" failed with ")[2]
            continue
        runs += [Run(**run) for run in found]
    return PrecisionBenchmark(tuple(runs), failures)


def measure(dtype: str, plan: Sequence[Sequence[Any]], steps: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Figures of runs (mode, learning rate, seed) on one engine of a dtype."""
    return asyncio.run(_measure(dtype, plan, steps, overrides))


async def _measure(
    dtype: str, plan: Sequence[Sequence[Any]], steps: int, overrides: Sequence[str]
) -> list[dict[str, Any]]:
    from actors.builders import EngineBuilder
    from actors.spawn import engine_environment  # loads Ray, which `vipray --help` must not

    rounding = ["weights.rounding=nearest"] if dtype == "float16" else []
    config = load_config(CONFIG, [f"generators.dtype={dtype}", *rounding, *overrides])
    # As in a run: with more threads the engine's would spin while the learner trains.
    os.environ.update(engine_environment(config) | {"OMP_NUM_THREADS": str(config.generators.threads)})
    prompts = read_prompts(config, Console(quiet=True))
    loop = _ClosedLoop(config, prompts, EngineBuilder(config, seed=0)(prompts))
    await loop.engine.start()
    try:
        return [asdict(await loop.run(mode, rate, seed, steps)) for mode, rate, seed in plan]
    finally:
        await loop.engine.shutdown()


class _ClosedLoop:
    """Samples, scores, trains and publishes in one process."""

    def __init__(self, config: Config, prompts: PromptSet, engine: Engine) -> None:
        self.engine = engine
        self._config = config
        self._prompts = prompts
        self._verifier = ReasoningGymVerifier(config.data.tasks)

    async def run(self, mode: str, rate: float, seed: int, steps: int) -> Run:
        """Train from the model's own weights for some steps."""
        from vipray.learner.trainer import Trainer

        _, _, precision = MODES[mode]
        learner = replace(self._config.learner, precision=precision, learning_rate=rate)
        trainer = Trainer(learner, self._options(mode, seed), free_rendezvous())
        sampler = PromptSampler(self._prompts.prompt_ids, _PROMPTS, seed)
        found: list[tuple[float, float, float]] = []
        try:
            for step in range(steps):
                start = time.perf_counter()
                *chunks, manifest = trainer.publish(step)
                await self.engine.load_weights(manifest, chunks)
                allocation = _uniform(step, sampler.next_batch())
                rows = await asyncio.gather(*(self._rollout(name) for name in allocation.rollout_ids()))
                metrics = trainer.train(rows, allocation)
                reward = statistics.mean(row["reward"][0].as_py() for row in rows)
                found.append((metrics["engine/logprob_difference/mean"], reward, time.perf_counter() - start))
        finally:
            trainer.shutdown()
        difference, rewards, seconds = zip(*found, strict=True)
        return Run(mode, rate, seed, difference, rewards, seconds)

    def _options(self, mode: str, seed: int) -> TrainerOptions:
        from vipray.learner.model_folder import ensure_model_folder
        from vipray.learner.trainer import TrainerOptions

        dtype, rounding, _ = MODES[mode]
        return TrainerOptions(
            model_folder=ensure_model_folder(self._config.model.path, self._config.model.cache_dir),
            estimator="rloo",
            temperature=self._config.sampling.temperature,
            publish_dtype=dtype,
            rounding=rounding,
            chunk_nbytes=self._config.weights.chunk_mib << 20,
            seed=seed,
        )

    async def _rollout(self, rollout_id: RolloutId) -> pa.RecordBatch:
        """One rollout, made and scored, as a one-row record batch."""
        prompt_token_ids = self._prompts.token_ids(rollout_id.prompt_id)
        completion = await self.engine.generate(rollout_id, prompt_token_ids)
        score = self._verifier.verify(self._prompts.prompt(rollout_id.prompt_id), completion.text)
        row = {
            **rollout_id._asdict(),
            "generator_id": "engine",
            "policy_version_first": completion.policy_versions[0],
            "policy_version_last": completion.policy_versions[-1],
            "prompt_token_ids": prompt_token_ids,
            "completion_token_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "finish_reason": completion.finish_reason,
            "text": completion.text,
            "latency_s": 0.0,
            "reward": score.reward,
            "outcome": str(score.outcome),
        }
        return pa.RecordBatch.from_pylist([row], schema=ROLLOUT_SCHEMA)


def _uniform(step: int, prompt_ids: Sequence[str]) -> Allocation:
    ones = np.ones(len(prompt_ids))
    n = np.full(len(prompt_ids), _ROLLOUTS)
    return Allocation(step, tuple(prompt_ids), n, ones, ones / 2, ones, Span(0.0, 0.0))


def _cells(runs: Sequence[Run]) -> list[str]:
    ends = [statistics.mean(run.reward[-_LAST:]) for run in runs]
    spread = f" ± {statistics.stdev(ends):.2f}" if len(ends) > 1 else ""
    first = statistics.mean(statistics.mean(run.reward[:_LAST]) for run in runs)
    return [
        f"{statistics.mean(run.difference[0] for run in runs):.3f}",
        f"{statistics.mean(run.difference[-1] for run in runs):.3f}",
        f"{first:.2f} → {statistics.mean(ends):.2f}{spread}",
        f"{statistics.median(s for run in runs for s in run.step_s[1:]):.1f}",
    ]
