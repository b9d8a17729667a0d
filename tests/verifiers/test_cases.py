"""Every collected real fault, with the verifier that its situation asks for."""

from __future__ import annotations

import pytest

from tests.shared_data import shared_cases
from tests.verifiers.support import prompt_of
from vipray.records import Outcome
from vipray.verifiers.build import build_verifier
from vipray.verifiers.qa import f1

VERIFIER_OF = {"V09": "gsm8k", "V23": "qa"}  # the others are about mathematics


def cases_with_pairs():
    return [case for case in shared_cases("verifier") if "pairs" in case["input"]]


def scores_of(case):
    verifier = build_verifier(VERIFIER_OF.get(case["id"], "math"))
    return [verifier.verify(prompt_of(pair["gold"]), pair["answer"]) for pair in case["input"]["pairs"]]


def test_every_pair_is_judged_rightly():
    cases = cases_with_pairs()
    assert cases
    wrong = {}
    for case in cases:
        scores = scores_of(case)
        found = ["unscorable" if score.outcome is Outcome.UNSCORABLE else score.reward for score in scores]
        if found != case["right"]["rewards"]:
            wrong[case["id"]] = scores
    assert wrong == {}


def test_only_evidence_and_refusals_come_back():
    for case in cases_with_pairs():
        for score in scores_of(case):
            assert score.outcome is not Outcome.ERROR
            assert score.reward == float(score.outcome is Outcome.CORRECT)
            assert score.outcome.is_evidence or score.reason


def test_the_overlap_of_the_short_answers_is_as_stated():
    case = next(case for case in cases_with_pairs() if case["id"] == "V23")
    found = [f1(pair["answer"], [pair["gold"]]) for pair in case["input"]["pairs"]]
    assert found == pytest.approx([1, 2 / 3, 1, 1, 6 / 7, 0, 0, 1, 1 / 2])
