"""Walking through a log without looking ahead: what an allocation would have been worth.

At every step the predictor predicts the step's prompts, a policy splits the step's budget over them, and then the
outcomes are shown. The variance that the allocation would have had is estimated from the visit that was predicted,
without bias: for s successes and f failures in n rollouts, `s f / (n (n - 1))` has the expectation p (1 - p). So

    ratio = Σ_q v_q g(n_q) / Σ_q v_q g(n̄),   v_q = s f / (n (n - 1)),   n̄ the uniform split

is below 1 where the policy beats uniform allocation, and the single v_q, noisy as they are, need no smoothing.

Legend: Q prompts, B prompts of a step, p̂ prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.policies import allocate_by_policy
from vipray.arrays import FloatArray, IntArray
from vipray.evaluation.pass_rate_log import PassRateLog, Visits
from vipray.predictors.moments import beta_moments


class Forecaster(Protocol):
    """What can be judged: every predictor, and yardsticks."""

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """`success_prob` [B] and `gradient_variance` [B]."""

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Learn from the outcomes of a step."""


BUCKETS = {"0": (0, 0), "1": (1, 1), "2-4": (2, 4), "5-14": (5, 14), "15+": (15, 10**9)}
BANDS = {"p<0.1": (0.0, 0.1), "0.1-0.3": (0.1, 0.3), "0.3-0.7": (0.3, 0.7), "0.7-0.9": (0.7, 0.9), "p>0.9": (0.9, 1.1)}
_ECE_BINS = 10


@dataclass(frozen=True)
class Trace:
    """One row for each visit that was predicted: what was predicted and what it would have cost.

    Attributes:
        row: [N] prompt.
        visit: [N] how often the prompt had been seen before.
        success_prob: [N] prediction.
        successes: [N] outcome.
        trials: [N] outcome.
        variance: [N] v g(n) under the policy's allocation.
        uniform_variance: [N] v g(n) under the uniform one.
    """

    row: IntArray
    visit: IntArray
    success_prob: FloatArray
    successes: IntArray
    trials: IntArray
    variance: FloatArray
    uniform_variance: FloatArray

    def of_visits(self, first: int, last: int) -> Trace:
        """The part in which prompts had been seen `first` to `last` times."""
        keep = (self.visit >= first) & (self.visit <= last)
        return Trace(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Scores:
    """Scores of a trace.

    Attributes:
        count: predicted visits.
        ratio: realised gradient variance relative to uniform allocation; below 1 is better.
        ratio_interval: 95 % interval of it, by a bootstrap over prompts.
        log_loss: binomial, in nats a rollout.
        log_loss_by_band: the same for visits predicted within a band of probabilities (`BANDS`), where there are any;
            hard prompts, predicted below 0.1, come first.
        mae: mean of |p̂ - observed rate|; sampling noise alone keeps it above zero.
        denoised_rmse: root of the mean of (p̂ - p)², the sampling variance of the observed rate taken off.
        calibration_error: mean |mean p̂ - mean rate| over ten bins of equal size.
    """

    count: int
    ratio: float
    ratio_interval: tuple[float, float]
    log_loss: float
    log_loss_by_band: dict[str, float]
    mae: float
    denoised_rmse: float
    calibration_error: float


def walk(
    log: PassRateLog,
    predictor: Forecaster,
    policies: Sequence[str],
    *,
    budget_per_prompt: int,
    lower: int,
    upper: int,
    estimator: str,
    learn: Callable[[int, Visits], Visits] = lambda _, visits: visits,
    judge: Callable[[int, Visits], bool] = lambda _step, _visits: True,
) -> dict[str, Trace]:
    """Predict, allocate by each policy, then observe, step after step; return a trace for each policy.

    Args:
        log: the log.
        predictor: a fresh predictor of the log's prompts.
        policies: names of allocation policies.
        budget_per_prompt: rollouts of a step by prompt.
        lower: L.
        upper: U.
        estimator: whose g(n) counts.
        learn: what the predictor is shown of a step; default everything.
        judge: whether a step counts; default all.
    """
    g = ESTIMATORS[estimator].variance
    seen = np.zeros(len(log.prompt_ids), dtype=np.int64)
    even = np.array([budget_per_prompt])
    parts: dict[str, list[tuple[FloatArray | IntArray, ...]]] = {policy: [] for policy in policies}
    for step, visits in enumerate(log.steps):
        ids = [log.prompt_ids[row] for row in visits.rows]
        if judge(step, visits):
            p, gradient_variance = predictor.predict(ids)
            v = unbiased_variance(visits.successes, visits.trials)
            known = (visits.rows, seen[visits.rows], p, visits.successes, visits.trials)
            for policy in policies:
                n = allocate_by_policy(
                    policy,
                    p,
                    budget_per_prompt * len(ids),
                    lower=lower,
                    upper=upper,
                    estimator=estimator,
                    gradient_variance=gradient_variance,
                )
                parts[policy].append((*known, v * g(n), v * g(even)))
        shown = learn(step, visits)
        predictor.observe([log.prompt_ids[row] for row in shown.rows], shown.successes, shown.trials)
        seen[shown.rows] += 1
    return {
        policy: Trace(*(np.concatenate(column) for column in zip(*rows, strict=True))) for policy, rows in parts.items()
    }


def unbiased_variance(successes: IntArray, trials: IntArray) -> FloatArray:
    """`s f / (n (n - 1))` [...]: an unbiased estimate of p (1 - p) from at least two trials."""
    return successes * (trials - successes) / (trials * (trials - 1.0))


def score(trace: Trace, *, num_bootstrap: int = 400, seed: int = 0) -> Scores | None:
    """Score a trace; None where it holds no visit with any variance."""
    if not len(trace.row) or not trace.uniform_variance.sum():
        return None
    rate = trace.successes / trace.trials
    p = np.clip(trace.success_prob, 1e-9, 1.0 - 1e-9)
    log_likelihood = trace.successes * np.log(p) + (trace.trials - trace.successes) * np.log(1.0 - p)
    noise = unbiased_variance(trace.successes, trace.trials) / trace.trials
    order = np.argsort(p, kind="stable")
    bins = [part for part in np.array_split(order, _ECE_BINS) if part.size]
    gaps = [abs(float(p[part].mean() - rate[part].mean())) * len(part) for part in bins]
    return Scores(
        count=len(p),
        ratio=float(trace.variance.sum() / trace.uniform_variance.sum()),
        ratio_interval=_bootstrap_ratio(trace, num_bootstrap, seed),
        log_loss=float(-log_likelihood.sum() / trace.trials.sum()),
        log_loss_by_band={
            band: float(-log_likelihood[inside].sum() / trace.trials[inside].sum())
            for band, (low, high) in BANDS.items()
            if (inside := (trace.success_prob >= low) & (trace.success_prob < high)).any()
        },
        mae=float(np.abs(p - rate).mean()),
        denoised_rmse=float(np.sqrt(max(0.0, float(((p - rate) ** 2 - noise).mean())))),
        calibration_error=float(sum(gaps) / len(p)),
    )


def _bootstrap_ratio(trace: Trace, num_bootstrap: int, seed: int) -> tuple[float, float]:
    """95 % percentile interval of the ratio when prompts are drawn anew, each with all of its visits."""
    _, prompt = np.unique(trace.row, return_inverse=True)
    policy = np.bincount(prompt, weights=trace.variance)
    uniform = np.bincount(prompt, weights=trace.uniform_variance)
    draws = np.random.default_rng(seed).multinomial(len(policy), np.full(len(policy), 1 / len(policy)), num_bootstrap)
    below = draws @ uniform
    ratios = (draws @ policy)[below > 0] / below[below > 0]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


class Smoother:
    """Not a predictor but a yardstick: it looks at the visits before and after, though not at the one it predicts.

    The rate pooled over up to `reach` visits on either side, under Jeffreys' prior. What it gains over uniform
    allocation is about all that could be gained.
    """

    def __init__(self, log: PassRateLog, reach: int = 8) -> None:
        self._row = {prompt_id: row for row, prompt_id in enumerate(log.prompt_ids)}
        self._history: list[list[tuple[int, int]]] = [[] for _ in log.prompt_ids]
        for visits in log.steps:
            for row, successes, trials in zip(visits.rows, visits.successes, visits.trials, strict=True):
                self._history[row].append((int(successes), int(trials)))
        self._reach = reach
        self._visit = np.zeros(len(log.prompt_ids), dtype=np.int64)

    def predict(self, prompt_ids: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Moments of the pooled posterior of each prompt's neighbouring visits."""
        counts = np.array([self._neighbours(self._row[prompt_id]) for prompt_id in prompt_ids], dtype=np.float64)
        return beta_moments(counts[:, 0] + 0.5, counts[:, 1] - counts[:, 0] + 0.5)

    def observe(self, prompt_ids: Sequence[str], successes: IntArray, trials: IntArray) -> None:
        """Move on to the prompts' next visits."""
        self._visit[[self._row[prompt_id] for prompt_id in prompt_ids]] += 1

    def _neighbours(self, row: int) -> tuple[int, int]:
        visit, history = int(self._visit[row]), self._history[row]
        near = history[max(0, visit - self._reach) : visit] + history[visit + 1 : visit + 1 + self._reach]
        return sum(s for s, _ in near), sum(n for _, n in near)


def hold_out(log: PassRateLog, fraction: float, seed: int) -> tuple[PassRateLog, set[int]]:
    """A log for judging predictions of prompts that were never seen: the first visits alone, the held-out ones last.

    Returns the log and its held-out rows. All other prompts come in its first step, a share of them at a time.
    """
    first: dict[int, tuple[int, int]] = {}
    for visits in log.steps:
        for row, successes, trials in zip(visits.rows, visits.successes, visits.trials, strict=True):
            first.setdefault(int(row), (int(successes), int(trials)))
    order = np.random.default_rng(seed).permutation(sorted(first))
    num_held = max(1, round(fraction * len(order)))
    held, shown = order[:num_held], order[num_held:]
    steps = [_first_visits(part, first) for part in np.array_split(shown, 10) if part.size]
    return PassRateLog(log.prompt_ids, (*steps, _first_visits(held, first)), log.texts, log.tasks), set(held.tolist())


def _first_visits(rows: IntArray, first: dict[int, tuple[int, int]]) -> Visits:
    successes, trials = zip(*(first[int(row)] for row in rows), strict=True)
    return Visits(rows.astype(np.int64), np.array(successes), np.array(trials))
