from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from vipray.evaluation.stale_policy import (
    SoftmaxPolicy,
    StaleArm,
    StaleSettings,
    chosen,
    estimate_gradient,
    final_success,
    initial_policy,
    token_weights,
    train,
)

TINY = StaleSettings(num_prompts=3, num_features=2, num_tokens=2, num_symbols=2, batch_size=1, rollouts=2, steps=5)
ON_POLICY = StaleArm(0, "none")
TOLERANCE = 0.01  # of mean success


def policies():
    """A policy and an older one of the same prompts."""
    now, old = (initial_policy(TINY, np.random.default_rng(0)) for _ in range(2))
    rng = np.random.default_rng(1)
    now.shared += rng.normal(size=now.shared.shape)
    now.own += 0.7 * rng.normal(size=now.own.shape)
    return now, old


def expected_gradient(now, old, correction, settings):
    """Over all pairs of rollouts of one prompt, each by its probability under the policy that samples."""
    rows = np.array([1])
    rollouts = list(itertools.product(range(2), repeat=2))
    total = [np.zeros_like(now.shared), np.zeros_like(now.own)]
    for pair in itertools.product(rollouts, repeat=2):
        symbols = np.array([pair])
        probability = chosen(old.probs(rows)[:, None], symbols).prod()
        for sum_, part in zip(total, estimate_gradient(now, old, rows, symbols, correction, settings), strict=True):
            sum_ += probability * part
    return total


def numeric_gradient(policy, step=1e-6):
    """Of the success of prompt 1, divided by T."""
    gradients = []
    for name in ("shared", "own"):
        values = getattr(policy, name)
        slope = np.zeros_like(values)
        for index in np.ndindex(values.shape):
            success = []
            for sign in (1, -1):
                moved = values.copy()
                moved[index] += sign * step
                success.append(dataclasses.replace(policy, **{name: moved}).success_prob()[1])
            slope[index] = (success[0] - success[1]) / (2 * step) / TINY.num_tokens
        gradients.append(slope)
    return gradients


def test_with_the_whole_sequence_ratio_old_rollouts_give_the_gradient_of_the_policy_now():
    now, old = policies()
    settings = dataclasses.replace(TINY, correction_cap=math.inf)
    for found, expected in zip(expected_gradient(now, old, "sequence", settings), numeric_gradient(now), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_without_correction_they_do_not():
    now, old = policies()
    found, _ = expected_gradient(now, old, "none", TINY)
    assert np.abs(found - numeric_gradient(now)[0]).max() > 1e-3


@pytest.mark.parametrize("correction", ["none", "token", "sequence"])
def test_on_policy_every_correction_is_none(correction):
    now, _ = policies()
    for found, expected in zip(expected_gradient(now, now, correction, TINY), numeric_gradient(now), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-8)
    assert np.array_equal(train(TINY, StaleArm(0, correction), 3), train(TINY, ON_POLICY, 3))


def test_weights_are_ratios_cut_at_the_cap():
    now, sampling = np.array([[[0.9, 0.5]]]), np.array([[[0.3, 0.5]]])
    assert token_weights(now, sampling, "none", TINY) == pytest.approx(np.array([[[3.0, 1.0]]]))
    assert token_weights(now, sampling, "token", TINY) == pytest.approx(np.array([[[2.0, 1.0]]]))
    assert token_weights(now, sampling, "sequence", TINY) == pytest.approx(np.array([[[2.0, 2.0]]]))


def test_without_correction_ratios_beyond_the_clip_have_no_gradient():
    even, skewed = (
        SoftmaxPolicy(np.zeros((1, 1)), np.zeros((1, 1, 2)), np.array([[[logit, 0.0]]]), np.array([[0]]))
        for logit in (0.0, 2.0)
    )
    symbols = np.array([[[0], [1]]])  # one right, one wrong
    settings = dataclasses.replace(TINY, num_tokens=1)
    _, clipped = estimate_gradient(skewed, even, np.array([0]), symbols, "none", settings)
    _, whole = estimate_gradient(even, even, np.array([0]), symbols, "none", settings)
    assert np.array_equal(clipped, np.zeros_like(clipped)) and np.abs(whole).max() > 0.1


def test_a_seed_repeats_and_arms_share_their_start():
    settings = StaleSettings(steps=8)
    first, again, stale = (train(settings, arm, 5) for arm in (ON_POLICY, ON_POLICY, StaleArm(2, "token")))
    assert np.array_equal(first, again) and first.shape == (9,)
    assert np.array_equal(first[:2], stale[:2]) and not np.array_equal(first, stale)


def test_one_version_of_staleness_with_correction_learns_as_much_as_none():
    settings, seeds = StaleSettings(), 12
    on_policy = final_success(settings, ON_POLICY, seeds)
    assert on_policy.mean() > train(settings, ON_POLICY, 0)[0] + 0.25  # there is something to lose
    for correction in ("token", "sequence"):
        difference = final_success(settings, StaleArm(1, correction), seeds) - on_policy
        half_width = 2.2 * difference.std(ddof=1) / math.sqrt(seeds)  # t quantile of 11 degrees of freedom
        assert abs(difference.mean()) + half_width < TOLERANCE
