"""What a run would start and spend, before it starts anything."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from rich.table import Table

from vipray.config import Config
from vipray.errors import ConfigError


@dataclass(frozen=True)
class ActorRequest:
    """How many actors of a role there are, and what each asks of Ray."""

    role: str
    count: int
    num_cpus: float
    num_gpus: float
    what: str


def actor_requests(config: Config) -> list[ActorRequest]:
    """Every actor of a run, by role."""
    gpus_per_engine = config.generators.num_gpus * config.generators.tensor_parallel_size
    return [
        ActorRequest("predictor", 1, config.predictor.num_cpus, config.predictor.num_gpus, "GP over embeddings"),
        ActorRequest("allocator", 1, config.allocation.num_cpus, 0.0, f"{config.allocation.policy}, exact integers"),
        ActorRequest(
            "generator", config.generators.count, config.generators.num_cpus, gpus_per_engine, "vLLM AsyncLLM"
        ),
        ActorRequest("verifier", config.verifiers.count, config.verifiers.num_cpus, 0.0, "worker processes"),
        ActorRequest("learner", config.learner.ranks, config.learner.num_cpus, config.learner.num_gpus, "FSDP2 rank"),
        ActorRequest("rollout writer", 1, 0.0, 0.0, "on the driver's node"),
    ]


def requested_cpus(config: Config) -> float:
    """CPUs that all actors ask of Ray together."""
    return sum(request.count * request.num_cpus for request in actor_requests(config))


def embedded_cpus(config: Config) -> float:
    """CPUs of the embedded Ray: the setting, else the machine's or as many as the actors ask for.

    Raises:
        ConfigError: the setting is less than the actors ask for; they would wait for ever.
    """
    needed = requested_cpus(config)
    if config.ray.num_cpus is None:
        return max(float(os.cpu_count() or 1), math.ceil(needed))
    if config.ray.num_cpus < needed:
        raise ConfigError(f"ray.num_cpus={config.ray.num_cpus:g} is less than the {needed:g} that the actors ask for")
    return config.ray.num_cpus


def plan_table(config: Config, num_prompts: int) -> Table:
    """The plan as a table for the terminal."""
    table = Table(title=f"Plan of run {config.run.name!r}", title_justify="left")
    for heading in ("actor", "number", "CPUs each", "GPUs each", "what"):
        table.add_column(heading, justify="left" if heading in ("actor", "what") else "right")
    for request in actor_requests(config):
        table.add_row(request.role, str(request.count), f"{request.num_cpus:g}", f"{request.num_gpus:g}", request.what)
    allocation, steps = config.allocation, config.run.steps
    evaluation = 2 * num_prompts * config.evaluation.rollouts_per_prompt
    table.caption = (
        f"{steps} steps of {allocation.rollout_budget} rollouts over {allocation.prompts_per_batch} prompts "
        f"(each {allocation.lower} to {allocation.upper}): {steps * allocation.rollout_budget} rollouts to train on, "
        f"{evaluation} to evaluate with, of at most {config.sampling.max_tokens} tokens; {num_prompts} prompts; "
        f"output in {config.output_dir}"
    )
    table.caption_justify = "left"
    return table
