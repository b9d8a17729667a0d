"""What actors make in their own processes: engine, trainer, predictor, verifier pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vipray.config import Config, PredictorConfig, TaskConfig, VerifierConfig
from vipray.data.prompts import PromptSet
from vipray.inference.protocol import Engine
from vipray.predictors.protocol import Predictor
from vipray.verifiers.builder import VerifierBuilder
from vipray.verifiers.workers import VerifierPool

if TYPE_CHECKING:
    from vipray.learner.rendezvous import Rendezvous
    from vipray.learner.trainer_protocol import LearnerRank


@dataclass(frozen=True)
class EngineBuilder:
    """Makes a generator's engine inside the generator's process."""

    config: Config
    seed: int

    def __call__(self, prompts: PromptSet) -> Engine:
        """Return the engine, not yet started; unpacks the model on this node if need be."""
        if self.config.generators.engine == "scripted":
            from vipray.inference.scripted_build import scripted_engine

            return scripted_engine(self.config.scripted, prompts, self.config.run.seed)
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


def build_trainer(config: Config, rendezvous: Rendezvous) -> LearnerRank:
    """Make a rank's trainer inside the rank's process."""
    if config.learner.engine == "scripted":
        from vipray.learner.scripted_trainer import ScriptedOptions, ScriptedTrainer

        return ScriptedTrainer(config.scripted, ScriptedOptions(config.run.seed, config.model.path), rendezvous)
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


def build_predictor(config: PredictorConfig, prompts: PromptSet) -> Predictor:
    """Make a predictor without any history."""
    from vipray.predictors import build

    return build.build_predictor(config, prompts)


def build_pool(config: VerifierConfig, tasks: dict[str, TaskConfig], names: Sequence[str]) -> VerifierPool:
    """Make the worker processes of a verifier."""
    return VerifierPool(
        VerifierBuilder(config.function, tasks, config.python_tests),
        names,
        num_workers=config.workers,
        answer_timeout_s=config.answer_timeout_s,
        memory_mib=config.memory_mib,
    )
