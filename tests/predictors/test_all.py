"""What holds for every predictor."""

from __future__ import annotations

import numpy as np
import pytest

from vipray.config import PaperGPConfig, PredictorConfig
from vipray.predictors import PREDICTOR_KINDS
from vipray.predictors.build import NEEDS_EMBEDDINGS, PromptKnowledge, make_predictor

IDS = [f"p{q}" for q in range(30)]
X = np.random.default_rng(0).normal(size=(30, 5))
TASKS = ["easy", "hard", "odd"] * 10
TEXTS = [f"What is {q} + {q * q * q}?" for q in range(30)]


def make(kind, x=X):
    return make_predictor(PredictorConfig(kind=kind, array_backend="numpy"), PromptKnowledge(IDS, x, TASKS, TEXTS))


def teach(predictor, seed=0, steps=5):
    """Prompts in order of their id: the first always fail, the last always succeed."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.permutation(30)[:12]
        trials = rng.integers(0, 9, 12)
        predictor.observe([IDS[row] for row in rows], rng.binomial(trials, rows / 29), trials)


@pytest.fixture(params=PREDICTOR_KINDS)
def kind(request):
    return request.param


def test_predictions_are_probabilities_from_the_first_to_the_last(kind):
    predictor = make(kind)
    for _ in range(3):
        p, variance = predictor.predict(IDS)
        assert p.shape == variance.shape == (30,)
        assert np.all((p >= 0) & (p <= 1)) and np.all((variance >= 0) & (variance <= 1))
        teach(predictor)


def test_it_learns_who_succeeds(kind):
    predictor = make(kind)
    for _ in range(4):
        predictor.observe(IDS, np.round(8 * np.arange(30) / 29).astype(int), np.full(30, 8))
    p, _ = predictor.predict(IDS)
    if kind == "global_mean":
        assert p == pytest.approx(0.5, abs=0.02)
    elif kind == "ridge":
        assert np.corrcoef(p, np.arange(30))[0, 1] > 0.1  # random features say little
    else:
        assert np.corrcoef(p, np.arange(30))[0, 1] > 0.95


def test_the_order_of_a_batch_changes_nothing(kind):
    first, second = make(kind), make(kind)
    ids, wins, trials = IDS[:8], np.array([0, 1, 2, 3, 4, 5, 6, 7]), np.full(8, 8)
    order = np.random.default_rng(1).permutation(8)
    first.observe(ids, wins, trials)
    second.observe([ids[i] for i in order], wins[order], trials[order])
    for one, other in zip(first.predict(IDS), second.predict(IDS), strict=True):
        assert one == pytest.approx(other, rel=1e-8)
    shuffled = np.random.default_rng(2).permutation(30)
    p, _ = first.predict([IDS[i] for i in shuffled])
    assert p == pytest.approx(first.predict(IDS)[0][shuffled], rel=1e-12)


def test_a_restored_state_goes_on_as_if_never_stopped(kind):
    original, restored = make(kind), make(kind)
    teach(original)
    restored.load_state_dict(original.state_dict())
    for predictor in (original, restored):
        teach(predictor, seed=1)
    for one, other in zip(original.predict(IDS), restored.predict(IDS), strict=True):
        assert np.array_equal(one, other)
    assert original.metrics() == restored.metrics()


def test_a_state_is_a_copy(kind):
    predictor = make(kind)
    teach(predictor)
    before = predictor.predict(IDS)[0].copy()
    state = predictor.state_dict()
    teach(predictor, seed=3)
    predictor.load_state_dict(state)
    assert np.array_equal(predictor.predict(IDS)[0], before)


def test_zero_trials_are_no_evidence(kind):
    predictor = make(kind)
    before = predictor.predict(IDS)[0].copy()
    predictor.observe(IDS[:3], np.zeros(3, dtype=int), np.zeros(3, dtype=int))
    assert np.array_equal(predictor.predict(IDS)[0], before)


def test_bad_input_is_refused(kind):
    predictor = make(kind)
    with pytest.raises(ValueError, match="'nobody'"):
        predictor.predict(["nobody"])
    with pytest.raises(ValueError, match=r"\[0, trials\]"):
        predictor.observe(IDS[:1], np.array([3]), np.array([2]))
    with pytest.raises(ValueError, match="twice"):
        predictor.observe([IDS[0], IDS[0]], np.array([1, 1]), np.array([2, 2]))
    state = predictor.state_dict() | {"fingerprint": "of others"}
    with pytest.raises(ValueError, match="other prompts"):
        predictor.load_state_dict(state)


def test_the_papers_settings_are_presets():
    known = PromptKnowledge(IDS, X)
    for preset, prior in (("paper", 0.5), ("authors_code", 0.2689)):
        config = PredictorConfig(kind="paper_gp", array_backend="numpy", paper_gp=PaperGPConfig(preset=preset))
        predictor = make_predictor(config, known)
        assert predictor.predict(IDS[:1])[0] == pytest.approx([prior], abs=1e-4)
        predictor.observe(IDS[:1], np.array([0]), np.array([4]))
        assert predictor.predict(IDS[:1])[0] == pytest.approx([1e-6])  # an unlucky group is certainty
    assert predictor.metrics()["bandwidth"] == 0.4


@pytest.mark.parametrize("kind", NEEDS_EMBEDDINGS)
def test_embeddings_that_are_missing_broken_or_all_the_same(kind):
    with pytest.raises(ValueError, match="texts"):
        make(kind, x=None)
    broken = X.copy()
    broken[4, 2] = np.inf
    with pytest.raises(ValueError, match="'p4'"):
        make(kind, x=broken)
    same = make(kind, x=np.ones_like(X))
    teach(same)
    assert np.isfinite(same.predict(IDS)).all()
