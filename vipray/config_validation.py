"""What the types of the configuration allow and a run cannot work with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.objectives import OBJECTIVES
from vipray.allocation.policies import POLICIES
from vipray.predictors import PREDICTOR_KINDS

if TYPE_CHECKING:
    from vipray.config import AllocationConfig, Config

_MIN_TEMPERATURE = 0.01  # vLLM raises lower ones to it without a word; the learner's ratios would be of another policy
_MIN_OBJECT_STORE_MIB = 80


def problems(config: Config) -> Iterator[str]:
    """Yield one sentence for each setting that the types allow and the run cannot work with."""
    yield from _positive(config)
    yield from _not_negative(config)
    yield from _ranges(config)
    yield from _choices(config)
    yield from _allocation_problems(config.allocation)
    if not config.data.tasks:
        yield "data.tasks is empty: name at least one reasoning-gym task"
    for label, task in config.data.tasks.items():
        if task.size < 1:
            yield f"data.tasks.{label}.size must be >= 1, got {task.size}"
    num_prompts = sum(task.size for task in config.data.tasks.values())
    if config.data.tasks and num_prompts < config.allocation.prompts_per_batch:
        yield (
            f"allocation.prompts_per_batch={config.allocation.prompts_per_batch} is more than the {num_prompts} "
            "prompts of data.tasks: no prompt may come twice in a batch"
        )
    if config.weights.rounding == "stochastic" and config.generators.dtype == "float16":
        yield (
            "weights.rounding=stochastic works on bfloat16, not on generators.dtype=float16: "
            "set weights.rounding=nearest or generators.dtype=bfloat16"
        )


def _positive(config: Config) -> Iterator[str]:
    values: dict[str, float | int | None] = {
        "run.steps": config.run.steps,
        "data.max_prompt_tokens": config.data.max_prompt_tokens,
        "sampling.max_tokens": config.sampling.max_tokens,
        "sampling.temperature": config.sampling.temperature,
        "predictor.num_inducing": config.predictor.num_inducing,
        "predictor.paper_gp.jitter": config.predictor.paper_gp.jitter,
        "predictor.paper_gp.bandwidth": config.predictor.paper_gp.bandwidth,
        "predictor.noisy_gp.signal_variance": config.predictor.noisy_gp.signal_variance,
        "predictor.noisy_gp.prompt_variance": config.predictor.noisy_gp.prompt_variance,
        "predictor.noisy_gp.half_life": config.predictor.noisy_gp.half_life,
        "predictor.history.half_life": config.predictor.history.half_life,
        "predictor.history.process_noise": config.predictor.history.process_noise,
        "predictor.history.window": config.predictor.history.window,
        "predictor.history.ridge_penalty": config.predictor.history.ridge_penalty,
        "allocation.prompts_per_batch": config.allocation.prompts_per_batch,
        "allocation.pass_k": config.allocation.pass_k,
        "generators.count": config.generators.count,
        "generators.threads": config.generators.threads,
        "generators.tensor_parallel_size": config.generators.tensor_parallel_size,
        "generators.max_num_seqs": config.generators.max_num_seqs,
        "generators.kv_cache_mib": config.generators.kv_cache_mib,
        "verifiers.count": config.verifiers.count,
        "learner.ranks": config.learner.ranks,
        "learner.threads": config.learner.threads,
        "learner.learning_rate": config.learner.learning_rate,
        "learner.max_grad_norm": config.learner.max_grad_norm,
        "learner.clip_high": config.learner.clip_high,
        "learner.max_row_tokens": config.learner.max_row_tokens,
        "weights.chunk_mib": config.weights.chunk_mib,
        "weights.timeout_s": config.weights.timeout_s,
        "generators.start_timeout_s": config.generators.start_timeout_s,
        "generators.rollout_timeout_s": config.generators.rollout_timeout_s,
        "verifiers.timeout_s": config.verifiers.timeout_s,
        "learner.collective_timeout_s": config.learner.collective_timeout_s,
        "learner.step_timeout_s": config.learner.step_timeout_s,
        "ray.num_cpus": config.ray.num_cpus,
        "ray.actor_start_timeout_s": config.ray.actor_start_timeout_s,
    }
    for key, value in values.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            yield f"{key} must be > 0, got {value}"


def _not_negative(config: Config) -> Iterator[str]:
    values: dict[str, float | int] = {
        "run.seed": config.run.seed,
        "evaluation.rollouts_per_prompt": config.evaluation.rollouts_per_prompt,
        "predictor.num_cpus": config.predictor.num_cpus,
        "predictor.num_gpus": config.predictor.num_gpus,
        "allocation.num_cpus": config.allocation.num_cpus,
        "generators.num_cpus": config.generators.num_cpus,
        "generators.num_gpus": config.generators.num_gpus,
        "verifiers.num_cpus": config.verifiers.num_cpus,
        "learner.num_cpus": config.learner.num_cpus,
        "learner.num_gpus": config.learner.num_gpus,
        "learner.warmup_steps": config.learner.warmup_steps,
        "learner.weight_decay": config.learner.weight_decay,
    }
    for key, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            yield f"{key} must be >= 0, got {value}"


def _ranges(config: Config) -> Iterator[str]:
    gp, history = config.predictor.paper_gp, config.predictor.history
    for key, value in (("paper_gp.clip", gp.clip), ("history.clip", history.clip)):
        if not 0 < value < 0.5:
            yield f"predictor.{key} must lie in (0, 0.5), got {value}"
    if not 0 < gp.prior_success_prob < 1:
        yield f"predictor.paper_gp.prior_success_prob must lie in (0, 1), got {gp.prior_success_prob}"
    if not 0 <= config.learner.clip_low < 1:
        yield f"learner.clip_low must lie in [0, 1), got {config.learner.clip_low}"
    for key, value in (("beta1", config.learner.beta1), ("beta2", config.learner.beta2)):
        if not 0 <= value < 1:
            yield f"learner.{key} must lie in [0, 1), got {value}"
    if config.sampling.temperature < _MIN_TEMPERATURE:
        yield f"sampling.temperature must be >= {_MIN_TEMPERATURE}, vLLM's least, got {config.sampling.temperature}"
    if config.ray.object_store_mib < _MIN_OBJECT_STORE_MIB:
        yield f"ray.object_store_mib must be >= {_MIN_OBJECT_STORE_MIB}, Ray's least, got {config.ray.object_store_mib}"


def _choices(config: Config) -> Iterator[str]:
    choices = {
        "allocation.policy": (config.allocation.policy, tuple(POLICIES)),
        "allocation.objective": (config.allocation.objective, tuple(OBJECTIVES)),
        "allocation.estimator": (config.allocation.estimator, tuple(ESTIMATORS)),
        "predictor.kind": (config.predictor.kind, PREDICTOR_KINDS),
        "predictor.paper_gp.preset": (config.predictor.paper_gp.preset, ("none", "paper", "authors_code")),
        "predictor.array_backend": (config.predictor.array_backend, ("auto", "numpy", "cupy")),
        "generators.dtype": (config.generators.dtype, ("bfloat16", "float16", "float32")),
        "learner.length_norm": (config.learner.length_norm, ("sequence", "none")),
        "weights.rounding": (config.weights.rounding, ("stochastic", "nearest")),
    }
    for key, (value, allowed) in choices.items():
        if value not in allowed:
            yield f"{key} must be one of {', '.join(allowed)}, got {value!r}"


def _allocation_problems(allocation: AllocationConfig) -> Iterator[str]:
    policy = POLICIES.get(allocation.policy)
    if policy and not policy.any_objective and allocation.objective != "mean_success":
        fitting = " or ".join(name for name, other in POLICIES.items() if other.any_objective)
        yield (
            f"allocation.policy={allocation.policy} ignores the weights that allocation.objective="
            f"{allocation.objective} gives the prompts: set allocation.policy={fitting}, or "
            "allocation.objective=mean_success"
        )
    estimator = ESTIMATORS.get(allocation.estimator)
    if estimator is None:
        return
    if allocation.lower < estimator.min_lower:
        yield (
            f"allocation.lower must be >= {estimator.min_lower} for estimator {estimator.name} "
            f"({estimator.why_min_lower}), got {allocation.lower}"
        )
    if allocation.upper < allocation.lower:
        yield f"allocation.upper={allocation.upper} is below allocation.lower={allocation.lower}"
    b, c = allocation.prompts_per_batch, allocation.rollout_budget
    if not b * allocation.lower <= c <= b * allocation.upper:
        yield (
            f"allocation.rollout_budget={c} does not fit allocation.prompts_per_batch={b} prompts with "
            f"allocation.lower={allocation.lower} and allocation.upper={allocation.upper}: "
            f"it must lie in [{b * allocation.lower}, {b * allocation.upper}]"
        )
