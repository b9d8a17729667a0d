"""One rank of the learner group: a sharded model, its optimiser, training steps and publications.

Every method that computes is a collective: all ranks call it, with the same arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from vipray.arrays import ByteArray
from vipray.config import LearnerConfig
from vipray.learner.batch import training_batch
from vipray.learner.loss import LossTerms, clipped_policy_loss, token_logprobs
from vipray.learner.packing import PackedRow, block_mask, can_pack, pack_group, share_rows
from vipray.learner.tensor_bytes import fill_chunks, plan_manifest, round_stochastically
from vipray.records import Allocation, WeightManifest


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a group meet."""

    rank: int
    num_ranks: int
    host: str
    port: int


@dataclass(frozen=True)
class TrainerOptions:
    """What a rank needs beyond the learner's settings.

    Attributes:
        model_folder: Hugging Face folder of the policy.
        estimator: advantage estimator, `rloo` or `dr_grpo`.
        temperature: at which the rollouts are sampled.
        publish_dtype: dtype of published tensors, e.g. `bfloat16`.
        rounding: `stochastic` or `nearest`.
        chunk_nbytes: largest chunk of a publication.
        seed: of the stochastic rounding.
    """

    model_folder: Path
    estimator: str
    temperature: float
    publish_dtype: str
    rounding: str
    chunk_nbytes: int
    seed: int


class Trainer:
    """A rank of the FSDP2 group: fp32 master weights, one optimiser step a batch."""

    def __init__(self, config: LearnerConfig, options: TrainerOptions, rendezvous: Rendezvous) -> None:
        self._config = config
        self._options = options
        self._num_ranks = rendezvous.num_ranks
        self._rank = rendezvous.rank
        torch.set_num_threads(config.threads)
        self._device = torch.device("cuda" if config.num_gpus else "cpu")
        dist.init_process_group(
            "nccl" if config.num_gpus else "gloo",
            init_method=f"tcp://{rendezvous.host}:{rendezvous.port}",
            rank=rendezvous.rank,
            world_size=rendezvous.num_ranks,
            timeout=timedelta(seconds=config.collective_timeout_s),
        )
        self._model = self._build_model()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )
        warmup = max(1, config.warmup_steps)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda t: min(1.0, (t + 1) / warmup))
        self._packed = can_pack(self._model.config)
        self._manifest = plan_manifest(
            [(name, tuple(tensor.shape)) for name, tensor in self._published()],
            getattr(torch, options.publish_dtype),
            options.chunk_nbytes,
        )

    @property
    def num_chunks(self) -> int:
        """Chunks of a publication."""
        return len(self._manifest.chunk_nbytes)

    def train(self, rollouts: Sequence[pa.RecordBatch], allocation: Allocation) -> dict[str, float]:
        """Take one optimiser step on a verified batch and return metrics, the same on every rank.

        Engine and learner are compared (`engine/logprob_difference`) on the groups that are trained on, and on one
        group without a signal where there is no other. A batch without any signal changes nothing.

        Raises:
            BatchContractError: the batch is not exactly the allocation's.
        """
        batch = training_batch(rollouts, allocation, self._options.estimator)
        totals = _Totals()
        for row in self._my_rows(batch.groups):
            terms = self._forward(row)
            # FSDP averages gradients over the ranks; the loss is a sum over them.
            (terms.loss * self._num_ranks).backward()
            totals.add(row, terms)
        if not batch.groups:  # nothing to learn from, but the engine is still checked against the learner
            with torch.no_grad():
                for row in self._my_rows(batch.silent_groups[:1]):
                    totals.add(row, self._forward(row))
        learning_rate = float(self._schedule.get_last_lr()[0])
        stepped, grad_norm = self._optimizer_step() if batch.groups else (False, 0.0)
        return {
            **totals.reduce(self._device),
            "learner/grad_norm": grad_norm,
            "learner/learning_rate": learning_rate,
            "learner/skipped_step": float(not stepped),
            "learner/nonfinite_gradient": float(not math.isfinite(grad_norm)),
            "groups/without_signal": float(len(batch.silent_groups)),
            "rollouts/unscored": float(batch.num_unscored),
        }

    def publish(self, version: int) -> tuple[WeightManifest, list[ByteArray]] | None:
        """Gather the weights, round them to the engines' dtype and pack them; None on every rank but the first."""
        dtype = getattr(torch, self._options.publish_dtype)
        generator = torch.Generator().manual_seed(self._options.seed * 1_000_003 + version)
        stochastic = self._options.rounding == "stochastic" and dtype == torch.bfloat16
        rounded: list[torch.Tensor] = []
        for _, tensor in self._published():
            full = _full(tensor)  # a collective: every rank takes part
            if self._rank == 0:
                full = full.detach().cpu()
                rounded.append(round_stochastically(full, generator) if stochastic else full.to(dtype))
        if self._rank != 0:
            return None
        return replace(self._manifest, version=version), fill_chunks(self._manifest, rounded)

    def shutdown(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _build_model(self) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(
            self._options.model_folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        model.to(self._device)
        model.config.use_cache = False
        model.train()
        mesh = init_device_mesh(self._device.type, (self._num_ranks,))
        for layer in model.get_decoder().layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def _published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor that an engine loads, in the model's order; a tied output head comes under both its names."""
        yield from self._model.state_dict().items()

    def _my_rows(self, groups: Sequence[Sequence[Any]]) -> list[PackedRow]:
        """This rank's rows. Each rank runs as many, since every pass is a collective: the last are of no weight."""
        rows = [
            row
            for group in groups
            for row in pack_group(
                group,
                max_row_tokens=self._config.max_row_tokens,
                length_norm=self._config.length_norm,
                packed=self._packed,
            )
        ]
        if not rows:
            return []
        shares = share_rows(rows, self._num_ranks)
        longest = max(len(share) for share in shares)
        mine = shares[self._rank]
        return mine + [_weightless(min(rows, key=lambda row: row.cost)) for _ in range(longest - len(mine))]

    def _forward(self, row: PackedRow) -> LossTerms:
        mask = block_mask(row.segments, torch.float32).to(self._device) if self._packed else None
        output = self._model(
            input_ids=row.token_ids[None].to(self._device),
            position_ids=row.positions[None].to(self._device),
            attention_mask=mask,
            logits_to_keep=row.predictors.to(self._device),
        )
        logprobs = token_logprobs(output.logits[0], row.targets.to(self._device), self._options.temperature)
        return clipped_policy_loss(
            logprobs.cpu(), row, clip_low=self._config.clip_low, clip_high=self._config.clip_high
        )

    def _optimizer_step(self) -> tuple[bool, float]:
        """Clip and step. A gradient that is not finite is thrown away. Returns whether it stepped, and the norm."""
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.max_grad_norm)
        grad_norm = float(_full(norm))
        finite = math.isfinite(grad_norm)
        if finite:
            self._optimizer.step()
            self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        return finite, grad_norm


class _Totals:
    """Sums over the rows of a step, then over the ranks."""

    def __init__(self) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64)  # loss, tokens, |difference|, clipped
        self._max = 0.0

    def add(self, row: PackedRow, terms: LossTerms) -> None:
        if not row.weights.any():  # it only keeps the ranks in step
            return
        counts = [float(terms.loss.detach()), terms.num_tokens, terms.sum_logprob_difference, terms.num_clipped]
        self._sums += torch.tensor(counts, dtype=torch.float64)
        self._max = max(self._max, terms.max_logprob_difference)

    def reduce(self, device: torch.device) -> dict[str, float]:
        sums, largest = self._sums.to(device), torch.tensor(self._max, dtype=torch.float64, device=device)
        dist.all_reduce(sums)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        loss, tokens, difference, clipped = sums.tolist()
        return {
            "learner/loss": loss,
            "learner/tokens": tokens,
            "learner/clipped_share": clipped / max(tokens, 1.0),
            "engine/logprob_difference/mean": difference / max(tokens, 1.0),
            "engine/logprob_difference/max": float(largest),
        }


def _weightless(row: PackedRow) -> PackedRow:
    return replace(row, weights=torch.zeros_like(row.weights))


def _full(tensor: Any) -> torch.Tensor:
    """Gather a sharded tensor; a collective when it is one."""
    gather = getattr(tensor, "full_tensor", None)
    full: torch.Tensor = gather() if gather is not None else tensor
    return full
