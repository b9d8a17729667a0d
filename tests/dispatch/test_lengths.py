from __future__ import annotations

import numpy as np
import pytest

from vipray.dispatch.lengths import LengthModel

TASK_OF = {"a0": "a", "a1": "a", "b0": "b", "b1": "b"}


def test_before_anything_was_seen_all_are_as_long_as_the_prior():
    assert LengthModel(TASK_OF, prior_tokens=50.0).expect(["a0", "b1"]).tolist() == [50.0, 50.0]


def test_each_level_is_shrunk_towards_the_one_above():
    model = LengthModel(TASK_OF, prior_tokens=50.0)
    model.observe(["a0"] * 6, [100] * 6)
    everything = (600 + 2 * 50) / 8
    task_a = (600 + 2 * everything) / 8
    prompt = (600 + 2 * task_a) / 8
    assert model.expect(["a0", "a1", "b0"]) == pytest.approx([prompt, task_a, everything])


def test_much_evidence_is_believed_and_order_within_an_observation_does_not_matter():
    lengths = np.random.default_rng(0).integers(1, 400, 3000)
    forward, backward = LengthModel(TASK_OF, prior_tokens=50.0), LengthModel(TASK_OF, prior_tokens=50.0)
    forward.observe(["a0"] * 3000, lengths)
    backward.observe(["a0"] * 3000, lengths[::-1])
    assert forward.expect(["a0"])[0] == pytest.approx(lengths.mean(), rel=1e-3)
    assert forward.expect(["a0"]) == pytest.approx(backward.expect(["a0"]))


def test_evidence_weighs_half_after_a_half_life():
    model = LengthModel({"a0": "a", "b0": "b"}, prior_tokens=1.0, half_life=4.0)
    model.observe(["a0"] * 1000, [100] * 1000)
    for _ in range(4):
        model.observe(["b0"], [1])
    model.observe(["a0"] * 500, [300] * 500)  # the fifth: the old thousand weigh a little less than 500
    old = 1000 * 0.5 ** (5 / 4)
    assert model.expect(["a0"])[0] == pytest.approx((100 * old + 300 * 500) / (old + 500), rel=2e-3)


def test_a_restored_state_goes_on_the_same():
    rng = np.random.default_rng(1)
    model, other = LengthModel(TASK_OF, prior_tokens=50.0), LengthModel(TASK_OF, prior_tokens=50.0)
    ids = list(TASK_OF)
    model.observe(ids, rng.integers(1, 99, 4))
    other.load_state_dict(model.state_dict())
    for either in (model, other):
        either.observe(ids[:2], [7, 9])
    assert np.array_equal(model.expect(ids), other.expect(ids))
    with pytest.raises(ValueError, match="belong to other prompts"):
        LengthModel({"x": "a"}, prior_tokens=50.0).load_state_dict(model.state_dict())


def test_the_error_is_that_of_the_expectation_before_the_lengths_were_seen():
    model = LengthModel(TASK_OF, prior_tokens=50.0)
    model.observe(["a0", "b0"], [40, 80])
    assert model.metrics() == {"tokens": 60.0, "absolute_error": 20.0}
    model.observe([], [])
    assert model.metrics()["tokens"] == 60.0


def test_what_cannot_be_is_refused():
    model = LengthModel(TASK_OF, prior_tokens=50.0)
    with pytest.raises(ValueError, match="1 prompt ids have no known task, the first is 'zz'"):
        model.expect(["a0", "zz"])
    with pytest.raises(ValueError, match="expected 1 lengths >= 0"):
        model.observe(["a0"], [-1])
    with pytest.raises(ValueError, match=r"prior_tokens and half_life must be > 0, got 0\.0"):
        LengthModel(TASK_OF, prior_tokens=0.0)
