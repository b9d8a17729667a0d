from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from vipray.allocation import gains
from vipray.allocation.estimators import ESTIMATORS
from vipray.allocation.policies import POLICIES, allocate_by_policy
from vipray.allocation.predicted_batch import predicted_batch


def worth(policy, p, a, n, estimator="rloo"):
    """What each policy maximises, written down as in its paper: the worth of whole groups, not of one more rollout."""
    p, a, n = (np.asarray(values, dtype=np.float64) for values in (p, a, n))
    variance = ESTIMATORS[estimator].variance(n)
    values = {
        "uniform": -1.0 / n,
        "vip": -a * variance,
        "log_success": -a / np.maximum(p, 0.05) ** 2 * variance,
        "inverse_accuracy": -1.0 / np.maximum(p, 0.05) ** 2 / n,
        "inverse_variance": -1.0 / np.maximum(a, 0.19) ** 2 / n,
        "knapsack": (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2,
    }
    return float(values[policy].sum())


rows = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=4)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "mixed_group"])
@settings(max_examples=60, deadline=None)
@given(rows, st.integers(3, 4), st.integers(0, 4), st.floats(0, 1), st.sampled_from(["rloo", "dr_grpo"]))
def test_the_allocation_of_each_policy_equals_brute_force(policy, rows, lower, room, place, estimator):
    p = np.array([row[0] for row in rows])
    a = 4 * p * (1 - p) * [row[1] for row in rows]
    budget, upper = round(len(p) * (lower + place * room)), lower + room
    n = allocate_by_policy(policy, p, budget, lower=lower, upper=upper, estimator=estimator, gradient_variance=a)
    assert n.sum() == budget and n.min() >= lower and n.max() <= upper and n.dtype == np.int64
    candidates = itertools.product(range(lower, upper + 1), repeat=len(p))
    best = max(worth(policy, p, a, m, estimator) for m in candidates if sum(m) == budget)
    assert worth(policy, p, a, n, estimator) == pytest.approx(best, rel=1e-12, abs=1e-12)


def expected_mixed(p, share, n):
    """1 - E[pⁿ] - E[(1 - p)ⁿ] by numerical integration over the Beta density."""
    size = share / (1 - share)  # α + β, from E[p (1 - p)] = m (1 - m) (α + β) / (α + β + 1)
    beta = stats.beta(p * size, (1 - p) * size)
    return integrate.quad(lambda x: (1 - x**n - (1 - x) ** n) * beta.pdf(x), 0, 1, limit=200)[0]


@pytest.mark.parametrize(("p", "share"), [(0.5, 0.75), (0.3, 0.9), (0.6, 0.8)])
def test_mixed_group_gains_are_those_of_a_beta_posterior(p, share):
    a = 4 * p * (1 - p) * share
    counts = np.arange(2, 9)
    found = gains.mixed_group(predicted_batch(np.array([p]), gradient_variance=np.array([a])), counts)[0]
    mixed = [expected_mixed(p, share, n) for n in range(2, 10)]
    assert found == pytest.approx(np.diff(mixed), abs=1e-8)


@settings(max_examples=100, deadline=None)
@given(rows, st.floats(0, 1))
def test_mixed_group_equals_brute_force_over_its_own_gains(rows, place):
    p = np.array([row[0] for row in rows])
    a = 4 * p * (1 - p) * [row[1] for row in rows]
    budget = round(len(p) * (2 + place * 4))
    n = allocate_by_policy("mixed_group", p, budget, lower=2, upper=6, gradient_variance=a)
    table = gains.mixed_group(predicted_batch(p, gradient_variance=a), np.arange(2, 6))

    def total(counts):
        return sum(table[q, : count - 2].sum() for q, count in enumerate(counts))

    candidates = itertools.product(range(2, 7), repeat=len(p))
    assert total(n) == pytest.approx(max(total(m) for m in candidates if sum(m) == budget), abs=1e-12)


@pytest.mark.parametrize("a", [0.0, 0.64, 0.7])
def test_mixed_group_at_the_ends_of_what_the_moments_allow(a):
    batch = predicted_batch(np.array([0.2]), gradient_variance=np.array([a]))  # 4 · 0.2 · 0.8 = 0.64
    n = np.arange(2, 20)
    point = 0.2**n * 0.8 + 0.8**n * 0.2
    expected = np.zeros(len(n)) if a == 0.0 else point  # all mass on 0 and 1: no group is ever mixed
    assert gains.mixed_group(batch, n)[0] == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(rows, st.sampled_from(["rloo", "dr_grpo"]))
def test_gains_are_not_negative_and_never_rise_within_a_prompt(policy, rows, estimator):
    p = np.array([row[0] for row in rows])
    batch = predicted_batch(p, gradient_variance=4 * p * (1 - p) * [row[1] for row in rows], estimator=estimator)
    found = POLICIES[policy].gain(batch, np.arange(3, 64))
    assert found.shape == (len(p), 61) and np.isfinite(found).all()
    assert (found >= 0).all() and (np.diff(found, axis=1) <= 0).all()


@pytest.mark.parametrize("policy", POLICIES)
@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_the_batch_changes_nothing_but_ties(policy, rows, random):
    p = np.array([row[0] for row in rows])
    a = 4 * p * (1 - p) * [row[1] for row in rows]
    order = list(range(len(p)))
    random.shuffle(order)
    n = allocate_by_policy(policy, p, 6 * len(p), lower=2, upper=16, gradient_variance=a)
    shuffled = allocate_by_policy(policy, p[order], 6 * len(p), lower=2, upper=16, gradient_variance=a[order])

    def taken(counts, p, a):
        table = POLICIES[policy].gain(predicted_batch(p, gradient_variance=a), np.arange(2, 16))
        return np.sort(np.concatenate([row[: count - 2] for row, count in zip(table, counts, strict=True)]))

    assert taken(shuffled, p[order], a[order]) == pytest.approx(taken(n, p, a))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("p", "budget", "upper"),
    [
        ([0.0, 0.0, 0.0], 8, 9),
        ([1.0, 1.0], 9, 9),
        ([0.3], 7, 9),
        ([0.5, 0.1], 4, 9),
        ([0.5, 0.1], 18, 9),
        ([0.4], 2, 2),
    ],
)
def test_degenerate_batches(policy, p, budget, upper):
    n = allocate_by_policy(policy, np.array(p), budget, lower=2, upper=upper)
    assert n.sum() == budget and n.min() >= 2 and n.max() <= upper
    assert n.max() - n.min() <= 1 or len(set(p)) > 1  # equal prompts, equal counts


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0, 1))
def test_uniform_is_even_and_the_first_prompts_get_one_more(probs, place):
    budget = round(len(probs) * (2 + 10 * place))
    share, rest = divmod(budget, len(probs))
    n = allocate_by_policy("uniform", np.array(probs), budget, lower=2, upper=12)
    assert n.tolist() == [share + 1] * rest + [share] * (len(probs) - rest)


def test_uniform_refuses_a_budget_that_does_not_fit():
    with pytest.raises(ValueError, match="5 prompts"):
        allocate_by_policy("uniform", np.full(5, 0.5), 31, lower=2, upper=6)


def test_inverse_policies_give_counts_in_proportion():
    p = np.array([0.8, 0.4, 0.2, 0.0])
    n = allocate_by_policy("inverse_accuracy", p, 230, lower=2, upper=300)
    assert n.tolist() == [10, 20, 40, 160]  # 1 / p is bounded at 20
    a = np.array([1.0, 0.5, 0.25])
    n = allocate_by_policy("inverse_variance", np.full(3, 0.5), 70, lower=2, upper=80, gradient_variance=a)
    assert n.tolist() == [10, 20, 40]


def test_log_success_is_vip_with_the_weights_of_that_objective():
    p = np.array([0.9, 0.5, 0.2, 0.01])
    weighted = allocate_by_policy("vip", p, 40, lower=2, upper=30, prompt_weight=1 / np.maximum(p, 0.05))
    assert allocate_by_policy("log_success", p, 40, lower=2, upper=30).tolist() == weighted.tolist()
    assert weighted.tolist() != allocate_by_policy("vip", p, 40, lower=2, upper=30).tolist()


@pytest.mark.parametrize("policy", set(POLICIES) - {"vip"})
def test_only_vip_uses_the_weights(policy):
    p, weight = np.array([0.9, 0.5, 0.2]), np.array([0.1, 1.0, 5.0])
    n = allocate_by_policy(policy, p, 24, lower=2, upper=20)
    assert allocate_by_policy(policy, p, 24, lower=2, upper=20, prompt_weight=weight).tolist() == n.tolist()
