"""One rank of the learner group: training steps, publications and checkpoints of a sharded model.

Every method that computes is a collective: all ranks call it, with the same arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from vipray.checkpoints import CheckpointManifest
from vipray.config import LearnerConfig
from vipray.learner.batch import BatchOptions, TrainingBatch, training_batch
from vipray.learner.checkpoint import Checkpointer
from vipray.learner.loss import LossTerms, Objective, policy_loss
from vipray.learner.micro_batch import MicroBatch, filler, packed_micro_batch, plain_micro_batch
from vipray.learner.model_folder import max_positions
from vipray.learner.optimizer import PolicyOptimizer, StepResult
from vipray.learner.packing import PackingOptions, Row, TrainingRollout, plan_rows
from vipray.learner.policy_model import PolicyModel
from vipray.learner.policy_weights import PolicyWeights
from vipray.learner.precision import compute_dtype
from vipray.learner.process_group import ProcessGroup
from vipray.learner.rendezvous import Rendezvous
from vipray.learner.tensor_bytes import fill_chunks
from vipray.learner.totals import StepTotals
from vipray.records import Allocation

__all__ = ["Rendezvous", "Trainer", "TrainerOptions"]


@dataclass(frozen=True)
class TrainerOptions:
    """What a rank needs beyond the learner's settings.

    Attributes:
        model_folder: Hugging Face folder of the policy.
        estimator: advantage estimator of the allocation; `learner.estimator` goes before it.
        temperature: at which the rollouts are sampled.
        publish_dtype: dtype of published tensors, e.g. `bfloat16`.
        rounding: `stochastic` or `nearest`.
        chunk_nbytes: largest group of chunks of a publication.
        seed: of the stochastic rounding and of the order of mini-batches.
        max_completion_tokens: longest completion, for `length_norm: constant`.
        total_steps: optimiser steps of the whole run, for the learning rate's schedule.
        model_source: `model.path`, for checkpoints to say what they are of.
    """

    model_folder: Path
    estimator: str
    temperature: float
    publish_dtype: str
    rounding: str
    chunk_nbytes: int
    seed: int
    max_completion_tokens: int = 1
    total_steps: int = 1
    model_source: str = ""


class Trainer:
    """A rank of the FSDP2 group.

    Raises:
        LearnerGroupError: the ranks did not find each other in time.
        ConfigError: the model's files do not fit it.
    """

    def __init__(self, config: LearnerConfig, options: TrainerOptions, rendezvous: Rendezvous) -> None:
        self._options = options
        self._lora = config.lora
        torch.set_num_threads(config.threads)
        device_type = "cuda" if config.num_gpus else "cpu"
        publish_dtype: torch.dtype = getattr(torch, options.publish_dtype)
        self._group = ProcessGroup(rendezvous, device_type, config.collective_timeout_s)
        dtype = compute_dtype(config.precision, device_type, publish_dtype)
        if self._group.any(dtype == torch.float32):  # machines may differ
            dtype = torch.float32
        try:
            with self._group.named("loading the model"):
                self._model = PolicyModel(
                    config, options.model_folder, options.temperature, dtype, self._group, options.seed
                )
        except BaseException:
            self._group.leave()
            raise
        self._weights = PolicyWeights(
            self._model.module,
            num_ranks=self._group.num_ranks,
            publish_dtype=publish_dtype,
            rounding=options.rounding,
            computes_image=dtype == publish_dtype == torch.bfloat16,
            seed=options.seed,
        )
        self._optimizer = PolicyOptimizer(config, self._weights, options.total_steps)
        self._checkpointer = Checkpointer(
            self._weights.masters, self._optimizer.adamw, self._group.rank, self._group.timeout
        )
        self._manifest = self._weights.plan(options.chunk_nbytes)
        self._batch_options = _batch_options(config, options)
        self._objective = _objective(config)
        self._packing = PackingOptions(self._model.is_packed, config.max_row_tokens, self._model.pair_cost)

    @property
    def num_chunks(self) -> int:
        """Chunks of a publication that each rank gives."""
        return self._manifest.num_groups

    @property
    def summary(self) -> str:
        """One line about how it computes."""
        return self._model.summary

    def train(self, rollouts: Sequence[pa.RecordBatch], allocation: Allocation) -> dict[str, float]:
        """Take the optimiser steps of a verified batch and return metrics, the same on every rank.

        Engine and learner are compared (`engine/logprob_difference`) before the first optimiser step, on the groups
        that are trained on, or on one without a signal where there is no other. A batch without any signal changes
        nothing.

        Raises:
            BatchContractError: the batch is not exactly the allocation's, or a rollout does not fit together.
            LearnerGroupError: a rank did not come to the step, or left in its midst.
        """
        self._group.roll_call(f"coming to step {allocation.step}")
        batch = training_batch(rollouts, allocation, self._batch_options)
        with self._group.named(f"training on step {allocation.step}"):
            return self._train(batch, allocation.step)

    def publish(self, version: int) -> Iterator[Any]:
        """Yield each chunk (uint8 array) of what this rank holds of a version, and the `WeightManifest` last."""
        with self._group.named(f"publishing version {version}"):
            yield from fill_chunks(self._manifest, self._group.rank, self._weights.rows(version))
        yield replace(self._manifest, version=version)

    def save(self, root: Path, step: int, keep_last: int, run: Mapping[str, Any] | None = None) -> str | None:
        """Start saving a checkpoint below `root`, of the state after `step` training steps.

        Args:
            root: folder of all checkpoints.
            step: training steps taken.
            keep_last: complete checkpoints that are kept, this one included.
            run: what the driver says of the run, for the manifest.

        Returns what `finish_saving` says of the save before this one.

        Raises:
            LearnerGroupError: a rank did not come.
        """
        manifest = CheckpointManifest(
            step=step,
            model=self._options.model_source,
            trained=list(self._checkpointer.shapes),
            shapes=list(self._checkpointer.shapes.values()),
            rounding=self._options.rounding,
            seed=self._options.seed,
            lora_rank=self._lora.rank,
            lora_alpha=self._lora.alpha,
            run=dict(run or {}),
        )
        with self._group.named(f"saving the checkpoint of step {step}"):
            return self._checkpointer.save(root, manifest, keep_last)

    def finish_saving(self) -> str | None:
        """Wait until the last save is complete; return None, or one line on why it failed, the same on all ranks.

        Raises:
            LearnerGroupError: a rank did not come.
        """
        with self._group.named("completing the last checkpoint"):
            return self._checkpointer.finish()

    def load(self, folder: Path) -> int:
        """Go on from a checkpoint of any number of ranks; return the training steps that were taken before it.

        Raises:
            ConfigError: it is not complete.
            CheckpointError: it is of another model.
        """
        with self._group.named(f"loading checkpoint {folder}"):
            manifest = self._checkpointer.load(folder)
        self._weights.draw_image(manifest.step)
        return manifest.step

    def shutdown(self) -> None:
        """Complete what is being saved and leave the process group; others may have left already."""
        try:
            self._checkpointer.wait()
        finally:
            self._group.leave()

    def _train(self, batch: TrainingBatch, step: int) -> dict[str, float]:
        planned = [self._micro_batches(minibatch) for minibatch in batch.minibatches]
        start = self._start_logprobs([micro for micros, _ in planned for micro in micros], batch)
        totals, results = StepTotals(), list[StepResult]()
        if not any(micros for micros, _ in planned):  # nothing to learn, but the engine is checked against the learner
            with torch.no_grad():
                for micro_batch in self._micro_batches(batch.silent_groups[:1])[0]:
                    self._loss(micro_batch, None, totals, compares=True)
        is_drawn = False  # whether the weights are no longer those that sampled
        for number, (micro_batches, _) in enumerate(planned):
            for index, micro_batch in enumerate(micro_batches):
                self._model.will_accumulate(is_last=index == len(micro_batches) - 1)
                terms = self._loss(micro_batch, next(start), totals, compares=not is_drawn)
                # FSDP averages gradients over the ranks; the loss is a sum over them.
                (terms.loss * self._group.num_ranks).backward()
            if micro_batches:
                results.append(self._optimizer.step(step * len(planned) + number))
            if micro_batches or number == len(planned) - 1:
                self._weights.draw_image(step + 1, substep=len(planned) - 1 - number)
                is_drawn = True
        balances = [balance for micro_batches, balance in planned if micro_batches]
        return {
            **totals.reduce(self._group, num_steps=len(results)),
            **batch.metrics,
            **_optimizer_metrics(results),
            "learner/balance": sum(balances) / len(balances) if balances else 1.0,
        }

    def _loss(
        self, micro_batch: MicroBatch, start: torch.Tensor | None, totals: StepTotals, *, compares: bool
    ) -> LossTerms:
        """The loss of a micro-batch, counted into the step's figures."""
        logprobs, entropies = self._model.logprobs(micro_batch)
        needs_reference = self._objective.kl_coefficient > 0
        reference = self._model.reference_logprobs(micro_batch) if needs_reference else None
        terms = policy_loss(
            logprobs,
            micro_batch.to(logprobs.device),
            self._objective,
            start_logprobs=start,
            reference_logprobs=reference,
        )
        if not micro_batch.is_filler:
            totals.add(terms, entropies, compares=compares)
        return terms

    @torch.no_grad()
    def _start_logprobs(
        self, micro_batches: Sequence[MicroBatch], batch: TrainingBatch
    ) -> Iterator[torch.Tensor | None]:
        """Log-probabilities at the start of the step, micro-batch by micro-batch, where the loss needs them.

        With a single optimiser step the current policy is that of the start.
        """
        is_corrected = self._objective.correction != "none" or self._objective.rejects
        if not is_corrected or len(batch.minibatches) == 1:
            return iter([None] * len(micro_batches))
        return iter([self._model.logprobs(micro_batch)[0] for micro_batch in micro_batches])

    def _micro_batches(self, groups: Sequence[Sequence[TrainingRollout]]) -> tuple[list[MicroBatch], float]:
        """This rank's micro-batches, as many as every other's, and how even the ranks' loads are."""
        if not groups:
            return [], 1.0
        plan = plan_rows(groups, self._packing, self._group.num_ranks)
        token = groups[0][0].prompt_token_ids[0]
        return [self._tensors(row, token) for row in plan.rows[self._group.rank]], plan.balance

    def _tensors(self, row: Row, filler_token: int) -> MicroBatch:
        if not row:
            return filler(filler_token, packed=self._packing.packed)
        return packed_micro_batch(row) if self._packing.packed else plain_micro_batch(row[0])


def _batch_options(config: LearnerConfig, options: TrainerOptions) -> BatchOptions:
    return BatchOptions(
        estimator=config.estimator or options.estimator,
        aggregation=config.aggregation,
        length_norm=config.length_norm,
        max_completion_tokens=options.max_completion_tokens,
        max_positions=max_positions(options.model_folder),
        prompts_per_step=config.prompts_per_step,
        passes=config.passes_per_batch,
        mask_truncated=config.mask_truncated,
        keep_silent=config.kl_coefficient > 0,
        seed=options.seed,
    )


def _objective(config: LearnerConfig) -> Objective:
    return Objective(
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        correction=config.correction,
        correction_cap=config.correction_cap,
        reject_below=config.reject_below,
        reject_above=config.reject_above,
        kl_coefficient=config.kl_coefficient,
    )


def _optimizer_metrics(results: Sequence[StepResult]) -> dict[str, float]:
    taken = [result for result in results if result.is_taken]
    return {
        "learner/grad_norm": sum(result.grad_norm for result in taken) / max(len(taken), 1),
        "learner/learning_rate": taken[-1].learning_rate if taken else 0.0,
        "learner/optimizer_steps": float(len(taken)),
        "learner/skipped_step": float(not taken),
        "learner/nonfinite_gradient": float(len(results) - len(taken)),
    }
