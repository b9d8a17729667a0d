from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from vipray.dispatch.lengths import LengthModel
from vipray.dispatch.staleness import StalenessPolicy
from vipray.evaluation.pipeline_simulation import learned_lengths, simulate
from vipray.evaluation.simulated_run import PipelineSettings
from vipray.evaluation.simulated_workload import StepWork, Workload, WorkloadSettings
from vipray.evaluation.static_splitting import contiguous_shares, makespan, whole_groups
from vipray.records import RolloutId

SMALL = WorkloadSettings(num_prompts=64, prompts_per_batch=32, rollout_budget=512)
PIPELINE = PipelineSettings(steps=6, generators=4, slots=4, training_time=800.0)


class EqualWork:
    """Every step has the same number of rollouts of the same length: times can be worked out by hand."""

    def step(self, step: int) -> StepWork:
        ids = [RolloutId(step, prompt_id, k) for prompt_id in "ab" for k in range(8)]
        return StepWork(step, tuple(ids), dict.fromkeys(ids, 10.0))


def run_equal(**changed):
    settings = PipelineSettings(steps=5, generators=2, slots=4, **changed)  # 16 rollouts on 8 slots: 20 units a step
    return simulate(settings, EqualWork(), LengthModel({"a": "t", "b": "t"}, prior_tokens=10.0))


def run(pipeline, workload=SMALL):
    return simulate(pipeline, Workload(workload), learned_lengths(workload, 2))


def test_on_policy_steps_follow_each_other():
    result = run_equal(training_time=7.0, publishing_time=2.0, loading_time=0.5, planning_time=1.0)
    # planning, then 20 of generation, 7 of training with the next plan hidden in it, 2 of publishing, 0.5 of loading
    assert [step.complete for step in result.steps] == [21.0 + 29.5 * index for index in range(5)]
    assert [step.makespan for step in result.steps] == [20.0] * 5 == [step.lower_bound for step in result.steps]
    assert result.duration == 4 * 29.5 + 28.0
    assert result.exposed_planning == 1.0 and result.planning == 6.0
    assert result.generator_utilisation == pytest.approx(100.0 / result.duration)
    assert result.learner_utilisation == pytest.approx((5 * 7.0 + 4 * 2.0) / result.duration)
    assert [step.max_staleness for step in result.steps] == [0] * 5
    assert result.wasted_share == 0.0


def test_one_version_of_staleness_lets_generation_run_behind_training():
    result = run_equal(training_time=20.0, staleness=StalenessPolicy(1))
    assert [step.trained for step in result.steps] == [40.0, 60.0, 80.0, 100.0, 120.0]
    assert [step.max_staleness for step in result.steps] == [0, 1, 1, 1, 1]
    assert result.generator_utilisation == 1.0  # two steps are made before the first is trained, then one for each


def test_in_flight_rollouts_stand_still_while_weights_are_taken():
    quick, slow = (run_equal(training_time=5.0, loading_time=t, staleness=StalenessPolicy(1)) for t in (0.0, 3.0))
    assert slow.duration - quick.duration == pytest.approx(4 * 3.0, abs=3.0)
    assert slow.generator_utilisation < quick.generator_utilisation
    loads = [span for span in slow.spans if span.name == "load_weights"]
    assert all(span.end_s - span.start_s == 3.0 for span in loads) and {s.actor for s in loads} == {
        "generator-0",
        "generator-1",
    }


def test_work_of_a_step_is_that_of_the_real_allocation_and_repeats():
    work, again, other = (Workload(dataclasses.replace(SMALL, seed=seed)).step(0) for seed in (0, 0, 1))
    assert work == again and work.tokens != other.tokens
    counts = np.unique([r.prompt_id for r in work.rollout_ids], return_counts=True)[1]
    assert len(work.rollout_ids) == 512 and len(counts) == 32 and counts.min() >= 3 and counts.max() <= 32
    assert len(set(counts.tolist())) > 3  # uneven
    assert max(work.tokens.values()) <= SMALL.max_tokens and min(work.tokens.values()) >= 1.0


def test_an_epoch_visits_every_prompt_once():
    workload = Workload(SMALL)
    seen = [r.prompt_id for step in range(2) for r in workload.step(step).rollout_ids]
    assert set(seen) == set(workload.task_of)


def test_the_lower_bound_is_the_longest_rollout_or_the_work():
    ids = tuple(RolloutId(0, "a", k) for k in range(3))
    assert StepWork(0, ids, dict(zip(ids, [1.0, 2.0, 3.0], strict=True))).lower_bound(1, 1) == 6.0
    assert StepWork(0, ids, dict(zip(ids, [1.0, 2.0, 3.0], strict=True))).lower_bound(2, 4) == 3.0


def test_no_step_is_faster_than_the_bound_and_lengths_that_are_known_come_close():
    known = dataclasses.replace(SMALL, within=0.0)
    for step in run(PIPELINE, known).steps:
        assert step.lower_bound <= step.makespan <= 1.06 * step.lower_bound


def test_static_splitting_keeps_what_it_says_and_takes_longer():
    work = Workload(SMALL).step(0)
    dynamic = run(dataclasses.replace(PIPELINE, steps=1)).steps[0]
    for split in (whole_groups, contiguous_shares):
        queues = split(work, 4)
        assert sorted(r for queue in queues for r in queue) == sorted(work.rollout_ids)
        assert makespan(queues, work.tokens, 4) > 1.2 * dynamic.makespan
    homes: dict[str, set[int]] = {}
    for index, queue in enumerate(whole_groups(work, 4)):
        for rollout_id in queue:
            homes.setdefault(rollout_id.prompt_id, set()).add(index)
    assert all(len(home) == 1 for home in homes.values())
    assert [len(queue) for queue in contiguous_shares(work, 4)] == [128] * 4


def test_a_queue_takes_as_long_as_its_slots_need():
    ids = [RolloutId(0, "a", k) for k in range(4)]
    tokens = dict(zip(ids, [5.0, 1.0, 1.0, 9.0], strict=True))
    assert makespan([ids, []], tokens, 2) == 11.0  # 5 | 1, 1, 9
    assert makespan([ids], tokens, 1) == 16.0


@pytest.mark.parametrize("on_stale", ["wait", "reissue"])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_failures_lose_time_and_nothing_else(k, on_stale):
    pipeline = dataclasses.replace(
        PIPELINE,
        staleness=StalenessPolicy(k, on_stale),
        publishing_time=40.0,
        loading_time=10.0,
        mean_lifetime=4000.0,
        replacement_time=200.0,
    )
    result = run(pipeline)
    assert [step.step for step in result.steps] == list(range(6))
    assert max(step.max_staleness for step in result.steps) <= k
    assert any(span.name == "lost" for span in result.spans)
    assert result.counts["reissued"] > 0 and 0.0 < result.wasted_share < 0.7
    assert result.counts["dropped"] == result.counts["duplicates"] == 0
    assert (result.counts["too_old"] > 0) <= (on_stale == "reissue")
    assert 0.0 < result.generator_utilisation < 1.0
    assert run(pipeline) == result


def test_spans_lie_within_the_run():
    result = run(PIPELINE)
    assert {span.name for span in result.spans} == {"predict", "generate", "train", "publish"}
    assert all(0.0 <= span.start_s <= span.end_s <= result.duration for span in result.spans)
    training = math.fsum(span.end_s - span.start_s for span in result.spans if span.name == "train")
    assert training == pytest.approx(6 * 800.0)
