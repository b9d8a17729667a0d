r"""Mathematical answers: `\boxed{…}`, `Answer: …` or a plain sentence against a LaTeX gold.

What is extracted, in which order: see `answer_text`. Where nothing is marked as the answer, it is the last sentence:
what follows its last `is`, `are`, `be` or `equals` (or, where a number with a percent sign or nothing else follows,
`fell by`, `comes to` and the like), the sentence itself where it is an expression and nothing else,
or its only formula between dollar signs. No number is ever picked out of running text.

When two answers are equal: see `math_compare`. What would take for ever to work out is refused at once, with the
outcome `timeout`: no reward, and no evidence either.

The gold is the whole text (or what its own box holds), never a part of it. One that is empty, prose or a placeholder
such as `proof` cannot be graded.
"""

from __future__ import annotations

import functools
import re

from vipray.data.prompts import Prompt
from vipray.verifiers import symbolic
from vipray.verifiers.answer_text import (
    CutAnswerError,
    boxed_or_all,
    is_denied,
    last_sentence,
    marked_answer,
    own_words,
)
from vipray.verifiers.latex_text import balanced, compact, tidy
from vipray.verifiers.math_compare import equal_forms
from vipray.verifiers.math_forms import Form, has_words, read_form
from vipray.verifiers.numbers import TooCostlyError
from vipray.verifiers.protocol import Score

_MAX_GOLD_WORDS = 4
_PLACEHOLDERS = re.compile(
    r"proofs?|prove[dn]?|not[ _-]?(?:found|applicable|available|given|provided|known)|none|null|nan|n[./ ]?a|nil"
    r"|unknown|undetermined|undefined\?+|todo|tbd|tba|error|missing|omitted|unavailable|unanswered|unsolved|untitled"
    r"|(?:the |full )?(?:solutions?|answers?)|qed|\\(?:blacksquare|square|box)"
    r"|(?:证明|答案|过程|解析|解答|详)*(?:见|略|如图|无)(?:解析|详解|解答|答案|图|上|下|证明|过程|略)*|证明|解析|答案|证毕|无答案|暂无(?:答案|解析)?|不详|未知"
)
_PROSE = re.compile(
    r"\b(?:see|figure|above|below|diagram|picture|image|graph|table|proof|prove[dn]?|answers?|explanation|derivation"
    r"|(?:see|the|no|to|full) (?:the )?solution|solutions? (?:is|are|below)|omitted|provided|available|given|refer|vary"
    r"|varies|q\.?e\.?d|not found|textbook|attached|appendix|shown|show that|open.ended)\b",
    re.IGNORECASE,
)
_REAL_ANSWERS = re.compile(r"(?:there (?:is|are) )?no (?:real )?solutions?", re.IGNORECASE)
_LINK = re.compile(r".*[\s$](?:is|are|be|equals|equal to)\b:?\s*(?P<rest>\S.*)", re.DOTALL)
_CHANGE = re.compile(
    r".*\b(?:(?:f[ae]ll|falls|fallen|rose|rises?|gr[eo]ws?|grown|drop\w*|decreas\w+|increas\w+|declin\w+|reduced|raised|went"
    r"|goes|chang\w+)(?: up| down)? by|(?:comes?|came|amounts?|amounted|adds up|works out) to"
    r"|(?:was|were)(?=.*(?:%|per ?cent)$))\s+(?P<rest>[^a-z]*\d[^a-z]*"
    r"(?:per ?cent)?)",
    re.DOTALL | re.IGNORECASE,
)
_NEAR = re.compile(
    r"\b(?:below|above|between|over|under|beyond|past|than|about|almost|nearly|approximately|around|roughly|least|most"
    r"|up to|like|unlike|differs? from|different from|far from|(?:any|every|no)thing but|all but"
    r"|instead of|without|except|excluding|no)(?:\s+\w+)?[\s$\\(\[]*$",
    re.IGNORECASE,
)
_CONNECTIVE = re.compile(r"^(?:so|thus|hence|therefore|then|finally)\b,?\s+", re.IGNORECASE)
_FORMULA = re.compile(r"(?<!\\)\$\$?(.+?)(?<!\\)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_EMPTY_BOX = re.compile(r"[\s$]*\\boxed\s*\{\s*\}[\s$.]*")
_NO_WORDS = {"and", "sin", "cos", "tan", "log", "begin", "end", "pmatrix", "bmatrix", "matrix", "array"}
_SMALL_WORDS = {"by", "on", "is", "of", "it", "in", "to", "we", "be", "as", "at", "an", "if", "so", "he"}
_MAX_ANSWER_CHARACTERS = 2_000
_BEFORE_ANSWER = re.compile(r"(?:^|boxed\{|\bis:?|:|>)[\s$*\\(\[]*$", re.IGNORECASE)
_AFTER_ANSWER = re.compile(r"[\s}$*\\)\].]*(?:</answer>\s*)?(?:I hope it is correct\.?\s*)?$", re.IGNORECASE)


class MathVerifier:
    """Verifier of answers that are numbers, expressions, equations, intervals, sets, lists, matrices or a few words."""

    def __init__(self) -> None:
        symbolic.warm_up()

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Reward 1 for an answer that equals the gold, else 0."""
        reason = self.check_gold(prompt)
        if reason is not None:
            return Score.unscorable(reason)
        if not balanced(prompt.answer):
            return _verify_as_text(prompt.answer, own_words(prompt.text, completion))
        try:
            answer = extract_answer(own_words(prompt.text, completion))
        except CutAnswerError as error:
            return Score.wrong("", f"no answer: {error}")
        if not answer:
            return Score.wrong("", "no answer was found")
        return _compare(prompt.answer, answer)

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None where the gold can be graded, else the reason why not."""
        return ungradable(prompt.answer)


def extract_answer(text: str) -> str | None:
    r"""Return what `text` gives as its answer, as written, or None.

    Raises:
        CutAnswerError: the text stops inside its answer.

    >>> extract_answer("The loss is 28 percent."), extract_answer("Perhaps 3 or so, who knows")
    ('28 percent', None)
    """
    answer = marked_answer(text)
    return answer if answer is not None else _unmarked_answer(text)


def _unmarked_answer(text: str) -> str | None:
    sentence = _CONNECTIVE.sub("", last_sentence(text))
    if len(sentence) > _MAX_ANSWER_CHARACTERS:
        return None
    link = _LINK.fullmatch(sentence)
    if link:
        return None if is_denied(sentence[: link.start("rest")]) else link["rest"]
    change = _CHANGE.fullmatch(sentence)
    if change:
        return None if is_denied(sentence[: change.start("rest")]) else change["rest"]
    if not has_words(tidy(sentence)) or _is_expression(sentence):
        return sentence or None
    formulas = list(_FORMULA.finditer(sentence))
    if len(formulas) != 1 or _is_doubtful(sentence, formulas[0]):
        return None
    return next(part for part in formulas[0].groups() if part)


def _is_doubtful(sentence: str, formula: re.Match[str]) -> bool:
    """Whether a sentence denies its formula, or names it as a bound or as about the value."""
    before, after = sentence[: formula.start()], sentence[formula.end() :]
    return is_denied(before) or bool(_NEAR.search(before)) or is_denied(after)


def _is_expression(sentence: str) -> bool:
    """Whether a sentence is nothing but an answer: expressions with their units, or one word."""
    form = read_form(sentence)
    if form is None or len(sentence.split()) == 1:
        return form is not None
    return all(part.kind != "words" for part in (form.items if form.kind == "list" else (form,)))


@functools.lru_cache(maxsize=65536)
def ungradable(gold: str) -> str | None:
    """Return why a gold cannot be graded, or None where it can."""
    text = tidy(_gold_text(gold))
    if not re.search(r"\w|\\[a-zA-Z{]", text):
        return "the gold is empty"
    words = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).strip()
    if _PLACEHOLDERS.fullmatch(words.strip(" .:#!*<>()[]_-").casefold()):
        return f"the gold {_short(gold)} is a placeholder"
    if _REAL_ANSWERS.fullmatch(words.strip(" .")):
        return None
    found = [word.lower() for word in re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}", words)]
    num_words = sum((len(word) > 2 and word not in _NO_WORDS) or word in _SMALL_WORDS for word in found)
    if _PROSE.search(words) or num_words > _MAX_GOLD_WORDS:
        return f"the gold {_short(gold)} is prose"
    return None


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _gold_text(gold: str) -> str:
    if _EMPTY_BOX.fullmatch(gold.strip()):
        return ""
    try:
        return boxed_or_all(gold)
    except CutAnswerError:
        return gold


@functools.lru_cache(maxsize=65536)
def _gold_form(gold: str) -> Form | None:
    return read_form(_gold_text(gold))


def _compare(gold: str, answer: str) -> Score:
    if len(answer) > _MAX_ANSWER_CHARACTERS and answer.strip() != gold.strip():
        return Score.wrong(answer, f"an answer of over {_MAX_ANSWER_CHARACTERS} characters")
    tidy_gold, tidy_answer = compact(tidy(_gold_text(gold))), compact(tidy(answer))
    if tidy_gold == tidy_answer:
        return Score.correct(answer)
    form, gold_form = read_form(answer), _gold_form(gold)
    if form is None or gold_form is None:
        return Score.wrong(answer, "the answer is empty")
    try:
        right = equal_forms(gold_form, form)
    except TooCostlyError as error:
        return Score.refused(answer, str(error))
    return Score.correct(answer) if right else Score.wrong(answer)


def _verify_as_text(gold: str, text: str) -> Score:
    """Compare with a gold whose braces do not close: only the same text, as the answer, is right."""
    start = text.rfind(gold)
    right = start >= 0 and bool(_BEFORE_ANSWER.search(text[:start]) and _AFTER_ANSWER.match(text[start + len(gold) :]))
    return Score.correct(gold) if right else Score.wrong("", "the gold's braces do not close: only its text is right")
