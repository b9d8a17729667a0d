"""The one place where classes become Ray actors: resources, environment, start-up and end."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.allocator import AllocatorActor
from actors.builders import EngineBuilder, build_pool, build_predictor, build_trainer
from actors.generator import GeneratorActor
from actors.handles import Actors, Ranks
from actors.learner import LearnerActor
from actors.predictor import PredictorActor
from actors.rollout_writer import RolloutWriter
from actors.verifier import VerifierActor
from actors.waiting import wait_for
from vipray.config import Config
from vipray.data.prompts import PromptSet
from vipray.errors import ActorStartError, WaitTimeoutError, summary_line

_log = logging.getLogger(__name__)
_SHUTDOWN_TIMEOUT_S = 20.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # models are folders, never names on a hub
_SPARE_CALLS = 16  # of a generator, beside as many rollouts as its engine makes at once: weights must get through


class Spawner:
    """Makes the actors of a run, at its start and in place of those that are lost.

    Args:
        config: the whole configuration.
        prompts: of the run.
        run_dir: where rollouts are written, on the driver's node.
        first_step: training steps that were taken before; engines draw other random numbers then.
    """

    def __init__(self, config: Config, prompts: PromptSet, run_dir: Path, first_step: int = 0) -> None:
        self.started: list[Any] = []
        self._config = config
        self._run_dir = run_dir
        self._seed = (config.run.seed * 1_000 + first_step) * 1_000
        self._table = ray.put(prompts.table)
        self._here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

    def predictor(self) -> Any:
        """Make a predictor without any history."""
        config = self._config.predictor
        build = functools.partial(build_predictor, config)
        return self._start(PredictorActor, build, self._table, num_cpus=config.num_cpus, num_gpus=config.num_gpus)

    def allocator(self) -> Any:
        """Make an allocator."""
        return self._start(AllocatorActor, self._config.allocation, num_cpus=self._config.allocation.num_cpus)

    def verifier(self) -> Any:
        """Make a verifier."""
        build = functools.partial(build_pool, self._config.verifiers, self._config.data.tasks)
        return self._start(VerifierActor, build, self._table, num_cpus=self._config.verifiers.num_cpus)

    def writer(self) -> Any:
        """Make a rollout writer on this node, which has the run's folder."""
        return self._start(RolloutWriter, self._run_dir.absolute(), num_cpus=0, scheduling_strategy=self._here)

    def generator(self, generator_id: str) -> Any:
        """Make a generator, which has no weights yet."""
        config = self._config.generators
        return self._start(
            GeneratorActor,
            generator_id,
            EngineBuilder(self._config, seed=self._seed + int(generator_id.rpartition("-")[2])),
            self._table,
            threads=config.threads,
            env=engine_environment(self._config),
            num_cpus=config.num_cpus,
            num_gpus=config.num_gpus * config.tensor_parallel_size,
            max_concurrency=config.max_num_seqs + _SPARE_CALLS,
        )

    async def learners(self) -> Ranks:
        """Make a learner group, set it up, and return it with the model's own weights."""
        config = self._config.learner
        ranks = [
            self._start(
                LearnerActor,
                functools.partial(build_trainer, self._config),
                threads=config.threads,
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
            )
            for _ in range(config.ranks)
        ]
        timeout_s = self._config.ray.actor_start_timeout_s
        is_ready = False
        try:
            host, port = await wait_for(ranks[0].address.remote(), timeout_s, "the first learner rank to be placed")
            setups = [rank.setup.remote(index, len(ranks), host, port) for index, rank in enumerate(ranks)]
            waits = [wait_for(setup, timeout_s, f"learner rank {index}") for index, setup in enumerate(setups)]
            # The first that fails is the cause, not the last to notice.
            num_chunks, summary = (await asyncio.gather(*waits))[0]
            is_ready = True
        finally:  # also where somebody waits no longer: they hold what others need
            if not is_ready:
                for rank in ranks:
                    discard(rank)
        return Ranks(tuple(ranks), num_chunks, summary)

    def _start(self, cls: type, *args: Any, threads: int = 1, env: dict[str, str] | None = None, **options: Any) -> Any:
        variables = {**_OFFLINE, "OMP_NUM_THREADS": str(threads), **(env or {})}
        remote: Any = ray.remote
        handle = (
            remote(concurrency_groups={"health": 1})(cls)
            .options(runtime_env={"env_vars": variables}, **options)
            .remote(*args)
        )
        self.started.append(handle)
        return handle


async def spawn(config: Config, spawner: Spawner, on_stage: Callable[[str], None]) -> Actors:
    """Create every actor of a run and wait until all of them are ready.

    Raises:
        ActorStartError: one did not come up in time, or died; the message says which, and what it asked for. What
            was started is ended.
    """
    is_ready = False
    try:
        actors = await _spawn(config, spawner, on_stage)
        is_ready = True
        return actors
    except (RayError, WaitTimeoutError) as error:
        raise ActorStartError(f"{summary_line(error)}; {_resources()}") from error
    finally:
        if not is_ready:
            for handle in spawner.started:  # an engine that is starting hears nothing: no use in asking
                discard(handle)


async def _spawn(config: Config, spawner: Spawner, on_stage: Callable[[str], None]) -> Actors:
    timeout_s = config.ray.actor_start_timeout_s
    predictor, allocator, writer = spawner.predictor(), spawner.allocator(), spawner.writer()
    verifiers = [spawner.verifier() for _ in range(config.verifiers.count)]
    names = [f"generator-{index}" for index in range(config.generators.count)]
    generators = {name: spawner.generator(name) for name in names}
    engine = "vLLM" if config.generators.engine == "vllm" else "scripted engines"
    learner = "FSDP2" if config.learner.engine == "fsdp2" else "a script"
    on_stage(
        f"starting {engine} in {config.generators.count} generators, {learner} in {config.learner.ranks} learner "
        f"ranks, {config.verifiers.count} verifiers, predictor and allocator"
    )
    ranks, *_ = await asyncio.gather(
        spawner.learners(),
        wait_for(predictor.ready.remote(), timeout_s, "the predictor to be ready"),
        wait_for(allocator.ready.remote(), timeout_s, "the allocator to be ready"),
        wait_for(writer.ready.remote(), timeout_s, "the rollout writer to be ready"),
        *(wait_for(verifier.ready.remote(), timeout_s, "a verifier to be ready") for verifier in verifiers),
        *(
            wait_for(generator.ready.remote(), config.generators.start_timeout_s, f"{generator_id} to be ready")
            for generator_id, generator in generators.items()
        ),
    )
    on_stage(f"the learner computes in {ranks.summary}")
    return Actors(predictor, allocator, generators, verifiers, ranks, writer, spawner, spawner.started)


def engine_environment(config: Config) -> dict[str, str]:
    """Variables that an engine's process needs before vLLM is imported."""
    environment = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    if not config.generators.num_gpus:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else every engine of a machine binds to the same core
    return environment


def cancel(reference: Any) -> None:
    """Give up a call; its coroutine is cancelled in the actor, and its rollout aborted in the engine."""
    ray.cancel(reference)


async def lost_reference() -> Any:
    """Return a reference to an object that is nowhere any more, because its owner is dead: for trying out faults."""
    remote: Any = ray.remote
    owner = remote(_Owner).options(num_cpus=0).remote()
    (reference,) = await owner.put.remote()
    ray.kill(owner)
    return reference


class _Owner:
    def put(self) -> list[Any]:
        return [ray.put(None)]


def discard(handle: Any) -> None:
    """End an actor at once; the processes of its engine notice and follow."""
    ray.kill(handle)


async def end(handles: list[Any]) -> None:
    """Ask actors to end in order, then kill them; engines end their own processes when they are asked."""
    asked = [handle.shutdown.remote() for handle in handles if hasattr(handle, "shutdown")]
    results = await asyncio.gather(
        *(wait_for(reference, _SHUTDOWN_TIMEOUT_S, "an actor to shut down") for reference in asked),
        return_exceptions=True,
    )
    for result in results:
        if isinstance(result, BaseException):
            _log.info("an actor did not shut down in order: %s", summary_line(result))
    for handle in handles:
        discard(handle)


def _resources() -> str:
    free = {"CPU": 0.0, "GPU": 0.0} | ray.available_resources()
    total = ray.cluster_resources()
    return ", ".join(f"{name} {free[name]:g} of {total[name]:g} free" for name in ("CPU", "GPU") if name in total)
