from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.support import byte_tokens, prompt_set, source
from vipray.config import BadRowsConfig
from vipray.data.build import PromptRow, PromptSource, Reason, build_prompt_set
from vipray.data.chat import Message
from vipray.data.prompts import Prompt
from vipray.errors import ConfigError


def prompt(index, text, answer="7", verifier="math", **more):
    return Prompt(f"t/{index}", "t", index, text, answer, verifier, **more)


def dropped(report):
    return {reason: count for reason in Reason if (count := report.num_dropped(reason))}


def test_every_row_is_kept_or_counted_under_one_reason():
    prompts = [prompt(0, "ab"), prompt(1, "ab "), prompt(2, "a" * 101), prompt(3, "abc"), prompt(4, " \n")]
    kept, report = prompt_set(prompts)
    assert kept.prompt_ids == ["t/0", "t/3"]
    assert dropped(report) == {Reason.DUPLICATE: 1, Reason.TOO_LONG: 1, Reason.EMPTY: 1}
    assert report.lines() == [
        "2 prompts (5 read, 1 exact duplicates removed, 1 over the length limit dropped, "
        "1 with an empty prompt dropped)",
        "dropped, with an empty prompt: t row 5",
    ]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "a ", "b", "cccc", "d"]), st.sampled_from(["1", "2"])), max_size=12)
)
def test_the_counts_add_up_and_what_is_kept_is_distinct_and_unambiguous(rows):
    prompts = [prompt(i, text, answer) for i, (text, answer) in enumerate(rows)]
    answers: dict[str, set[str]] = {}
    for text, answer in rows:
        answers.setdefault(text.strip(), set()).add(answer)
    right = {text for text, golds in answers.items() if text and len(text) <= 3 and len(golds) == 1}
    if not right:
        with pytest.raises(ConfigError):
            prompt_set(prompts, max_tokens=3)
        return
    kept, report = prompt_set(prompts, max_tokens=3)
    assert report.num_kept + sum(dropped(report).values()) == report.num_read == len(rows)
    assert Counter(text.strip() for text in kept.texts) == Counter(right)


def test_where_answers_differ_no_row_of_the_prompt_is_kept_and_both_places_are_named():
    prompts = [prompt(0, "q", "1"), prompt(1, "q", "1"), prompt(2, "q", "2"), prompt(3, "q", "1"), prompt(4, "r")]
    kept, report = prompt_set(prompts)
    assert kept.texts == ["r"]
    assert dropped(report) == {Reason.DUPLICATE: 1, Reason.CONFLICT: 3}
    assert report.places[Reason.CONFLICT][0] == "t row 3 ('2', another one in t row 1)"
    with pytest.raises(ConfigError, match=r"t row 3 .*t row 1.*data\.bad_rows\.conflicting_answers=drop"):
        prompt_set(prompts, bad_rows=BadRowsConfig(conflicting_answers="refuse"))


def test_aliases_in_another_order_are_no_conflict_and_reasoning_gyms_one_example_never_is():
    kept, report = prompt_set(
        [
            prompt(0, "q", "a", aliases=("b",)),
            prompt(1, "q", "b", aliases=("a",)),
            prompt(2, "r", "a", "reasoning_gym"),
            prompt(3, "r", "b", "reasoning_gym"),
            prompt(4, "s", "", "reasoning_gym"),
        ]
    )
    assert kept.prompt_ids == ["t/0", "t/2", "t/4"] and dropped(report) == {Reason.DUPLICATE: 2}


def test_numbers_agree_by_value_where_the_verifier_compares_values():
    rows = [prompt(0, "q", "033"), prompt(1, "q", "33"), prompt(2, "r", "1/2"), prompt(3, "r", "0.5")]
    kept, report = prompt_set(rows)
    assert kept.prompt_ids == ["t/0", "t/2"] and dropped(report) == {Reason.DUPLICATE: 2}
    kept, report = prompt_set([prompt(0, "q", "033", "exact"), prompt(1, "q", "33", "exact"), prompt(2, "r")])
    assert kept.prompt_ids == ["t/2"] and dropped(report) == {Reason.CONFLICT: 2}
    kept, _ = prompt_set([prompt(0, "q", "9^{9^{9}}"), prompt(1, "q", "9^{9^{9}} "), prompt(2, "r")])
    assert kept.prompt_ids == ["t/0", "t/2"]


@pytest.mark.parametrize("first", ["reasoning_gym", "math"])
def test_a_prompt_of_a_task_and_of_a_file_is_a_duplicate(first):
    second = {"reasoning_gym": "math", "math": "reasoning_gym"}[first]
    kept, report = prompt_set([prompt(0, "q", "7", first), prompt(1, "q", "8", second)])
    assert kept.prompt_ids == ["t/0"] and dropped(report) == {Reason.DUPLICATE: 1}


def test_an_answer_that_cannot_be_graded_conflicts_with_none():
    rows = [prompt(0, "q", "proof"), prompt(1, "q", "5"), prompt(2, "q", "proof"), prompt(3, "q", "5")]
    kept, report = build_prompt_set(
        [source(rows)], byte_tokens, 9, check_gold=lambda p: None if p.answer.isdigit() else "is prose"
    )
    assert kept.prompt_ids == ["t/1"]
    assert dropped(report) == {Reason.UNGRADABLE: 2, Reason.DUPLICATE: 1}


@pytest.mark.parametrize("answer", ["", " \n"])
def test_a_missing_answer_is_refused_unless_dropping_is_asked_for(answer):
    prompts = [prompt(0, "q"), prompt(1, "r", answer)]
    with pytest.raises(
        ConfigError, match=r"^t row 2 is a row without an answer: .*data\.bad_rows\.missing_answer=drop$"
    ):
        prompt_set(prompts)
    kept, report = prompt_set(prompts, bad_rows=BadRowsConfig(missing_answer="drop"))
    assert kept.prompt_ids == ["t/0"] and dropped(report) == {Reason.NO_ANSWER: 1}


def test_an_empty_prompt_is_an_error_where_that_is_asked_for():
    with pytest.raises(
        ConfigError, match=r"^t row 1 is a row with an empty prompt: .*data\.bad_rows\.empty_prompt=drop$"
    ):
        prompt_set([prompt(0, "")], bad_rows=BadRowsConfig(empty_prompt="refuse"))


@pytest.mark.parametrize("rule", ["drop", "refuse"])
def test_answers_that_the_verifier_cannot_grade_are_found(rule):
    def build():
        return build_prompt_set(
            [source([prompt(0, "q", "see above"), prompt(1, "r", "3")])],
            byte_tokens,
            9,
            check_gold=lambda p: None if p.answer.isdigit() else "is prose",
            bad_rows=BadRowsConfig(ungradable_answer=rule),
        )

    if rule == "refuse":
        with pytest.raises(ConfigError, match=r"t row 1 \('see above': is prose\) is a row with an answer that cannot"):
            build()
        return
    kept, report = build()
    assert kept.prompt_ids == ["t/1"]
    assert report.lines()[1] == "dropped, with an answer that cannot be graded: t row 1 ('see above': is prose)"


def rows_with_ids(ids, is_id_unique):
    return [
        PromptRow(
            Prompt(f"f/{i}", "t", n, f"q{n}", "1", "math"), (Message("user", f"q{n}"),), f"f row {n}", is_id_unique
        )
        for n, i in enumerate(ids)
    ]


def test_ids_that_are_taken_get_a_number_or_are_refused_where_the_file_promised_them():
    rows = rows_with_ids(["a", "a", "b", "a", "a.2"], is_id_unique=False)
    kept, _ = build_prompt_set([PromptSource("f", lambda: rows)], byte_tokens, 9)
    assert kept.prompt_ids == ["f/a", "f/a.2", "f/b", "f/a.3", "f/a.2.2"]
    promised = rows_with_ids(["a", "b", "a"], is_id_unique=True)
    with pytest.raises(ConfigError, match="f row 2: the id f/a is that of f row 0 too"):
        build_prompt_set([PromptSource("f", lambda: promised)], byte_tokens, 9)


def test_a_limit_counts_prompts_that_are_kept_and_not_rows():
    prompts = [prompt(i, text) for i, text in enumerate(["a", "a", "x" * 20, "b", "", "c", "d"])]
    limited = source(prompts, "s", limit=3)
    kept, report = build_prompt_set([limited, source([prompt(9, "e")], "t")], byte_tokens, 9)
    assert kept.texts == ["a", "b", "c", "e"]
    assert [(s.label, s.num_read, s.num_kept) for s in report.sources] == [("s", 6, 3), ("t", 1, 1)]


def test_many_rows_are_tokenised_in_batches_and_stay_in_order():
    sizes = []

    def tokenize(conversations):
        sizes.append(len(conversations))
        return byte_tokens(conversations)

    kept, _ = build_prompt_set([source(prompt(i, f"q{i}") for i in range(1500))], tokenize, 9)
    assert kept.texts == [f"q{i}" for i in range(1500)] and max(sizes) <= 512 and len(sizes) < 6
    assert all(kept.token_ids(f"t/{i}") == list(f"q{i}".encode()) for i in (0, 700, 1499))


def test_a_conversation_that_the_chat_template_refuses_is_named():
    def tokenize(conversations):
        if any("bad" in messages[0].content for messages in conversations):
            raise ConfigError("no such role")
        return byte_tokens(conversations)

    with pytest.raises(ConfigError, match=r"^t row 2: no such role"):
        build_prompt_set([source([prompt(0, "good"), prompt(1, "bad")])], tokenize, 9)


def test_nothing_to_train_on_is_an_error_that_says_why():
    with pytest.raises(ConfigError, match=r"data.max_prompt_tokens=2: the shortest of 2 has 3 tokens"):
        prompt_set([prompt(0, "abc"), prompt(1, "abcd")], max_tokens=2)
    with pytest.raises(ConfigError, match=r"empty: data\.tasks and data\.files gave no prompt"):
        prompt_set([])
    with pytest.raises(ConfigError, match=r"no prompt is left to train on: 0 prompts .1 read.*t row 1"):
        prompt_set([prompt(0, "")])
