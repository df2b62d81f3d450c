"""Regexes for texts: `pattern` and `format` of JSON schemas as patterns of the whole text, as grammars take them."""

from __future__ import annotations

import json

_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DATE = (
    "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"[A-Za-z0-9_+\-]{{1,32}}(\.[A-Za-z0-9_+\-]{{1,16}}){{0,2}}@{_LABEL}(\.{_LABEL}){{1,3}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "uri": rf"[a-z][a-z0-9+.\-]{{0,15}}:\/\/{_LABEL}(\.{_LABEL}){{0,3}}(:[1-9][0-9]{{0,3}})?(\/[A-Za-z0-9._~\-]*)*"
    r"(\?[A-Za-z0-9._~\-=&]*)?(#[A-Za-z0-9._~\-]*)?",
}
"""Texts of each format; a part of all that the format admits, left out what readers disagree about (29 February,
quoted mail names)."""


def whole_regex(pattern: object) -> str | None:
    """Return a regex, as it stands between slashes, that a whole text matches if `pattern` is found in it, as JSON
    schema means it; None where that cannot be said: it is no regex, looks around, or its anchors stand elsewhere than
    at the ends of its alternatives."""
    from llguidance import LLMatcher

    try:
        found = _search_regex(pattern) if isinstance(pattern, str) else None
        regex = None if found is None else lark_regex(found)
    except ValueError:
        return None
    if regex is None or LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(f"start: /{regex}/")):
        return None
    return regex


def _search_regex(pattern: str) -> str | None:
    alternatives = []
    for part in _alternatives(pattern):
        begins, ends = part.startswith("^"), _ends_in_anchor(part)
        middle = part[begins : len(part) - ends]
        if _has_anchor(middle):
            return None
        alternatives.append(f"{'' if begins else '(?s:.*)'}({middle}){'' if ends else '(?s:.*)'}")
    return "|".join(alternatives)


def literal(text: str) -> str:
    """Return a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Return a regex that matches a text alone."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):X}}}" for character in text)


def lark_regex(regex: str, ascii_classes: str = "dw") -> str:
    """Return a regex as it stands between slashes. Of the classes of digits, words and spaces (d, w, s) those named
    mean their ASCII members; as in JavaScript, if not said. Raises ValueError for one that ends in a lone backslash."""
    from llguidance import regex_to_lark

    if (len(regex) - len(regex.rstrip("\\"))) % 2:
        raise ValueError("a lone backslash at the end")
    return regex_to_lark(regex, use_ascii=ascii_classes)


def _alternatives(pattern: str) -> list[str]:
    """Split a regex at the bars that stand in no group and no class."""
    parts, depth, begin = [], 0, 0
    for index, character in _syntax(pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            parts.append(pattern[begin:index])
            begin = index + 1
    return [*parts, pattern[begin:]]


def _has_anchor(regex: str) -> bool:
    return any(character in "^$" for _, character in _syntax(regex))


def _ends_in_anchor(regex: str) -> bool:
    last = max((index for index, character in _syntax(regex) if character == "$"), default=-1)
    return last >= 0 and last == len(regex) - 1


def _syntax(regex: str) -> list[tuple[int, str]]:
    """Return the characters of a regex that are neither escaped nor in a class, each with its place."""
    found, in_class, index = [], False, 0
    while index < len(regex):
        character = regex[index]
        if character == "\\":
            index += 1
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
            # A bracket that comes first is a member.
            index += (regex[index + 1 : index + 3] == "^]" and 2) or regex[index + 1 : index + 2] in ("]", "^")
        else:
            found.append((index, character))
        index += 1
    return found
