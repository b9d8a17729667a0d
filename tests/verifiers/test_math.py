from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifiers.math_pairs import RIGHT, WRONG
from tests.verifiers.support import QUESTION, boxed, prompt_of, score
from vipray.records import Outcome
from vipray.verifiers.math import MathVerifier

VERIFIER = MathVerifier()


@pytest.mark.parametrize("kind", RIGHT)
def test_what_equals_the_gold_is_paid(kind):
    unpaid = [(gold, answer) for gold, answer in RIGHT[kind] if score(VERIFIER, gold, boxed(answer)).reward != 1.0]
    assert unpaid == []


@pytest.mark.parametrize("kind", WRONG)
def test_nothing_else_is_paid(kind):
    scores = [(gold, answer, score(VERIFIER, gold, boxed(answer))) for gold, answer in WRONG[kind]]
    assert [pair for *pair, found in scores if (found.reward, found.outcome) != (0.0, Outcome.WRONG)] == []


@pytest.mark.parametrize("gold", sorted({gold for pairs in (*RIGHT.values(), *WRONG.values()) for gold, _ in pairs}))
def test_every_gold_answers_itself_boxed_and_as_a_sentence(gold):
    for template in (r"\boxed{%s}", r"$\boxed{%s}$", "The answer is %s.", "The answer is $%s$.", "Answer: %s"):
        assert score(VERIFIER, gold, template % gold).outcome is Outcome.CORRECT, template


@pytest.mark.parametrize(
    ("completion", "extracted"),
    [
        ("Answer: 34\nWait.\nAnswer: 36", "36"),
        ("**Answer:** 34", "34"),
        ("Answer:34", "34"),
        ("Answer:\n\n$$34$$", "34"),
        ("Answer: \\boxed{34}", "34"),
        (r"\boxed{33} is wrong, it is \boxed{34}", "34"),
        (r"\boxed{\boxed{34}}", "34"),
        (r"\boxed{1} or \boxed{2}", "1, 2"),
        (r"It goes in \boxed{}. The answer is 34.", "34"),
        ("<think>\\boxed{33}</think>\\boxed{34}", "34"),
        ("<answer>34</answer>", "34"),
        ("The loss is 28 percent.", "28 percent"),
        ("2+2=4, so\nA: 4", "4"),
        ("#### Step 1: add\nIt is so.\n#### 34", "34"),
        ("\\boxed{34}\nQuestion: 1+1?\n\\boxed{2}", "34"),
        ("What is it?\nSo \\boxed{34}", "34"),
        ("34", "34"),
        (r"\boxed{34", ""),
        (r"\boxed{3} or \boxed{34", ""),
        (r"I box it, \boxed{, like so: \boxed{34}.", "34"),
        (r"<think>It may be \boxed{34}", ""),
        ("", ""),
    ],
)
def test_what_is_taken_for_the_answer(completion, extracted):
    found = score(VERIFIER, "34", completion)
    assert found.extracted.strip() == extracted
    assert found.reward == float(extracted == "34")
    assert found.outcome.is_evidence


@pytest.mark.parametrize(
    "completion", ["The answer is not 34.", "I had 33 and got 34 from it", "33, 34", "34 35", "34 or so?"]
)
def test_a_number_is_never_picked_out_of_text(completion):
    assert score(VERIFIER, "34", completion).reward == 0.0


@pytest.mark.parametrize(
    "words",
    [
        "eighths", "sevenths", "thousandths", "millionths", "sixteenths", "quintillion", "lakh", "crore", "grand",
        "kilo", "below", "degrees below zero", "in the red", "in debt", "BC", "B.C.", "dozen", "gross",
        "hundred and six", "ninety", "or more", "percent of 9", "added to x", "repeating", "and up",
    ],
)  # fmt: skip
def test_words_that_change_the_value_are_no_unit(words):
    for answer in (f"7 {words}", rf"7\text{{ {words}}}"):
        assert score(VERIFIER, "7", boxed(answer)).reward == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        "The total isn't $7$.", "It can't be 7.", "x cannot equal $7$.", "I do not believe the answer is 7.",
        "I doubt that x is 7.", "The wrong answer is 7.", "The total must exceed $7$.", "The value lies above $7$.",
        "It would never be 7.", "This gives a contradiction with $7$.", "We rule out $7$.", "$7$ doesn't work.",
        "The answer isn\u2019t $7$.", "There is no way the answer equals $7$.", "We have roughly $7$ of them.",
        "It differs from $7$.", "Anything but $7$.",
        "It is not \\boxed{7}.", "\\boxed{7} is wrong.", "I don't think it is \\boxed{7}", "It can't be $\\boxed{7}$.",
        "This is not the answer: 7", "Wrong answer: 7",
        "Then divide it by 7.", "It did not increase by 7.", "It fell by 7 or 8 percent.",
    ],
)  # fmt: skip
def test_what_is_denied_or_only_a_bound_is_no_answer(completion):
    assert score(VERIFIER, "7", completion).reward == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        "It is not even, so the answer is 7.", "Since 3 does not divide it, x is 7.",
        "With no discount the total is 7.",
        "The area below the curve is 7.", "The number of integers between 1 and 9 is 7.", "Thus, the sum is $7$.",
        "It fell by 7 percent.", "It increased by 7%.", "The tax comes to 7 percent", "The loss was 7 percent.",
        "It is not \\boxed{3} but \\boxed{7}.", "\\boxed{7}, not \\boxed{3}",
    ],
)  # fmt: skip
def test_a_denial_of_something_else_does_no_harm(completion):
    assert score(VERIFIER, "7", completion).reward == 1.0


@pytest.mark.parametrize(
    "between",
    [
        " | ", "/", " - ", " + ", " $\\vee$ ", "; perhaps ", " or maybe ", " vs. ", ", but it could be ", " ? ", " & ",
        ". Maybe ", r" \text{ or } ", r" \quad ", " and/or ",
    ],
)  # fmt: skip
def test_two_boxes_side_by_side_are_one_answer_with_two_parts(between):
    completion = rf"It is \boxed{{3}}{between}\boxed{{7}}"
    assert [score(VERIFIER, gold, completion).reward for gold in ("3", "7", "3, 7")] == [0.0, 0.0, 1.0]


def test_an_echo_of_the_prompt_is_no_answer():
    prompt = prompt_of("42", text=r"Find it. An example: \boxed{42}")
    assert VERIFIER.verify(prompt, rf"{prompt.text} I cannot.").reward == 0.0
    assert VERIFIER.verify(prompt, rf"{prompt.text} So \boxed{{42}}").reward == 1.0


@pytest.mark.parametrize(
    "gold",
    [
        "", "  ", "$$", "-", "?", "...", r"\boxed{}", "proof", "Proof.", r"\text{proof}", "notfound", "Not found",
        "N/A", "None", "nan", "unknown", "See the figure above.", "See solution", "The proof is complete.",
        "Answers may vary.", "This follows by induction on n.", "not_found", "not-found", "#N/A", "n.a.", "<unknown>",
        "Not applicable", "unsolved", "Solution:", "Check the textbook", r"\blacksquare", "undefined?", "见解析", "略",
        "证明略", "[missing]", "See attached",
    ],
)  # fmt: skip
def test_a_gold_that_cannot_be_graded_is_never_paid(gold):
    assert VERIFIER.check_gold(prompt_of(gold))
    for completion in (boxed(gold), gold, boxed("7"), ""):
        found = score(VERIFIER, gold, completion)
        assert (found.reward, found.outcome) == (0.0, Outcome.UNSCORABLE)
        assert found.reason


@pytest.mark.parametrize("gold", ["undefined", "square", "无解", "No solution", "impossible", "infinitely many"])
def test_a_gold_of_words_can_be_graded(gold):
    assert score(VERIFIER, gold, boxed(gold)).reward == 1.0


def test_a_gold_whose_braces_do_not_close_is_compared_as_text():
    gold = r"\frac{1}{2}-\frac{n!}{(n+1)!"
    assert score(VERIFIER, gold, rf"So \boxed{{{gold}}}.").reward == 1.0
    assert score(VERIFIER, gold, r"\boxed{\frac{1}{2}}").reward == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9}}", "(10^{9})!", r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}",
        "10^{10^{10}}", r"\pi^{9^{9^{9}}}", "2^{100000!}", r"e^{e^{e^{10}}}", "((9^{999})^{999})^{999}",
        r"\Gamma(10^9)", "x^{99999999999}", r"\sqrt{9^{9^9}}", r"\binom{10^9}{10^8}", "1e999999999", "9^9^9^9",
    ],
)  # fmt: skip
def test_what_would_not_end_is_refused_at_once(answer):
    score(VERIFIER, r"\sqrt{5}", boxed(r"\sqrt{7}"))  # sympy is loaded
    started = time.monotonic()
    found = score(VERIFIER, "80", boxed(answer))
    assert time.monotonic() - started < 2.0
    assert (found.reward, found.outcome, found.extracted) == (0.0, Outcome.TIMEOUT, answer)
    assert score(VERIFIER, "80", boxed("80")).reward == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{" * 10_000,
        "(" * 50_000,
        boxed("(" * 900),
        boxed("-" * 1900),
        boxed("x^" * 190 + "x"),
        boxed(r"\sqrt{" * 150 + "2" + "}" * 150),
        boxed("{" * 600 + "5" + "}" * 600),
        r"\boxed{" * 300 + "5" + "}" * 300,
        "is " * 30_000,
        "$" * 20_001,
        "answer " * 10_000,
        "a, " * 30_000,
        boxed(", ".join(map(str, range(300)))),
        "<answer>" * 12_000,
        "#" * 96_000,
        "#### \n" * 16_000,
        "####" + " " * 90_000 + "x",
        "Question: a\n" * 8_000,
        "answer\nQuestion:\n" * 6_000,
        r"\boxed{3}" * 9_000 + r"\boxed{4",
        boxed("a" + "| x" * 100),
        "<think>" * 12_000,
        "fell by " * 12_000,
        (QUESTION + "\n") * 9_000,
    ],
    ids=lambda text: text[:12],
)
def test_long_and_deep_texts_cost_little(completion):
    started = time.monotonic()
    assert score(VERIFIER, "5, 6", completion).reward == 0.0
    assert time.monotonic() - started < 2.0


def test_a_lack_of_memory_is_no_verdict(monkeypatch):
    def exhausted(*_arguments, **_options):
        raise MemoryError

    monkeypatch.setattr("vipray.verifiers.symbolic._read", exhausted)
    with pytest.raises(MemoryError):
        score(VERIFIER, r"\sqrt{41}", boxed(r"\sqrt{43}+x"))


def test_it_works_off_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(score(VERIFIER, r"2\sqrt{3}", boxed(r"\sqrt{12}"))))
    thread.start()
    thread.join(30)
    assert [each.reward for each in found] == [1.0]


PIECES = st.sampled_from(
    [
        r"\frac", "{", "}", "(", ")", "[", "]", "^", "_", "x", "n", "i", "e", r"\pi", r"\sqrt", r"\boxed{", "1", "23",
        "1000", "!", "+", "-", "*", "/", "=", "<", r"\le", r"\infty", r"\cup", ",", ":", " and ", " or ", r"\text{",
        "%", "$", r"\{", r"\}", r"\ln", r"\sin", r"\binom", ".", "\n", "Answer:", "The answer is ", "#### ",
        "<answer>", "</answer>", "<think>", "</think>", r"\pm", "|", r"\begin{pmatrix}", r"\end{pmatrix}", r"\\", "&",
        " cm", r"^\circ", "½", "√", "\x00", "\ud800", "中", r"\int", r"\sum", " million", r"\approx", r"\in", "e5",
        r"\mod", r"\gcd",
    ]
)  # fmt: skip
LATEX = st.lists(PIECES, max_size=12).map("".join)


@settings(max_examples=300, deadline=None)
@given(gold=LATEX | st.text(max_size=30), completion=LATEX | LATEX.map(boxed) | st.text(max_size=80))
def test_no_text_raises_and_every_reward_is_0_or_1(gold, completion):
    found = score(VERIFIER, gold, completion)
    assert found.reward in (0.0, 1.0)
    assert (found.reward == 1.0) == (found.outcome is Outcome.CORRECT)
    assert found.outcome is not Outcome.ERROR


@settings(max_examples=200, deadline=None)
@given(number=st.integers(), other=st.integers())
def test_integers_of_any_size_compare_by_value(number, other):
    for answer in (str(number), f"{number:,}", f"{number}.0", rf"\frac{{{2 * number}}}{{2}}"):
        assert score(VERIFIER, str(number), boxed(answer)).reward == 1.0
    assert score(VERIFIER, str(number), boxed(str(other))).reward == float(number == other)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.integers(-999, 999), min_size=2, max_size=5, unique=True), data=st.data())
def test_a_list_is_right_in_any_order_and_only_whole(parts, data):
    gold = ", ".join(map(str, parts))
    assert score(VERIFIER, gold, boxed(" and ".join(map(str, data.draw(st.permutations(parts)))))).reward == 1.0
    assert score(VERIFIER, gold, boxed(", ".join(map(str, parts[:-1])))).reward == 0.0
    assert score(VERIFIER, f"({gold})", boxed(f"({', '.join(map(str, reversed(parts)))})")).reward == 0.0


@settings(max_examples=40, deadline=None)
@given(a=st.integers(-9, 9), b=st.integers(-9, 9), c=st.integers(-9, 9), factor=st.integers(-5, 5).filter(bool))
def test_a_line_is_right_up_to_a_factor_and_no_other_line_is(a, b, c, factor):
    gold = f"{a}x+{b}y+{c}=0".replace("+-", "-")
    scaled = f"{factor * a}x+{factor * b}y+{factor * c}=0".replace("+-", "-")
    moved = f"{a}x+{b}y+{c + 1}=0".replace("+-", "-")
    if a or b:
        assert score(VERIFIER, gold, boxed(scaled)).reward == 1.0
        assert score(VERIFIER, gold, boxed(moved)).reward == 0.0
