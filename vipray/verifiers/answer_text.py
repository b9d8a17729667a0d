r"""Finds what a completion gives as its final answer. Pure text: nothing is interpreted here.

What the completion does not say as its own answer is cut off first (`own_words`):

1. an echo of the prompt;
2. thinking: everything before the last `</think>`. Thinking that never ends holds no answer;
3. a run-on: what follows a marked answer from a line such as `Question:` or `User:` answers another question.

The answer is then (`marked_answer`) whichever of these ends last:

- `<answer>…</answer>`;
- `\boxed{…}` (also `\fbox`). Boxes that only `and`, `or` or commas separate are one answer with several parts, so
  that `\boxed{1} or \boxed{2}` is never taken for the right one of the two. A box without its closing brace after
  the last complete one means that the completion was cut: there is no answer;
- a line `Answer: …`, `A: …` or `答案: …`.

Only where there is none of these: what follows the last `answer is`, else what follows the last `####` that is no
heading.
"""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

_RUN_ON = re.compile(r"^[ \t#*]*(?:question|problem|exercise|user|human|q)\b[ \t*\d]*:", re.IGNORECASE | re.MULTILINE)
_MARK = re.compile(r"\\boxed|####|</answer>|\banswer\b|^A:", re.IGNORECASE | re.MULTILINE)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?:\{|([^\s{}$.,;\\]+))")
_ANSWER_LINE = re.compile(
    r"(?:(?<![^\s>*_#(])answer[*_`]*[ \t]*[:：]|答案[*_`]*[ \t]*[:：是为]|^[ \t]*A:)[*_`]*",
    re.IGNORECASE | re.MULTILINE,
)
_HASHES = re.compile(r"####[ \t]*([^\n]*\d[^\n]*)")
_HEADING = re.compile(r"\d+[.):](?:\s|$)|step\b|part\b|case\b", re.IGNORECASE)
_ANSWER_IS = re.compile(
    r"\banswers?(?:[^.\n]{0,60}?[\s*_])(?:is|are|would be|should be|must be)\b[*_]*:?[*_]*", re.IGNORECASE
)
_BETWEEN_BOXES = re.compile(
    r"[\s$,;&()\[\]\\]*(?:\\text\s*\{)?\s*(?:and|or)?\s*\}?[\s$,;&()\[\]\\]*"
    r"(?:\\?[a-zA-Z]+(?:_\{?\w+\}?)?\s*=)?[\s$(\\]*"
)
_MIN_ECHO = 20  # characters of a prompt that is recognised in the middle of a text
_MAX_BOXES = 200  # the last ones of a text
_MAX_BOX_CHARACTERS = 20_000
_MAX_NESTED = 20  # boxes in a box
_MAX_BETWEEN = 60  # characters
_SENTENCE_END = re.compile(r"\.(?=\s+[A-Z*]|\s*$)|\n|。")
_DISPLAY = (("$$", "$$"), (r"\[", r"\]"))


class _Marked(NamedTuple):
    """An answer and where in the text it ends."""

    end: int
    answer: str


class _Box(NamedTuple):
    """Where a box begins and ends, and what it holds."""

    start: int
    end: int
    inside: str


class CutAnswerError(ValueError):
    """The completion stops inside its answer."""


def own_words(prompt_text: str, completion: str) -> str:
    r"""Return the completion without an echo of the prompt, thinking and run-on.

    >>> own_words("2+2?", "2+2? <think>5?</think>Answer: 4.\nQuestion: 1+1?\nAnswer: 2")
    'Answer: 4.\n'
    """
    text = completion
    question = prompt_text.strip()
    if question and (question in text if len(question) >= _MIN_ECHO else text.lstrip().startswith(question)):
        text = text.rpartition(question)[2]
    text = text.rpartition("</think>")[2] if "</think>" in text else text.partition("<think>")[0]
    run_on = next((match for match in _RUN_ON.finditer(text) if _MARK.search(text, 0, match.start())), None)
    return text[: run_on.start()] if run_on else text


def marked_answer(text: str) -> str | None:
    r"""Return the answer that is marked as such, or None where nothing is marked.

    Raises:
        CutAnswerError: the last box is not closed.

    >>> marked_answer(r"So \boxed{3}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> marked_answer("**Answer:** 34")
    '34'
    >>> marked_answer("The answer is 5 apples. Done.")
    '5 apples'
    """
    found = [marked for marked in (_tagged(text), _boxed(text), _answer_line(text)) if marked and marked.answer]
    if found:
        return max(found, key=lambda marked: marked.end).answer
    phrase = _answer_phrase(text)
    return phrase if phrase is not None else _after_hashes(text)


def boxed_or_all(text: str) -> str:
    r"""Return what the boxes of `text` hold, or the whole of it.

    Raises:
        CutAnswerError: the last box is not closed.
    """
    marked = _boxed(text)
    return marked.answer if marked and marked.answer else text.strip()


def tagged_answer(text: str) -> str | None:
    """Return what the last `<answer>` tag holds, or None."""
    marked = _tagged(text)
    return marked.answer if marked else None


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _tagged(text: str) -> _Marked | None:
    last = _last_match(_TAG, text)
    return _Marked(last.end(), boxed_or_all(last.group(1))) if last else None


def _boxed(text: str) -> _Marked | None:
    boxes, is_cut = _find_boxes(text)
    if is_cut:
        raise CutAnswerError("the last box is not closed")
    if not boxes:
        return None
    together = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        between = text[box.end : together[-1].start]
        if len(between) > _MAX_BETWEEN or not _BETWEEN_BOXES.fullmatch(between):
            break
        together.append(box)
    parts = dict.fromkeys(boxed_or_all(box.inside) for box in reversed(together))
    return _Marked(boxes[-1].end, ", ".join(parts))


def _find_boxes(text: str) -> tuple[list[_Box], bool]:
    """Return the outermost boxes that hold something, and whether one that does not close follows them."""
    boxes: list[_Box] = []
    is_cut = False
    for match in deque(_BOX.finditer(text), maxlen=_MAX_BOXES):
        if boxes and match.start() < boxes[-1].end:
            continue  # inside the box before
        end = match.end() - 1 if match.group(1) else closing_brace(text, match.end())
        is_cut = end is None
        inside = match.group(1) or text[match.end() : end].strip()
        if end is not None and len(_BOX.findall(inside)) > _MAX_NESTED:
            raise CutAnswerError("boxes are nested without end")
        if end is not None and inside:
            boxes.append(_Box(match.start(), end + 1, inside))
    return boxes, is_cut


def closing_brace(text: str, start: int) -> int | None:
    r"""Return the index of the brace that closes the one before `start`, or None; `\{` and `\}` do not count.

    >>> closing_brace("{a{b}}", 1)
    5
    """
    depth = 1
    index = start
    while index < min(len(text), start + _MAX_BOX_CHARACTERS):
        if text[index] == "\\":
            index += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if not depth:
            return index
        index += 1
    return None


def _answer_line(text: str) -> _Marked | None:
    last = _last_match(_ANSWER_LINE, text)
    if last is None:
        return None
    rest = text[last.end() :]
    answer = _first_line_or_display(rest)
    phrase = _answer_phrase(answer)
    return _Marked(len(text) - len(rest.lstrip()) + len(answer), boxed_or_all(phrase or answer))


def _first_line_or_display(text: str) -> str:
    text = text.strip()
    for opening, closing in _DISPLAY:
        if text.startswith(opening):
            inside, closed, _ = text.removeprefix(opening).partition(closing)
            return inside.strip() if closed else ""
    return text.partition("\n")[0].strip()


def _answer_phrase(text: str) -> str | None:
    last = _last_match(_ANSWER_IS, text)
    return first_sentence(text[last.end() :]) if last else None


def _after_hashes(text: str) -> str | None:
    lines = [match.group(1).strip() for match in _HASHES.finditer(text)]
    return next((line for line in reversed(lines) if not _HEADING.match(line)), None)


def first_sentence(text: str) -> str:
    """Return the text up to the end of its first sentence or line, without the full stop.

    >>> first_sentence(" 4:40 a.m. sharp. Then 5.")
    '4:40 a.m. sharp'
    """
    text = text.strip()
    for opening, closing in _DISPLAY:
        if text.startswith(opening):
            return text.removeprefix(opening).partition(closing)[0].strip()
    return _SENTENCE_END.split(text, maxsplit=1)[0].strip()


def last_sentence(text: str) -> str:
    """Return the last sentence of the last line that holds something, without the full stop.

    >>> last_sentence("We add. It is 5 m. So it costs $4.50.")
    'So it costs $4.50'
    """
    parts = [part.strip() for part in _SENTENCE_END.split(text) if part.strip(" .*_`")]
    return parts[-1] if parts else ""
