"""The policy as the loss sees it: log-probabilities of the completion tokens of a micro-batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from vipray.config import LearnerConfig
from vipray.learner.attention_mask import attention_mask
from vipray.learner.lora import set_adapters
from vipray.learner.loss import token_logprobs
from vipray.learner.micro_batch import MicroBatch, packed_micro_batch, plain_micro_batch
from vipray.learner.packing import TrainingRollout, Unit, why_not_packed
from vipray.learner.process_group import ProcessGroup
from vipray.learner.sharded_model import build_sharded_model

_TEST_PROMPT, _TEST_COMPLETIONS = 12, (7, 5, 3)  # tokens of the packing self-test
_TEST_TOLERANCE = {torch.float32: 5e-3, torch.bfloat16: 0.25}  # nats; a token that sees too much is off by far more


class PolicyModel:
    """A sharded model, its reference if the loss needs one, and whether groups are packed.

    Args:
        config: of the learner.
        folder: Hugging Face folder.
        temperature: at which the rollouts are sampled.
        dtype: that the model computes in.
        group: of the ranks.
        seed: of adapters.
    """

    def __init__(
        self,
        config: LearnerConfig,
        folder: Path,
        temperature: float,
        dtype: torch.dtype,
        group: ProcessGroup,
        seed: int,
    ) -> None:
        self._temperature = temperature
        self._dtype = dtype
        self._device = torch.device(group.mesh.device_type)
        self._attention = _attention(config, self._device)
        self._has_adapters = bool(config.lora.rank)
        self._group = group

        def build(*, lora: bool) -> Any:
            return build_sharded_model(
                folder,
                group.mesh,
                compute_dtype=dtype,
                attention=self._attention,
                activation_checkpointing=config.activation_checkpointing,
                lora=config.lora if lora else None,
                seed=seed,
            )

        self.module = build(lora=True)
        self._reference: Any = None
        if config.kl_coefficient and not self._has_adapters:
            self._reference = build(lora=False).requires_grad_(False)
        self.why_plain = self._why_plain(config.packing)

    @property
    def is_packed(self) -> bool:
        """Whether the completions of a group share their prompt."""
        return self.why_plain is None

    @property
    def pair_cost(self) -> float:
        """Arithmetic of one attended pair of tokens over that of one token in the model's matrices."""
        config = self.module.config
        width = getattr(config, "hidden_size", 0) * getattr(config, "num_hidden_layers", 0)
        return 2.0 * width / sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def summary(self) -> str:
        """One line about how it computes."""
        packing = "groups packed behind their prompt" if self.is_packed else f"plain rows: {self.why_plain}"
        return f"{str(self._dtype).removeprefix('torch.')}, {self._attention}, {packing}"

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [M] and entropies [M] of a micro-batch's completion tokens, in fp32."""
        return self._forward(self.module, batch)

    def will_accumulate(self, *, is_last: bool) -> None:
        """Announce a forward and backward pass; after the last one of an optimiser step gradients are reduced.

        A rank alone has nobody to gather from: its weights stay gathered in between, and gradients add up in place.
        With several ranks, whole gradients would take more memory than a rank has for its share.
        """
        if self._group.num_ranks == 1:
            self.module.set_requires_gradient_sync(is_last)
            self.module.set_reshard_after_forward(False)
            self.module.set_reshard_after_backward(is_last)

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Log-probabilities [M] under the policy that training began with."""
        if not self._has_adapters:
            return self._forward(self._reference, batch)[0]
        set_adapters(self.module, enabled=False)
        try:
            return self._forward(self.module, batch)[0]
        finally:
            set_adapters(self.module, enabled=True)

    def _forward(self, module: Any, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        batch = batch.to(self._device)
        inputs: dict[str, Any] = {"input_ids": batch.token_ids, "logits_to_keep": batch.keep}
        if batch.positions is not None:
            inputs["position_ids"] = batch.positions
            inputs["attention_mask"] = attention_mask(batch, self._attention, self._dtype)
        logits = module(**inputs).logits.flatten(0, 1)
        if not torch.is_grad_enabled():  # FSDP keeps weights gathered for a backward pass, which does not come
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()
        if logits.shape[0] != len(batch.select):  # of a padded batch
            logits = logits[batch.select]
        return token_logprobs(logits, batch.targets, self._temperature)

    @torch.no_grad()
    def _why_plain(self, packing: str) -> str | None:
        """Reason for plain rows: asked for, an architecture that cannot be packed, or a failed self-test."""
        if packing == "off":
            return "learner.packing=off"
        reason = why_not_packed(self.module.config)
        if reason is not None:
            return reason
        unit = _test_unit(self.module.config.vocab_size)
        packed, _ = self.logprobs(packed_micro_batch((unit,)))
        alone = torch.cat([self.logprobs(plain_micro_batch(Unit((rollout,))))[0] for rollout in unit.rollouts])
        difference = float((packed - alone).abs().max().nan_to_num(nan=math.inf))
        if not self._group.any(difference > _TEST_TOLERANCE[self._dtype]):
            return None
        return f"packed log-probabilities are off by {difference:.3g} nats in a self-test"


def _attention(config: LearnerConfig, device: torch.device) -> str:
    if config.attention != "auto":
        return config.attention
    return "flex_attention" if device.type == "cuda" and config.packing == "auto" else "sdpa"


def _test_unit(vocab_size: int) -> Unit:
    """A made-up group, the same on every rank."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocab_size, (count,), generator=generator).tolist())

    prompt = tokens(_TEST_PROMPT)
    rollouts = [TrainingRollout(prompt, tokens(n), (0.0,) * n, 0.0, 0.0) for n in _TEST_COMPLETIONS]
    return Unit(tuple(rollouts))
