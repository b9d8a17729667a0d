"""What the types of the configuration allow and a run cannot work with."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vipray.advantages import ADVANTAGES
from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.objectives import OBJECTIVES
from vipray.allocation.policies import POLICIES
from vipray.data.mix import share_sizes
from vipray.dispatch.staleness import ON_STALE
from vipray.predictors import PREDICTOR_KINDS

if TYPE_CHECKING:
    from vipray.config import AllocationConfig, Config, DataConfig, RestartConfig, VerifierConfig

AGGREGATIONS = ("prompt_mean", "sequence_mean", "token_mean")
_MIN_TEMPERATURE = 0.01  # vLLM raises lower ones to it without a word; the learner's ratios would be of another policy
_MIN_OBJECT_STORE_MIB = 80
_VERDICTS_AT_ONCE = 4  # that the controller has under way with one verifier
_FUNCTION = re.compile(r"[\w.]+:[\w.]+")
_FORMATS = ("auto", "verl", "gsm8k", "columns")


def problems(config: Config) -> Iterator[str]:
    """Yield one sentence for each setting that the types allow and the run cannot work with."""
    yield from _positive(config)
    yield from _not_negative(config)
    yield from _ranges(config)
    yield from _choices(config)
    yield from _allocation_problems(config.allocation)
    yield from _learner_problems(config)
    yield from _verifier_problems(config.verifiers, {file.verifier for file in config.data.files.values()})
    yield from _task_problems(config.data)
    yield from _file_problems(config.data)
    yield from _prompt_count_problems(config)
    if config.learner.engine == "scripted" and config.generators.engine != "scripted":
        yield (
            "learner.engine=scripted publishes no model's weights: set generators.engine=scripted, or "
            "learner.engine=fsdp2"
        )
    if config.weights.rounding == "stochastic" and config.generators.dtype == "float16":
        yield (
            "weights.rounding=stochastic works on bfloat16, not on generators.dtype=float16: "
            "set weights.rounding=nearest or generators.dtype=bfloat16"
        )


def task_shares(data: DataConfig) -> dict[str, int]:
    """Prompts of each task that has a weight."""
    weights = {label: task.weight for label, task in data.tasks.items() if task.weight is not None}
    return share_sizes(weights, data.mix_size or 0)


def _task_problems(data: DataConfig) -> Iterator[str]:
    if not data.tasks and not data.files:
        yield "data.tasks is empty: name at least one reasoning-gym task there, or a data file in data.files"
    if data.mix_size is not None and data.mix_size < 1:
        yield f"data.mix_size must be >= 1, got {data.mix_size}"
    for label, task in data.tasks.items():
        key = f"data.tasks.{label}"
        if task.size is None and task.weight is None:
            yield f"{key}.size has no value: set it, or {key}.weight and data.mix_size"
        if task.size is not None and task.size < 1:
            yield f"{key}.size must be >= 1, got {task.size}"
        if task.weight is not None and not (math.isfinite(task.weight) and task.weight > 0):
            yield f"{key}.weight must be > 0, got {task.weight}"
        elif task.weight is not None and data.mix_size is None:
            yield f"{key}.weight={task.weight} needs data.mix_size, the number of prompts that the weights share"
        if task.difficulty is not None and task.difficulty < 0:
            yield f"{key}.difficulty must be >= 0, got {task.difficulty}"
    yield from _share_problems(data)


def _share_problems(data: DataConfig) -> Iterator[str]:
    weights = [task.weight for task in data.tasks.values() if task.weight is not None]
    if not all(math.isfinite(weight) and weight > 0 for weight in weights) or not (data.mix_size or 0) > 0:
        return
    for label, share in task_shares(data).items():
        size, weight = data.tasks[label].size, data.tasks[label].weight
        if share < 1:
            yield f"data.tasks.{label}.weight={weight} gives it no prompt of data.mix_size={data.mix_size}"
        elif size is not None and size != share:
            yield f"data.tasks.{label}.size={size} is not its share by weight, {share}: set size or weight, not both"


def _file_problems(data: DataConfig) -> Iterator[str]:
    from vipray.verifiers.build import VERIFIERS  # which imports vipray.config itself

    for label, file in data.files.items():
        key = f"data.files.{label}"
        if label in data.tasks:
            yield f"{key}: data.tasks has the label {label!r} too, and labels begin the prompts' ids: rename one"
        if file.format not in _FORMATS:
            yield f"{key}.format must be one of {', '.join(_FORMATS)}, got {file.format!r}"
        if file.verifier and file.verifier not in VERIFIERS:
            yield f"{key}.verifier must be one of {', '.join(VERIFIERS)}, got {file.verifier!r}"
        if file.verifier == "reasoning_gym":
            yield f"{key}.verifier=reasoning_gym scores prompts of data.tasks alone: choose another"
        if file.limit is not None and file.limit < 1:
            yield f"{key}.limit must be >= 1, got {file.limit}"


def _prompt_count_problems(config: Config) -> Iterator[str]:
    tasks = config.data.tasks.values()
    weighted = config.data.mix_size if any(task.weight is not None for task in tasks) else 0
    num_prompts = (weighted or 0) + sum(task.size for task in tasks if task.weight is None and task.size is not None)
    if tasks and not config.data.files and num_prompts < config.allocation.prompts_per_batch:
        yield (
            f"allocation.prompts_per_batch={config.allocation.prompts_per_batch} is more than the {num_prompts} "
            "prompts of data.tasks: no prompt may come twice in a batch"
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
        "learner.correction_cap": config.learner.correction_cap,
        "learner.reject_above": config.learner.reject_above,
        "learner.prompts_per_step": config.learner.prompts_per_step,
        "learner.passes_per_batch": config.learner.passes_per_batch,
        "learner.lora.alpha": config.learner.lora.alpha,
        "checkpoints.keep_last": config.checkpoints.keep_last,
        "pipeline.straggler_deadline_s": config.pipeline.straggler_deadline_s,
        "pipeline.max_tokens_in_flight": config.pipeline.max_tokens_in_flight,
        "weights.chunk_mib": config.weights.chunk_mib,
        "weights.timeout_s": config.weights.timeout_s,
        "generators.start_timeout_s": config.generators.start_timeout_s,
        "generators.rollout_timeout_s": config.generators.rollout_timeout_s,
        "verifiers.timeout_s": config.verifiers.timeout_s,
        "verifiers.workers": config.verifiers.workers,
        "verifiers.answer_timeout_s": config.verifiers.answer_timeout_s,
        "verifiers.memory_mib": config.verifiers.memory_mib,
        **{f"verifiers.python_tests.{name}": value for name, value in vars(config.verifiers.python_tests).items()},
        "learner.collective_timeout_s": config.learner.collective_timeout_s,
        "learner.step_timeout_s": config.learner.step_timeout_s,
        **{f"supervision.{kind}.window_s": rule.window_s for kind, rule in _restart_rules(config)},
        "supervision.health_interval_s": config.supervision.health_interval_s,
        "supervision.health_timeout_s": config.supervision.health_timeout_s,
        "supervision.max_kills": config.supervision.max_kills,
        "scripted.num_tokens": config.scripted.num_tokens,
        "scripted.parameters": config.scripted.parameters,
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
        "learner.kl_coefficient": config.learner.kl_coefficient,
        "learner.reject_below": config.learner.reject_below,
        "learner.lora.rank": config.learner.lora.rank,
        "checkpoints.every_steps": config.checkpoints.every_steps,
        "checkpoints.grace_s": config.checkpoints.grace_s,
        "pipeline.max_staleness": config.pipeline.max_staleness,
        **{f"supervision.{kind}.max_restarts": rule.max_restarts for kind, rule in _restart_rules(config)},
        **{f"supervision.{kind}.backoff_s": rule.backoff_s for kind, rule in _restart_rules(config)},
        "scripted.latency_s": config.scripted.latency_s,
        "scripted.training_s": config.scripted.training_s,
    }
    for key, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            yield f"{key} must be >= 0, got {value}"


def _restart_rules(config: Config) -> list[tuple[str, RestartConfig]]:
    supervision = config.supervision
    kinds = ("generators", "verifiers", "planners", "learners")
    return [(kind, getattr(supervision, kind)) for kind in kinds]


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
    if not 0 <= config.learner.final_learning_rate_factor <= 1:
        yield f"learner.final_learning_rate_factor must lie in [0, 1], got {config.learner.final_learning_rate_factor}"
    low, high = config.scripted.success_prob_low, config.scripted.success_prob_high
    if not 0 <= low <= high <= 1:
        yield f"scripted.success_prob_low and _high must satisfy 0 <= low <= high <= 1, got {low} and {high}"
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
        "generators.engine": (config.generators.engine, ("vllm", "scripted")),
        "learner.engine": (config.learner.engine, ("fsdp2", "scripted")),
        "learner.precision": (config.learner.precision, ("auto", "bf16", "fp32")),
        "learner.packing": (config.learner.packing, ("auto", "off")),
        "learner.attention": (config.learner.attention, ("auto", "sdpa", "flex_attention")),
        "learner.estimator": (config.learner.estimator or "rloo", ADVANTAGES),
        "learner.aggregation": (config.learner.aggregation, AGGREGATIONS),
        "learner.length_norm": (config.learner.length_norm, ("sequence", "constant", "none")),
        "learner.correction": (config.learner.correction, ("none", "token", "sequence")),
        "pipeline.on_stale": (config.pipeline.on_stale, ON_STALE),
        "weights.in_flight": (config.weights.in_flight, ("keep", "wait", "abort")),
        "learner.schedule": (config.learner.schedule, ("constant", "linear", "cosine")),
        **{f"data.bad_rows.{name}": (rule, ("drop", "refuse")) for name, rule in vars(config.data.bad_rows).items()},
        "weights.rounding": (config.weights.rounding, ("stochastic", "nearest")),
    }
    for key, (value, allowed) in choices.items():
        if value not in allowed:
            yield f"{key} must be one of {', '.join(allowed)}, got {value!r}"


def _verifier_problems(verifiers: VerifierConfig, named: set[str]) -> Iterator[str]:
    """Problems of the pool, and of the verifiers that data files name."""
    longest_s = _VERDICTS_AT_ONCE * verifiers.answer_timeout_s
    if verifiers.timeout_s < longest_s:
        yield (
            f"verifiers.timeout_s={verifiers.timeout_s:g} must be >= {_VERDICTS_AT_ONCE} * verifiers.answer_timeout_s "
            f"= {longest_s:g}: so long may {_VERDICTS_AT_ONCE} answers wait for each other"
        )
    if "python_tests" in named and verifiers.python_tests.timeout_s >= verifiers.answer_timeout_s:
        yield (
            f"verifiers.python_tests.timeout_s={verifiers.python_tests.timeout_s:g} must be < "
            f"verifiers.answer_timeout_s={verifiers.answer_timeout_s:g}, the limit of the whole verification"
        )
    if verifiers.function and not _FUNCTION.fullmatch(verifiers.function):
        yield f"verifiers.function must be of the form module:callable, got {verifiers.function!r}"
    if "function" in named and not verifiers.function:
        yield "verifiers.function has no value: a data file names the verifier function; set it to module:callable"


def _learner_problems(config: Config) -> Iterator[str]:
    learner = config.learner
    if learner.precision == "bf16" and config.generators.dtype != "bfloat16":
        yield (
            f"learner.precision=bf16 computes with the numbers that are published, which generators.dtype="
            f"{config.generators.dtype} does not take: set generators.dtype=bfloat16 or learner.precision=fp32"
        )
    in_flight = config.pipeline.max_tokens_in_flight
    if in_flight is not None and in_flight < config.sampling.max_tokens:
        yield (
            f"pipeline.max_tokens_in_flight={in_flight:g} is less than one rollout of sampling.max_tokens="
            f"{config.sampling.max_tokens}: engines would run empty before the next one starts"
        )
    if learner.reject_above is not None and learner.reject_above <= learner.reject_below:
        yield f"learner.reject_above={learner.reject_above} is not above learner.reject_below={learner.reject_below}"
    if learner.attention == "flex_attention" and not learner.num_gpus:
        yield "learner.attention=flex_attention has no backward pass on a CPU: set learner.attention=sdpa"


def cautions(config: Config) -> Iterator[str]:
    """Yield one sentence for each setting that a run works with, but that is at odds with the allocation."""
    learner = config.learner
    if learner.aggregation != "prompt_mean":
        yield (
            f"learner.aggregation={learner.aggregation} weighs prompts by their number of rollouts: the variance "
            "formula that the allocation minimises does not hold for it, and adaptive allocation can then do harm"
        )
    if learner.estimator == "grpo":
        yield (
            "learner.estimator=grpo divides each group by its own standard deviation: the allocation's variance "
            "formula does not hold for it, and easy and hard prompts weigh more than those in between"
        )
    elif learner.estimator not in (None, config.allocation.estimator):
        yield (
            f"learner.estimator={learner.estimator} is not the estimator that the allocation is optimal for "
            f"(allocation.estimator={config.allocation.estimator})"
        )
    if config.pipeline.max_staleness and learner.correction == "none":
        yield (
            f"pipeline.max_staleness={config.pipeline.max_staleness} trains on rollouts of older policies with "
            "learner.correction=none: the clip alone corrects for that; learner.correction=token weighs them"
        )
    if config.pipeline.straggler_deadline_s is not None:
        yield (
            "pipeline.straggler_deadline_s leaves slow rollouts out of the batch: long completions are then missing "
            "more often than short ones, and the gradient is biased"
        )
    if learner.mask_truncated:
        yield "learner.mask_truncated=true makes the gradient blind to completions that are too long: it is biased"


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
