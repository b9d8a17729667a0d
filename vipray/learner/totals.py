"""Figures of a step over all tokens of all ranks: sums, a maximum and a histogram, each added up once at its end."""

from __future__ import annotations

import math

import torch

from vipray.learner.loss import LossTerms
from vipray.learner.process_group import ProcessGroup

_SUMS = ("loss", "tokens", "clipped", "truncated", "rejected", "divergence", "entropy", "compared", "mismatch")
_EDGE = 2.0  # log-ratios beyond count in the outermost bins
_BINS = 2001  # an odd number puts zero in the middle of a bin; a bin is 0.002 wide
_QUANTILES = (0.01, 0.5, 0.99)


class StepTotals:
    """Adds up what the micro-batches of a step say of themselves."""

    def __init__(self) -> None:
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64)
        self._histogram = torch.zeros(_BINS, dtype=torch.float64)
        self._largest = torch.zeros(1, dtype=torch.float64)

    def add(self, terms: LossTerms, entropies: torch.Tensor, *, compares: bool) -> None:
        """Add a micro-batch.

        Args:
            terms: its loss.
            entropies: [M] nats.
            compares: whether the weights are still those that sampled.
        """
        log_ratio, gap = terms.log_ratio.double().cpu(), terms.mismatch.double().abs().cpu()
        flags = (terms.is_clipped, terms.is_truncated, terms.is_rejected, terms.divergence, entropies)
        values = [float(terms.loss.detach()), len(log_ratio), *(float(flag.sum()) for flag in flags)]
        values += [len(gap), float(gap.sum())] if compares else [0.0, 0.0]
        self._sums += torch.tensor(values, dtype=torch.float64)
        self._histogram += torch.histc(log_ratio.clamp(-_EDGE, _EDGE), _BINS, -_EDGE, _EDGE)
        if compares and len(gap):
            self._largest = torch.maximum(self._largest, gap.max()[None])

    def reduce(self, group: ProcessGroup, num_steps: int = 1) -> dict[str, float]:
        """The figures over all ranks, the same on each of them; a collective.

        Args:
            group: of the ranks.
            num_steps: optimiser steps, of which the loss is the mean.
        """
        sums = dict(zip(_SUMS, group.sum(self._sums).tolist(), strict=True))
        histogram, largest = group.sum(self._histogram), float(group.max(self._largest))
        tokens, compared = max(sums["tokens"], 1.0), sums["compared"]
        found = {
            "learner/loss": sums["loss"] / max(num_steps, 1),
            "learner/tokens": sums["tokens"],
            "learner/clipped_share": sums["clipped"] / tokens,
            "learner/truncated_share": sums["truncated"] / tokens,
            "learner/rejected_share": sums["rejected"] / tokens,
            "learner/kl": sums["divergence"] / tokens,
            "learner/entropy": sums["entropy"] / tokens,
            "engine/logprob_difference/mean": sums["mismatch"] / compared if compared else math.nan,
            "engine/logprob_difference/max": largest if compared else math.nan,
            "engine/logprob_difference/tokens": compared,
        }
        return found | {f"learner/ratio/q{round(100 * q):02d}": _quantile(histogram, q) for q in _QUANTILES}


def _quantile(histogram: torch.Tensor, q: float) -> float:
    """Quantile of the importance ratio, from the histogram of its logarithm; 1 where nothing was counted."""
    if not histogram.any():
        return 1.0
    place = int(torch.searchsorted(histogram.cumsum(0), q * histogram.sum()))
    centre = (min(place, _BINS - 1) + 0.5) * 2 * _EDGE / _BINS - _EDGE
    return float(torch.tensor(centre, dtype=torch.float64).exp())
