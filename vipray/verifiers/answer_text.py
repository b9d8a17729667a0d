r"""Finds what a completion gives as its final answer. Pure text: nothing is interpreted here.

What the completion does not say as its own answer is cut off first (`own_words`):

1. an echo of the prompt before the first marked answer, whatever its white space;
2. thinking: everything before the last `</think>` (or another tag of its kind). Thinking that never ends holds no
   answer;
3. a run-on: what follows a stop token, or follows a marked answer from a line such as `Question:` or `User:` or from
   another echo of the prompt, answers another question.

The answer is then (`marked_answer`) whichever of these ends last:

- `<answer>…</answer>`;
- `\boxed{…}` (also `\fbox`), except one that is denied (`not` before it, `is wrong` after it). Boxes that only `and`,
  `or`, `perhaps`, commas or operators separate are one answer with several parts, so that `\boxed{1} or \boxed{2}` is
  never taken for the right one of the two. A box without its closing brace after the last complete one means that the
  completion was cut: there is no answer;
- a line `Answer: …`, `A: …` or `答案: …`.

Only where there is none of these: what follows the last `answer is`, unless its clause denies it (`I doubt that …`),
else what follows the last `####` that is no heading.
"""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

_RUN_ON = re.compile(r"^[ \t#*]*(?:question|problem|exercise|user|human|q)\b[ \t*\d]*:", re.IGNORECASE | re.MULTILINE)
_STOP = re.compile(
    r"<[|｜](?:im_(?:start|end|sep)|endoftext|end_of_text|begin_of_text|eot_id|eom_id|end|start|return|user|assistant"
    r"|system|start_header_id|eos|end[▁_]of[▁_]sentence|User|Assistant)[|｜]>|</?s>|<(?:eos|bos|pad)>"
    r"|<(?:start|end)_of_turn>|\[/?INST\]"
)
_LEADING_TOKENS = re.compile(
    r"(?:\s*(?:<s>|<bos>|<\|begin_of_text\|>|<\|im_start\|>assistant\b|<start_of_turn>model\b|<[|｜][Aa]ssistant[|｜]>"
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>))+"
)
_THOUGHTS = "think|thinking|thoughts?|reason|reasoning|reflection|analysis|scratchpad"
_THINKS = re.compile(rf"<(?:{_THOUGHTS})>|<\|begin_of_thought\|>|\[THINK\]|◁think▷", re.IGNORECASE)
_HAS_THOUGHT = re.compile(rf"</(?:{_THOUGHTS})>|<\|end_of_thought\|>|\[/THINK\]|◁/think▷", re.IGNORECASE)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?:\{|([^\s{}$.,;\\]+))")
_ANSWER_LINE = re.compile(
    r"(?:(?<![^\s>*_#(])answer[*_`]*[ \t]*[:：]|答案[*_`]*[ \t]*[:：是为]|^[ \t]*A:)[*_`]*",
    re.IGNORECASE | re.MULTILINE,
)
_HASHES = "####"
_HEADING = re.compile(r"\d+[.):]\s+\S|step\b|part\b|case\b", re.IGNORECASE)
_ANSWER_IS = re.compile(
    r"\banswers?(?:[^.\n]{0,60}?[\s*_])(?:is|are|would be|should be|must be)\b[*_]*:?[*_]*", re.IGNORECASE
)
_MARK = re.compile(
    rf"\\boxed\s*(?:\{{\s*)?[^\s{{}}]|####[ \t]*[^\s#]|</answer>|(?:{_ANSWER_LINE.pattern})\s*\S|{_ANSWER_IS.pattern}",
    re.IGNORECASE | re.MULTILINE,
)
_DENIAL = re.compile(
    r"\bnot\b|n['’]t\b|\b(?:is|are|was|do|does|did|ca|wo|could|would|should)nt\b|\b(?:cannot|never|nor|neither|doubt\w*"
    r"|wrong|incorrect|false|contradict\w*|exceed\w*|impossible|unlikely|if|unless|suppose|assum\w+|reject\w*|exclud\w*"
    r"|fail\w*|no (?:way|chance|reason)|rules? out|ruled out)\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"[,;:]\s|\b(?:so|thus|hence|therefore|then|because|since|that means|but)\b|\.\s|\n", re.IGNORECASE
)
_BEFORE_DENIED_BOX = re.compile(
    r"(?:(?:\bnot|n['’]t|\bcannot|\bnever|\b(?:rather|other) than|\binstead of)(?:\s+(?:be|equal|equal to))?"
    r"|(?:(?:\bnot|n['’]t) (?:think|believe)|\bdoubt|\b(?:wrong|incorrect|false) (?:answer|value|result))\b[^.,;\n]*)"
    r"[\s$*:(\[\\]*$",
    re.IGNORECASE,
)
_AFTER_DENIED_BOX = re.compile(
    r"[\s$*)\]\\]*(?:(?:is|was|would be)\s+(?:also )?(?:not (?:the|right|correct|valid|possible)|wrong|incorrect|false"
    r"|impossible|invalid)|(?:is|was|does|ca)n['’]t|cannot|fails)\b",
    re.IGNORECASE,
)
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;:?&()\[\]\\|/+*–—-]|\\text\s*\{|\}|\\(?:vee|lor|wedge|land|cup|mid|quad|qquad|pm|cdot|times|div)(?![a-z])"
    r"|\.(?=\s*(?:or|maybe|perhaps|possibly|alternatively)\b)|\b(?:and|or|but|either|else|both|also|perhaps|maybe|possibly|probably|alternatively|vs|versus|plus|minus|over"
    r"|(?:it )?(?:could|might|may)(?: also)? be|as well as)\b\.?)*"
    r"(?:\\?[a-zA-Z]+(?:_\{?\w+\}?)?\s*=)?[\s$(\\]*",
    re.IGNORECASE,
)
_MIN_ECHO = 20  # characters of a prompt that is recognised in the middle of a text
_MAX_BOXES = 200  # the last ones of a text
_MAX_BOX_CHARACTERS = 20_000
_MAX_NESTED = 20  # boxes in a box
_MAX_BETWEEN = 60  # characters
_MAX_BEFORE = 200  # characters of a sentence that are looked at for a denial
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
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
    text = _after_leading_echo(prompt_text, completion)
    leading = _LEADING_TOKENS.match(text)
    text = text[leading.end() :] if leading else text
    stop = _STOP.search(text)
    text = text[: stop.start()] if stop else text
    thought = _last_match(_HAS_THOUGHT, text)
    text = text[thought.end() :] if thought else text
    thinks = _THINKS.search(text)
    text = text[: thinks.start()] if thinks else text
    text = _without_echoes(prompt_text, text)
    mark = _MARK.search(text)
    run_on = _RUN_ON.search(text, mark.end()) if mark else None
    return text[: run_on.start()] if run_on else text


def _after_leading_echo(prompt_text: str, text: str) -> str:
    question = prompt_text.strip()
    start = text.lstrip()
    if not question or not start.startswith(question):
        return text
    rest = start[len(question) :]
    if len(question) >= _MIN_ECHO:
        return rest
    return rest if rest.strip() and (rest[0].isspace() or not question[-1].isalnum()) else text


def _without_echoes(prompt_text: str, text: str) -> str:
    """Cut off what stands before an echo; one that follows a marked answer ends the text."""
    question = " ".join(prompt_text.split())
    if len(question) < _MIN_ECHO or question not in " ".join(text.split()):
        return text
    start = 0
    for echo in re.finditer(r"\s+".join(map(re.escape, question.split())), text):
        if _MARK.search(text, start, echo.start()):
            return text[start : echo.start()]
        start = echo.end()
    return text[start:]


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
    start = last = None
    for match in _TAG.finditer(text):
        if not match.group(1):
            start = match.end() if start is None else start
        elif start is not None:
            last, start = (start, match), None
    return _Marked(last[1].end(), boxed_or_all(text[last[0] : last[1].start()])) if last else None


def _boxed(text: str) -> _Marked | None:
    boxes, is_cut = _find_boxes(text)
    if is_cut:
        raise CutAnswerError("the last box is not closed")
    boxes = [box for box in boxes if not _is_denied_box(text, box)]
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


def _is_denied_box(text: str, box: _Box) -> bool:
    before = text[max(0, box.start - _MAX_BETWEEN) : box.start]
    return bool(_BEFORE_DENIED_BOX.search(before) or _AFTER_DENIED_BOX.match(text, box.end))


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
    for match in _BRACE.finditer(text, start, start + _MAX_BOX_CHARACTERS):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if not depth:
            return match.start()
    return None


def _answer_line(text: str) -> _Marked | None:
    last = _last_match(_ANSWER_LINE, text)
    if last is None or is_denied(text[: last.start()]):
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
    if last is None or is_denied(text[: last.end()]):
        return None
    return first_sentence(text[last.end() :])


def _after_hashes(text: str) -> str | None:
    lines = [line.partition(_HASHES)[2].strip() for line in text.split("\n") if _HASHES in line]
    return next((line for line in reversed(lines) if re.search(r"\d", line) and not _HEADING.match(line)), None)


def is_denied(before: str) -> bool:
    """Whether the clause that a text ends with says that what follows is not so, or only perhaps.

    >>> is_denied("I doubt that x is"), is_denied("It is not even, so x is")
    (True, False)
    """
    before = before[-_MAX_BEFORE:]
    last = _last_match(_CLAUSE, before)
    return bool(_DENIAL.search(before, last.end() if last else 0))


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
