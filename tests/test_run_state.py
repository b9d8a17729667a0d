from __future__ import annotations

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vipray.allocation.policies import allocate_by_policy
from vipray.config import PredictorConfig
from vipray.data.sampler import PromptSampler
from vipray.dispatch.lengths import LengthModel
from vipray.errors import ConfigError
from vipray.predictors.build import PromptKnowledge, make_predictor
from vipray.records import ROLLOUT_SCHEMA, Allocation, RolloutId, Span
from vipray.run_state import RunState
from vipray.state_files import write_state

PLAN = Allocation(
    step=3,
    prompt_ids=("a", "ü\n"),
    n=np.array([2, 3]),
    prompt_weight=np.array([0.1 + 0.2, math.inf]),
    success_prob=np.array([1 / 3, 5e-324]),
    gradient_variance=np.array([-0.0, math.nan]),
    span=Span(1.1, 1e9 + 0.1),
    shadow={"uniform": np.array([3, 2]), "knapsack": np.array([1, 4])},
    dropped=frozenset({RolloutId(3, "a", 1)}),
)


def rollouts(*ids):
    rows = [
        {
            "step": step,
            "prompt_id": prompt_id,
            "k": k,
            "generator_id": "g",
            "policy_version_first": 2,
            "policy_version_last": 3,
            "prompt_token_ids": [1, 2],
            "completion_token_ids": [k],
            "logprobs": [-0.1],
            "policy_versions": [2],
            "finish_reason": "stop",
            "text": "x",
            "latency_s": 0.1,
            "reward": 1.0,
            "outcome": "correct",
        }
        for step, prompt_id, k in ids
    ]
    return pa.Table.from_pylist(rows, schema=ROLLOUT_SCHEMA)


STATE = RunState(
    step=3,
    sampler={"epoch": 1, "queue": ["a"], "seed": 0, "fingerprint": "f"},
    lengths={"now": 2, "all": {"tokens": np.array([0.1])}},
    predictor={"fingerprint": "f", "mean": np.array([0.25])},
    plans=(PLAN, dataclasses.replace(PLAN, step=4, shadow={}, dropped=frozenset())),
    rollouts=rollouts((3, "a", 0), (3, "ü\n", 2), (4, "a", 1)),
)


def assert_same_plan(one, other):
    for field in dataclasses.fields(Allocation):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes(), field.name
        elif field.name == "shadow":
            assert list(mine) == list(theirs)
            assert all(mine[key].tobytes() == theirs[key].tobytes() for key in mine)
        else:
            assert mine == theirs and type(mine) is type(theirs), field.name


def rows(state) -> pa.Table:
    """The rollouts of a state that has some."""
    assert state.rollouts is not None
    return state.rollouts


def test_a_state_comes_back_as_it_was(tmp_path):
    STATE.write(tmp_path / "run")
    names = {"sampler.npz", "lengths.npz", "predictor.npz", "plans.npz", "rollouts.parquet"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names
    read, warnings = RunState.read(tmp_path / "run", 3)
    assert warnings == [] and read.step == 3 and read.sampler == STATE.sampler
    assert read.lengths["all"]["tokens"].tobytes() == STATE.lengths["all"]["tokens"].tobytes()
    assert read.predictor is not None and STATE.predictor is not None
    assert read.predictor["mean"].tobytes() == STATE.predictor["mean"].tobytes()
    assert rows(read).equals(rows(STATE)) and rows(read).schema.equals(ROLLOUT_SCHEMA)
    assert len(read.plans) == 2
    for one, other in zip(read.plans, STATE.plans, strict=True):
        assert_same_plan(one, other)
    assert read.plans[0].rollout_ids() == PLAN.rollout_ids()
    assert {type(rollout_id) for rollout_id in read.plans[0].dropped} == {RolloutId}


def test_rollouts_can_be_written_by_somebody_else(tmp_path):
    pq.write_table(STATE.rollouts, tmp_path / "rollouts.parquet")
    dataclasses.replace(STATE, rollouts=None).write(tmp_path)
    assert rows(RunState.read(tmp_path, 3)[0]).equals(rows(STATE))


def test_a_folder_whose_name_looks_like_a_column_adds_none(tmp_path):
    STATE.write(tmp_path / "lr=3")
    assert rows(RunState.read(tmp_path / "lr=3", 3)[0]).schema.equals(ROLLOUT_SCHEMA)


@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_without_its_predictor_file_a_run_goes_on_from_the_prior_and_says_so(tmp_path, content):
    STATE.write(tmp_path)
    (tmp_path / "predictor.npz").unlink()
    if content is not None:
        (tmp_path / "predictor.npz").write_bytes(content)
    read, (warning,) = RunState.read(tmp_path, 3)
    assert read.predictor is None and len(read.plans) == 2
    assert "predictor.npz is " in warning and "starts from its prior" in warning and "\n" not in warning


def test_a_predictor_of_another_step_is_not_taken(tmp_path):
    STATE.write(tmp_path / "3")
    dataclasses.replace(STATE, step=4, plans=STATE.plans[1:]).write(tmp_path / "4")
    (tmp_path / "4" / "predictor.npz").replace(tmp_path / "3" / "predictor.npz")
    read, (warning,) = RunState.read(tmp_path / "3", 3)
    assert read.predictor is None and "is of step 4" in warning


def test_a_run_that_had_no_predictor_state_has_none_afterwards(tmp_path):
    dataclasses.replace(STATE, predictor=None).write(tmp_path)
    read, (warning,) = RunState.read(tmp_path, 3)
    assert read.predictor is None and "predictor.npz is missing" in warning


@pytest.mark.parametrize("name", ["sampler.npz", "lengths.npz", "plans.npz", "rollouts.parquet"])
def test_any_other_file_that_is_missing_or_damaged_is_an_error_that_names_it(tmp_path, name):
    STATE.write(tmp_path)
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=f"{name} is damaged"):
        RunState.read(tmp_path, 3)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} is missing"):
        RunState.read(tmp_path, 3)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    STATE.write(tmp_path)
    with pytest.raises(ConfigError, match="is of step 3, and the checkpoint of step 5"):
        RunState.read(tmp_path, 5)
    for table, message in (
        (rollouts((3, "a", 2)), r"1 rollouts that no plan asked for: RolloutId\(step=3, prompt_id='a', k=2\)"),
        (rollouts((2, "a", 0)), "no plan asked for"),
        (rollouts((3, "a", 0), (3, "a", 0)), "1 rollouts twice"),
        (pa.table({"x": [1]}), "holds no rollouts"),
    ):
        pq.write_table(table, tmp_path / "rollouts.parquet")
        with pytest.raises(ConfigError, match=message):
            RunState.read(tmp_path, 3)
    dataclasses.replace(STATE, plans=STATE.plans[1:]).write(tmp_path)
    with pytest.raises(ConfigError, match=r"holds the plans of steps \[4\], expected those from 3 on"):
        RunState.read(tmp_path, 3)
    for state in ([{"step": 3}], 7, [1]):
        write_state(tmp_path / "plans.npz", {"step": 3, "state": state})
        with pytest.raises(ConfigError, match=r"plans\.npz holds no plans"):
            RunState.read(tmp_path, 3)
    write_state(tmp_path / "plans.npz", [])
    with pytest.raises(ConfigError, match=r"plans\.npz is not the state of a run"):
        RunState.read(tmp_path, 3)


@pytest.mark.parametrize(
    ("changed", "keeps_predictor", "keeps_plans"),
    [
        ((), True, True),
        (("seed",), True, True),
        (("predictor",), False, True),
        (("data",), False, False),
        (("batch",), True, False),
        (("model", "seed"), True, False),
    ],
)
def test_what_holds_when_settings_change(changed, keeps_predictor, keeps_plans):
    state = STATE.what_holds(changed)
    assert state.predictor == (STATE.predictor if keeps_predictor else None)
    assert state.plans == (STATE.plans if keeps_plans else ())
    assert rows(state).equals(rows(STATE) if keeps_plans else ROLLOUT_SCHEMA.empty_table())


# A run without its actors: what is sampled, predicted, allocated and observed, with outcomes fixed by step and prompt.

IDS = [f"p{q}" for q in range(20)]
TASK_OF = {prompt_id: "even" if q % 2 == 0 else "odd" for q, prompt_id in enumerate(IDS)}
KNOWN = PromptKnowledge(
    IDS, np.random.default_rng(0).normal(size=(20, 5)), list(TASK_OF.values()), [f"{q} + {q}?" for q in range(20)]
)


class Run:
    def __init__(self, kind="hybrid"):
        self.step = 0
        self.sampler = PromptSampler(IDS, 6, seed=5)
        self.lengths = LengthModel(TASK_OF, prior_tokens=8.0)
        self.predictor = make_predictor(PredictorConfig(kind=kind, array_backend="numpy"), KNOWN)
        self.begun = None

    def plan(self):
        """The allocation of the next step, made once."""
        if self.begun is None:
            ids = self.sampler.next_batch()
            p, variance = self.predictor.predict(ids)
            n = allocate_by_policy("vip", p, 48, lower=3, upper=24, gradient_variance=variance)
            self.begun = Allocation(self.step, ids, n, np.ones(6), p, variance, Span(0.0, 1.0))
        return self.begun

    def finish_step(self):
        plan = self.plan()
        rates = [int(prompt_id[1:]) / 19 for prompt_id in plan.prompt_ids]
        self.predictor.observe(plan.prompt_ids, np.random.default_rng([7, self.step]).binomial(plan.n, rates), plan.n)
        self.lengths.observe(plan.prompt_ids, plan.n)
        self.step, self.begun = self.step + 1, None

    def state(self):
        plans = () if self.begun is None else (self.begun,)
        sampler, lengths, predictor = (part.state_dict() for part in (self.sampler, self.lengths, self.predictor))
        return RunState(self.step, sampler, lengths, predictor, plans, ROLLOUT_SCHEMA.empty_table())

    def resume(self, state):
        self.step = state.step
        self.sampler.load_state_dict(state.sampler)
        self.lengths.load_state_dict(state.lengths)
        if state.predictor is not None:
            self.predictor.load_state_dict(state.predictor)
        self.begun = state.plans[0] if state.plans else None
        return self


@pytest.mark.parametrize("kind", ["hybrid", "paper_gp", "noisy_gp", "beta"])
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_resumed_run_allocates_as_one_that_never_stopped(tmp_path, kind, is_planned):
    whole, killed = Run(kind), Run(kind)
    for _ in range(3):
        killed.finish_step()
    if is_planned:
        killed.plan()
    killed.state().write(tmp_path)
    for _ in range(2):
        killed.finish_step()  # what it did after that is lost
    state, warnings = RunState.read(tmp_path, 3)
    resumed = Run(kind).resume(state)
    assert warnings == []
    for _ in range(3):
        resumed.finish_step()
    for _ in range(6):
        whole.finish_step()
    assert_same_plan(resumed.plan(), whole.plan())
    assert len(set(whole.plan().success_prob.tolist())) > 1  # there is something to tell
    assert resumed.lengths.expect(IDS).tobytes() == whole.lengths.expect(IDS).tobytes()


def test_a_run_resumed_without_its_predictor_file_allocates_from_the_prior(tmp_path):
    killed = Run()
    for _ in range(3):
        killed.finish_step()
    killed.state().write(tmp_path)
    (tmp_path / "predictor.npz").unlink()
    state, (warning,) = RunState.read(tmp_path, 3)
    resumed = Run().resume(state)
    assert "starts from its prior" in warning
    plan = resumed.plan()
    assert plan.prompt_ids == killed.plan().prompt_ids
    assert plan.success_prob.tobytes() == Run().predictor.predict(plan.prompt_ids)[0].tobytes()
    assert plan.success_prob.tobytes() != killed.plan().success_prob.tobytes()
    assert plan.n.tolist() == [8] * 6
    resumed.finish_step()
