from __future__ import annotations

import numpy as np
import pytest

from tests.predictors.device_arrays import DeviceArray, DeviceNamespace
from vipray.errors import ConfigError
from vipray.predictors.array_namespace import array_namespace
from vipray.predictors.paper_gp import PaperGP


def logit(p):
    return np.log(p / (1 - p))


def sigmoid(g):
    return 1 / (1 + np.exp(-g))


def make(ids="abcd", embeddings=None, **settings):
    embeddings = np.random.default_rng(0).normal(size=(len(ids), 3)) if embeddings is None else embeddings
    return PaperGP(list(ids), embeddings, **({"clip": 0.05, "jitter": 1e-3} | settings))


def test_two_prompts_follow_the_closed_form():
    gp = make("ab", np.array([[0.0], [1.0]]), jitter=1e-6, bandwidth=1.0, prior_success_prob=0.3)
    gp.observe(["a"], np.array([6]), np.array([8]))
    k = np.exp(-0.5)
    expected_b = sigmoid(logit(0.3) + k / (1 + 1e-6) * (logit(0.75) - logit(0.3)))
    p, variance = gp.predict(["a", "b"])
    assert p == pytest.approx([0.75, expected_b])
    assert variance == pytest.approx(4 * p * (1 - p))


def test_a_batch_follows_the_matrix_form_of_the_paper():
    rng = np.random.default_rng(1)
    x, h, jitter = rng.normal(size=(6, 4)), 1.3, 1e-3
    gp = make("abcdef", x, bandwidth=h, jitter=jitter)
    gp.observe(list("ace"), np.array([1, 4, 7]), np.array([8, 8, 8]))
    kernel = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / (2 * h**2))
    s = [0, 2, 4]
    g_hat = logit(np.array([1, 4, 7]) / 8)
    mean = kernel[:, s] @ np.linalg.solve(kernel[np.ix_(s, s)] + jitter * np.eye(3), g_hat)
    mean[s] = g_hat  # the paper's assignment for visited prompts
    assert gp.predict(list("abcdef"))[0] == pytest.approx(sigmoid(mean))


def test_observed_rates_are_clipped():
    gp = make(clip=0.1)
    gp.observe(["a", "b"], np.array([0, 5]), np.array([5, 5]))
    assert gp.predict(["a", "b"])[0] == pytest.approx([0.1, 0.9])


def test_zero_trials_are_no_evidence():
    gp = make()
    gp.observe(["a", "b"], np.array([0, 0]), np.array([0, 0]))
    assert gp.predict(list("abcd"))[0] == pytest.approx([0.5] * 4)
    assert gp.metrics()["updates"] == 0


def test_the_order_of_a_batch_changes_nothing():
    first, second = make(), make()
    first.observe(["a", "b", "c"], np.array([1, 2, 3]), np.array([4, 4, 4]))
    second.observe(["c", "a", "b"], np.array([3, 1, 2]), np.array([4, 4, 4]))
    assert first.predict(list("abcd"))[0] == pytest.approx(second.predict(list("abcd"))[0])


@pytest.mark.parametrize("noise", [0.0, 1e-12])
def test_duplicates_of_embeddings_never_break_it(noise):
    x = np.ones((200, 8)) + noise * np.random.default_rng(0).normal(size=(200, 8))
    ids = [str(q) for q in range(200)]
    gp = PaperGP(ids, x, clip=0.05, jitter=1e-12)
    gp.observe(ids[:100], np.arange(100) % 9, np.full(100, 8))
    p, variance = gp.predict(ids)
    assert np.isfinite(p).all() and np.all((p >= 0) & (p <= 1)) and np.all((variance >= 0) & (variance <= 1))


def test_a_restored_state_predicts_the_same():
    gp, restored = make(), make()
    gp.observe(["a", "d"], np.array([1, 3]), np.array([4, 5]))
    restored.load_state_dict(gp.state_dict())
    assert np.array_equal(restored.predict(list("abcd"))[0], gp.predict(list("abcd"))[0])
    gp.observe(["b"], np.array([1]), np.array([4]))
    assert not np.array_equal(restored.predict(list("abcd"))[0], gp.predict(list("abcd"))[0])


def test_a_state_of_other_prompts_is_refused():
    with pytest.raises(ValueError, match="other prompts"):
        make("abce").load_state_dict(make("abcd").state_dict())


def test_bad_inputs_are_refused_with_what_is_wrong():
    with pytest.raises(ValueError, match="prompt 'b'"):
        make("ab", np.array([[0.0], [np.nan]]))
    with pytest.raises(ValueError, match="distinct"):
        make("aa")
    with pytest.raises(ValueError, match=r"\[2, D\]"):
        make("ab", np.zeros((3, 2)))
    with pytest.raises(ValueError, match="'z'"):
        make().predict(["a", "z"])
    with pytest.raises(ValueError, match=r"successes must lie in \[0, trials\]"):
        make().observe(["a"], np.array([3]), np.array([2]))


def test_the_same_code_runs_on_arrays_that_live_elsewhere():
    x = np.random.default_rng(2).normal(size=(6, 3))
    host, device = make("abcdef", x), make("abcdef", x, xp=DeviceNamespace())
    for gp in (host, device):
        gp.observe(["a", "c", "f"], np.array([1, 4, 7]), np.array([8, 8, 8]))
        gp.observe(["b", "c"], np.array([0, 2]), np.array([0, 8]))
    assert isinstance(device._mean, DeviceArray)
    assert device.predict(list("abcdef"))[0] == pytest.approx(host.predict(list("abcdef"))[0])
    restored = make("abcdef", x, xp=DeviceNamespace())
    restored.load_state_dict(device.state_dict())
    assert np.array_equal(restored.predict(["b"])[0], device.predict(["b"])[0])


def test_auto_takes_numpy_without_a_gpu_and_cupy_by_name_is_an_error_then():
    try:
        import cupy  # noqa: F401
    except ImportError:
        assert array_namespace("auto") is np
        with pytest.raises(ConfigError, match="array_backend=numpy"):
            array_namespace("cupy")
    else:
        pytest.skip("cupy is installed")
