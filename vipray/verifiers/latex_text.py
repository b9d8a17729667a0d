r"""Brings LaTeX and plain text to one way of writing, so that what means the same compares as the same text.

Only spelling changes here: dollar signs, spaces and sizes go, `\dfrac12` becomes `\frac{1}{2}`, `≤` and `<=` become
`\le`, `1{,}000` becomes `1,000`, `²` becomes `^{2}`, every text command becomes `\text{…}`. No value changes.
"""

from __future__ import annotations

import re
import unicodedata

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ"
_PLAIN_SUPERSCRIPTS = str.maketrans(_SUPERSCRIPTS, "0123456789+-n")
_UNICODE = {
    "−": "-", "–": "-", "‒": "-", "﹣": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∅": r"\emptyset ", "√": r"\sqrt ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ",
    "“": '"', "”": '"', "‘": "'", "’": "'", "⟨": r"\langle ", "⟩": r"\rangle ",
}  # fmt: skip
_WORDS = {
    **dict.fromkeys(("leq", "leqslant", "leqq"), r"\le "),
    **dict.fromkeys(("geq", "geqslant", "geqq"), r"\ge "),
    **dict.fromkeys(("neq", "not="), r"\ne "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), r"\frac"),
    **dict.fromkeys(("varnothing",), r"\emptyset "),
    **dict.fromkeys(("lbrace",), r"\{"),
    **dict.fromkeys(("rbrace",), r"\}"),
    **dict.fromkeys(("lparen",), "("),
    **dict.fromkeys(("rparen",), ")"),
    **dict.fromkeys(("lbrack",), "["),
    **dict.fromkeys(("rbrack",), "]"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("lt",), "<"),
    **dict.fromkeys(("gt",), ">"),
    **dict.fromkeys(("degree", "degrees"), r"^\circ "),
    **dict.fromkeys(("colon",), ":"),
    **dict.fromkeys(("lor",), r"\text{ or }"),
    **dict.fromkeys(("land",), r"\text{ and }"),
    **dict.fromkeys(("quad", "qquad", "enspace", "thinspace"), " "),
    **dict.fromkeys(("euro",), "€"),
    **dict.fromkeys(("pounds",), "£"),
    **dict.fromkeys(
        ("left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "displaystyle", "textstyle",
         "limits", "nolimits", "middle"), ""
    ),
}  # fmt: skip
_COMMAND = re.compile(r"\\([a-zA-Z]+)(?![a-zA-Z])")
_TEXT_COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|tt|sf)?|math(?:rm|bf|it|sf|tt)|mbox|hbox|bm|boldsymbol|operatorname)\s*\{"
)
_ARGUMENT = r"([0-9a-zA-Z]|\\[a-zA-Z]+(?![a-zA-Z{]))"
_BARE_TOP = re.compile(rf"\\frac\s*{_ARGUMENT}")
_BARE_BOTTOM = re.compile(rf"\\frac\s*(\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})\s*{_ARGUMENT}")
_EMPTY_TEXT = re.compile(r"\\text\{\s*\}")
_TEXT_THAT_IS_MATHS = re.compile(r"\\text\{\s*([-+]?[\d.,/]+|[a-zB-DF-IMO-UX-Z](?<![mgslhL]))\s*\}")
_PLAIN_FUNCTION = re.compile(r"(?<![a-zA-Z\\{])(sin|cos|tan|ln|log|pi)(?![a-zA-Z}])")
_PLAIN_INFINITY = re.compile(r"(?<![a-zA-Z\\])(?:infinity|infty|inf)(?![a-zA-Z])")
_PLAIN_ROOT = re.compile(r"(?<![a-zA-Z\\])sqrt(?=\s*[({\d])")
_BARE_ROOT = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*(\d+|[a-zA-Z]|\((?:[^()]*)\))")
_INNER_SPACE = re.compile(r"(?<=\d)\\[,!;: ](?=\d{3}(?!\d))")
_SPACES = re.compile(r"(?<!\\)\\[,!;:> ]|(?<!\\)~|\s+")
_MATH_SIGNS = re.compile(r"(?<!\\)\$|(?<!\\)\\[()\[\]]")
_EDGES = ' \t\n`"*_;,。'
_EMPHASIS = re.compile(r"(?<![\w)}])\*\*(.+?)\*\*(?![\w({])|`(.+?)`")


def tidy(text: str) -> str:
    r"""Return `text` in the one spelling.

    >>> tidy(r"$\dfrac12$."), tidy("`$34$`"), tidy(r"11,\!090"), tidy("x ≤ 3²")
    ('\\frac{1}{2}', '34', '11,090', 'x \\le 3^{2}')
    """
    text = _emphasised(text)
    text = _ascii(text)
    text = _MATH_SIGNS.sub(" ", text)
    text = text.replace("{,}", ",").replace(r"\!", "").replace("{-}", "-").replace("{+}", "+")
    text = _INNER_SPACE.sub("", text)
    text = text.replace(r"\%", "%").replace(r"\&", "&").replace(r"\#", "#")
    text = _SPACES.sub(" ", text)
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne ")
    text = _TEXT_COMMAND.sub(r"\\text{", text)
    text = _EMPTY_TEXT.sub(" ", text)
    text = _TEXT_THAT_IS_MATHS.sub(r"\1", text)
    text = _COMMAND.sub(_word, text)
    text = _PLAIN_FUNCTION.sub(r"\\\1 ", text)
    text = _PLAIN_INFINITY.sub(r"\\infty ", text)
    text = _PLAIN_ROOT.sub(r"\\sqrt", text)
    text = _BARE_TOP.sub(r"\\frac{\1}", text)
    text = _BARE_BOTTOM.sub(r"\\frac\1{\2}", text)
    text = _BARE_ROOT.sub(_root, text)
    text = re.sub(r"\^\{\s*\\circ\s*\}", r"^\\circ ", text)
    text = re.sub(" {2,}", " ", text)
    return _without_edges(text)


def balanced(text: str) -> bool:
    r"""Whether the braces of a LaTeX text close each other; `\{` and `\}` do not count."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace("\\\\", "")):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def compact(text: str) -> str:
    r"""Return tidy text without the spaces and braces that carry no meaning, for comparison as text.

    >>> compact("x^{2} + 1")
    'x^2+1'
    """
    text = re.sub(r"(\\[a-zA-Z]+) +(?=[a-zA-Z])|(?<=\d) +(?=[\d.])", r"\1\0", text)
    text = text.replace(" ", "").replace("\0", " ")
    return re.sub(r"([\^_])\{(\w)\}", r"\1\2", text)


def _emphasised(text: str) -> str:
    return _EMPHASIS.sub(lambda match: next(group for group in match.groups() if group is not None), text)


def _ascii(text: str) -> str:
    text = re.sub(f"[{_SUPERSCRIPTS}]+", lambda match: f"^{{{match.group().translate(_PLAIN_SUPERSCRIPTS)}}}", text)
    return "".join(_character(character) for character in text)


def _character(character: str) -> str:
    if character.isascii():
        return character
    if character in _UNICODE:
        return _UNICODE[character]
    plain = unicodedata.normalize("NFKC", character)
    if "⁄" in plain:  # a fraction in one character
        top, _, bottom = plain.partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}"
    return plain


def _word(match: re.Match[str]) -> str:
    return _WORDS.get(match.group(1), match.group())


def _root(match: re.Match[str]) -> str:
    inside = match.group(2)
    inside = inside[1:-1] if inside.startswith("(") else inside
    return rf"\sqrt{match.group(1) or ''}{{{inside}}}"


def _without_edges(text: str) -> str:
    before = None
    while text != before:
        before = text
        text = text.strip(_EDGES)
        if text.endswith(".") and not text.endswith(("a.m.", "p.m.", "...")):
            text = text[:-1]
        if text.startswith("{") and text.endswith("}") and _wraps(text):
            text = text[1:-1]
    return text


def _wraps(text: str) -> bool:
    """Whether the first brace is closed by the last one."""
    return balanced(text[1:-1])
