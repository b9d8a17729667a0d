"""Real answers with labels, and the golds of published sets."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from tests.shared_data import shared_data
from tests.verifiers.support import prompt_of
from vipray.records import Outcome
from vipray.verifiers.gsm8k import Gsm8kVerifier
from vipray.verifiers.math import MathVerifier

GSM8K = Gsm8kVerifier()
MATH = MathVerifier()
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
TEMPLATES = (r"\boxed{%s}", r"So it is $\boxed{%s}$.", "The answer is %s.", "The answer is $%s$.", "Hence:\nAnswer: %s")


def read_lines(name):
    return [json.loads(line) for line in shared_data(name).read_text(encoding="utf-8").splitlines()]


def labelled_answers():
    for row in read_lines("gsm8k/example_model_solutions.jsonl"):
        for model in MODELS:
            yield row["question"], row["ground_truth"], row[model]["solution"], row[model]["is_correct"]


def test_gsm8k_agrees_with_every_label_of_real_answers():
    judged = [
        (GSM8K.verify(prompt_of(gold, text=question), solution).outcome, label)
        for question, gold, solution, label in labelled_answers()
    ]
    assert len(judged) == 5276
    assert [pair for pair in judged if (pair[0] is Outcome.CORRECT) != pair[1]] == []
    assert all(outcome.is_evidence for outcome, _ in judged)


def test_math_agrees_with_every_label_too():
    disagreements = [
        (solution, label)
        for question, gold, solution, label in labelled_answers()
        if MATH.verify(prompt_of(gold.rpartition("A: ")[2], text=question), solution).reward != float(label)
    ]
    assert disagreements == []


def golds_of(name):
    if name.endswith(".parquet"):
        return [row["ground_truth"] for row in pq.read_table(shared_data(name)).column("reward_model").to_pylist()]
    return [str(row["answer"]) for row in read_lines(name)]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "name",
    [
        "aime24/test.jsonl",
        "amc23/test.jsonl",
        "pass_rates/one_shot_rlvr_prompts.parquet",
        "pass_rates/deepscaler_uniform.parquet",
    ],
)
def test_every_gold_of_mathematics_answers_itself(name, template):
    golds = [gold for gold in golds_of(name) if gold]  # one set holds one empty gold
    unpaid = [gold for gold in golds if MATH.verify(prompt_of(gold), template % gold).outcome is not Outcome.CORRECT]
    assert unpaid == []


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", ["gsm8k/train.jsonl", "gsm8k/test.jsonl"])
def test_every_gold_of_gsm8k_answers_itself(name, template):
    for gold in golds_of(name):
        number = gold.rpartition("####")[2].strip()
        assert GSM8K.verify(prompt_of(gold), template % number).outcome is Outcome.CORRECT
        assert GSM8K.verify(prompt_of(gold), gold).outcome is Outcome.CORRECT


def test_the_only_golds_that_cannot_be_graded_are_empty():
    for name in ("pass_rates/one_shot_rlvr_prompts.parquet", "pass_rates/deepscaler_uniform.parquet"):
        assert {gold for gold in golds_of(name) if MATH.check_gold(prompt_of(gold))} <= {""}


def test_neighbouring_golds_that_differ_are_not_paid_for_each_other():
    golds = sorted(set(golds_of("aime24/test.jsonl")) | set(golds_of("amc23/test.jsonl")))
    for gold in golds:
        for other in golds:
            found = MATH.verify(prompt_of(gold), rf"\boxed{{{other}}}")
            assert found.reward == float(float(gold) == float(other))
