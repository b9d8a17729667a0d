"""The state of every predictor, on disk and back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.predictors.test_all import IDS, TASKS, TEXTS, X, make, teach
from vipray.config import HistoryConfig, PredictorConfig
from vipray.predictors import PREDICTOR_KINDS
from vipray.predictors.build import NEEDS_EMBEDDINGS, PromptKnowledge, make_predictor
from vipray.state_files import read_state, write_state


@pytest.fixture(params=PREDICTOR_KINDS)
def kind(request):
    return request.param


def taught(kind):
    predictor = make(kind)
    for seed in range(3):
        predictor.predict(IDS[seed::3])
        teach(predictor, seed=seed, steps=2)
    return predictor


def through_disk(folder, state):
    write_state(folder / "predictor.npz", state)
    return read_state(folder / "predictor.npz")


def frozen(state):
    """The state as an object store hands it out: its arrays cannot be written to."""
    for value in state.values():
        if isinstance(value, dict):
            frozen(value)
        elif isinstance(value, np.ndarray):
            value.flags.writeable = False
    return state


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            assert_same_state(value, other[name])
        else:
            assert np.array_equal(value, other[name]), name


def assert_same_predictions(one, other):
    for mine, theirs in zip(one.predict(IDS), other.predict(IDS), strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_a_state_from_disk_predicts_the_same_now_and_ever_after(kind, tmp_path):
    original, restored = taught(kind), make(kind)
    restored.load_state_dict(through_disk(tmp_path, original.state_dict()))
    assert_same_predictions(original, restored)
    for seed in range(10, 13):
        for predictor in (original, restored):
            teach(predictor, seed=seed, steps=1)
        assert_same_predictions(original, restored)
    assert_same_state(original.state_dict(), restored.state_dict())
    assert original.metrics() == restored.metrics()


def test_it_does_not_matter_what_the_one_that_is_restored_knew(kind, tmp_path):
    original, other = taught(kind), make(kind)
    teach(other, seed=77, steps=9)
    other.load_state_dict(through_disk(tmp_path, original.state_dict()))
    assert_same_predictions(original, other)


def test_a_prediction_changes_nothing(kind):
    predictor = taught(kind)
    before = predictor.state_dict()
    first = predictor.predict(IDS)
    predictor.predict(IDS[:2])
    for one, other in zip(first, predictor.predict(IDS), strict=True):
        assert one.tobytes() == other.tobytes()
    assert_same_state(before, predictor.state_dict())


def test_a_state_is_not_written_to_and_can_be_restored_again(kind, tmp_path):
    state = frozen(through_disk(tmp_path, taught(kind).state_dict()))
    for _ in range(2):
        restored = make(kind)
        restored.load_state_dict(state)
        assert_same_predictions(taught(kind), restored)
        teach(restored, seed=5)
    assert_same_state(state, taught(kind).state_dict())


def test_a_state_of_other_prompts_is_refused_and_changes_nothing(kind):
    known = PromptKnowledge(IDS[:-1], X[:-1], TASKS[:-1], TEXTS[:-1])
    others = make_predictor(PredictorConfig(kind=kind, array_backend="numpy"), known)
    predictor = taught(kind)
    with pytest.raises(ValueError, match="other prompts"):
        predictor.load_state_dict(others.state_dict())
    with pytest.raises(ValueError, match="other prompts"):
        predictor.load_state_dict({})
    assert_same_predictions(predictor, taught(kind))


def test_a_state_of_another_kind_is_refused_and_changes_nothing(kind):
    predictor = taught(kind)
    for other in PREDICTOR_KINDS:
        if other != kind:
            with pytest.raises(ValueError, match=r"another predictor\.kind"):
                predictor.load_state_dict(taught(other).state_dict())
    assert_same_predictions(predictor, taught(kind))


def test_a_state_of_other_sizes_is_refused():
    windows = [
        make_predictor(
            PredictorConfig(kind="moving_average", history=HistoryConfig(window=window)), PromptKnowledge(IDS)
        )
        for window in (8, 4)
    ]
    with pytest.raises(ValueError, match=r"failures is \(4, 30\), expected \(8, 30\)"):
        windows[0].load_state_dict(windows[1].state_dict())


@pytest.mark.parametrize("kind", sorted(set(NEEDS_EMBEDDINGS) & {"hybrid", "noisy_gp", "ridge"}))
def test_a_state_on_embeddings_of_another_width_is_refused(kind):
    config = PredictorConfig(kind=kind, array_backend="numpy", num_inducing=4)
    narrow = make_predictor(config, PromptKnowledge(IDS, X[:, :3], TASKS, TEXTS))
    with pytest.raises(ValueError, match="other settings of it: linear"):
        make(kind).load_state_dict(narrow.state_dict())
