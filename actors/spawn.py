"""The one place where classes become Ray actors: resources, environment, start-up and end."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.allocator import AllocatorActor
from actors.generator import GeneratorActor
from actors.handles import Actors
from actors.learner import LearnerActor
from actors.predictor import PredictorActor
from actors.rollout_writer import RolloutWriter
from actors.verifier import VerifierActor
from actors.waiting import wait_for
from vipray.config import Config, PredictorConfig, TaskConfig, VerifierConfig
from vipray.data.prompts import PromptSet
from vipray.errors import ActorStartError, WaitTimeoutError, summary_line
from vipray.inference.protocol import Engine
from vipray.predictors.protocol import Predictor
from vipray.verifiers.builder import VerifierBuilder
from vipray.verifiers.workers import VerifierPool

if TYPE_CHECKING:
    from vipray.learner.trainer import Rendezvous, Trainer

_log = logging.getLogger(__name__)
_SHUTDOWN_TIMEOUT_S = 20.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # models are folders, never names on a hub
_SPARE_CALLS = 16  # of a generator, beside as many rollouts as its engine makes at once: weights must get through


@dataclass(frozen=True)
class EngineBuilder:
    """Makes a generator's engine inside the generator's process."""

    config: Config
    seed: int

    def __call__(self) -> Engine:
        """Unpack the model on this node if need be, and return the engine, not yet started."""
        from vipray.inference.vllm_engine import VllmEngine, VllmEngineOptions
        from vipray.learner.model_folder import ensure_model_folder

        generators, sampling = self.config.generators, self.config.sampling
        return VllmEngine(
            VllmEngineOptions(
                model_folder=str(ensure_model_folder(self.config.model.path, self.config.model.cache_dir)),
                max_model_len=self.config.data.max_prompt_tokens + sampling.max_tokens,
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                dtype=generators.dtype,
                seed=self.seed,
                max_num_seqs=generators.max_num_seqs,
                tensor_parallel_size=generators.tensor_parallel_size,
                enforce_eager=generators.enforce_eager,
                in_flight=self.config.weights.in_flight,
                kv_cache_bytes=None if generators.kv_cache_mib is None else generators.kv_cache_mib << 20,
            )
        )


def build_trainer(config: Config, rendezvous: Rendezvous) -> Trainer:
    """Make a rank's trainer inside the rank's process."""
    from vipray.learner.model_folder import ensure_model_folder
    from vipray.learner.trainer import Trainer, TrainerOptions

    options = TrainerOptions(
        model_folder=ensure_model_folder(config.model.path, config.model.cache_dir),
        estimator=config.allocation.estimator,
        temperature=config.sampling.temperature,
        publish_dtype=config.generators.dtype,
        rounding=config.weights.rounding,
        chunk_nbytes=config.weights.chunk_mib << 20,
        seed=config.run.seed,
        max_completion_tokens=config.sampling.max_tokens,
        total_steps=config.optimizer_steps,
        model_source=config.model.path,
    )
    return Trainer(config.learner, options, rendezvous)


def _build_predictor(config: PredictorConfig, prompts: PromptSet) -> Predictor:
    from vipray.predictors.build import build_predictor

    return build_predictor(config, prompts)


def _build_pool(config: VerifierConfig, tasks: dict[str, TaskConfig], names: Sequence[str]) -> VerifierPool:
    return VerifierPool(
        VerifierBuilder(config.function, tasks, config.python_tests),
        names,
        num_workers=config.workers,
        answer_timeout_s=config.answer_timeout_s,
        memory_mib=config.memory_mib,
    )


async def spawn(config: Config, prompts: PromptSet, run_dir: Path, on_stage: Callable[[str], None]) -> Actors:
    """Create every actor of a run and wait until all of them are ready.

    Raises:
        ActorStartError: one did not come up in time, or died; the message says which, and what it asked for. What
            was started is ended.
    """
    started: list[Any] = []
    is_ready = False
    try:
        actors = await _spawn(config, prompts, run_dir, on_stage, started)
        is_ready = True
        return actors
    except (RayError, WaitTimeoutError) as error:
        raise ActorStartError(f"{summary_line(error)}; {_resources()}") from error
    finally:
        if not is_ready:
            for handle in started:  # an engine that is starting hears nothing: no use in asking
                discard(handle)


async def _spawn(
    config: Config, prompts: PromptSet, run_dir: Path, on_stage: Callable[[str], None], started: list[Any]
) -> Actors:
    def start(cls: type, *args: Any, threads: int = 1, env: dict[str, str] | None = None, **options: Any) -> Any:
        variables = {**_OFFLINE, "OMP_NUM_THREADS": str(threads), **(env or {})}
        handle: Any = ray.remote(cls).options(runtime_env={"env_vars": variables}, **options).remote(*args)
        started.append(handle)
        return handle

    table = ray.put(prompts.table)
    timeout_s = config.ray.actor_start_timeout_s
    predictor = start(
        PredictorActor,
        functools.partial(_build_predictor, config.predictor),
        table,
        num_cpus=config.predictor.num_cpus,
        num_gpus=config.predictor.num_gpus,
    )
    allocator = start(AllocatorActor, config.allocation, num_cpus=config.allocation.num_cpus)
    build_pool = functools.partial(_build_pool, config.verifiers, config.data.tasks)
    verifiers = [
        start(VerifierActor, build_pool, table, num_cpus=config.verifiers.num_cpus)
        for _ in range(config.verifiers.count)
    ]
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    writer = start(RolloutWriter, run_dir.absolute(), num_cpus=0, scheduling_strategy=here)
    learners = [
        start(
            LearnerActor,
            functools.partial(build_trainer, config),
            threads=config.learner.threads,
            num_cpus=config.learner.num_cpus,
            num_gpus=config.learner.num_gpus,
        )
        for _ in range(config.learner.ranks)
    ]

    def start_generator(generator_id: str) -> Any:
        number = int(generator_id.rpartition("-")[2])
        return start(
            GeneratorActor,
            generator_id,
            EngineBuilder(config, seed=config.run.seed * 1000 + number),
            table,
            threads=config.generators.threads,
            env=engine_environment(config),
            num_cpus=config.generators.num_cpus,
            num_gpus=config.generators.num_gpus * config.generators.tensor_parallel_size,
            max_concurrency=config.generators.max_num_seqs + _SPARE_CALLS,
        )

    names = [f"generator-{index}" for index in range(config.generators.count)]
    generators = {name: start_generator(name) for name in names}
    on_stage(
        f"starting vLLM in {config.generators.count} generators, FSDP2 in {config.learner.ranks} learner ranks, "
        f"{config.verifiers.count} verifiers, predictor and allocator"
    )
    (num_chunks, summary), *_ = await asyncio.gather(
        _set_up_learners(learners, timeout_s),
        wait_for(predictor.ready.remote(), timeout_s, "the predictor to be ready"),
        wait_for(allocator.ready.remote(), timeout_s, "the allocator to be ready"),
        wait_for(writer.ready.remote(), timeout_s, "the rollout writer to be ready"),
        *(wait_for(verifier.ready.remote(), timeout_s, "a verifier to be ready") for verifier in verifiers),
        *(
            wait_for(generator.ready.remote(), config.generators.start_timeout_s, f"{generator_id} to be ready")
            for generator_id, generator in generators.items()
        ),
    )
    on_stage(f"the learner computes in {summary}")
    if config.checkpoints.load:
        await _load_checkpoint(learners, config.checkpoints.load, timeout_s, on_stage)
    return Actors(predictor, allocator, generators, verifiers, learners, writer, num_chunks, start_generator, started)


async def _set_up_learners(learners: list[Any], timeout_s: float) -> tuple[int, str]:
    host, port = await wait_for(learners[0].address.remote(), timeout_s, "the first learner rank to be placed")
    setups = [rank.setup.remote(index, len(learners), host, port) for index, rank in enumerate(learners)]
    waits = [wait_for(setup, timeout_s, f"learner rank {index}") for index, setup in enumerate(setups)]
    num_chunks, summary = (await asyncio.gather(*waits))[0]  # the first that fails is the cause, not the last to notice
    return num_chunks, summary


async def _load_checkpoint(learners: list[Any], folder: str, timeout_s: float, on_stage: Callable[[str], None]) -> None:
    path = str(Path(folder).expanduser().absolute())
    what = f"the learner to load {path}"
    steps = await asyncio.gather(*(wait_for(rank.load.remote(path), timeout_s, what) for rank in learners))
    on_stage(f"the learner goes on from {path}, saved after {steps[0]} steps")


def engine_environment(config: Config) -> dict[str, str]:
    """Variables that an engine's process needs before vLLM is imported."""
    environment = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    if not config.generators.num_gpus:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else every engine of a machine binds to the same core
    return environment


def cancel(reference: Any) -> None:
    """Give up a call; its coroutine is cancelled in the actor, and its rollout aborted in the engine."""
    ray.cancel(reference)


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
