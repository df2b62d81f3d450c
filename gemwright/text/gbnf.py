"""Grammars as users write them, Lark or llama.cpp's GBNF, as the one dialect that is compiled (llguidance's Lark).

A rule of GBNF that leads to no rule that leads back to itself becomes a terminal, one regex: exact, and fast. Where
terminals follow each other, the first takes all it can, as in Lark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from gemwright.errors import RequestError

MAX_RULES = 2000
"""Most rules of a grammar."""

_GBNF_RULE = re.compile(r"^[ \t]*([A-Za-z0-9_-]+)[ \t]*::=", re.MULTILINE)
_LARK_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z0-9_-]+[^:\n\"/]*:", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<rule>[A-Za-z0-9_-]+)\s*::=
    |(?P<name>[A-Za-z0-9_-]+)
    |"(?P<text>(?:[^"\\\n]|\\.)*)"
    |\[(?P<negated>\^?)(?P<members>(?:[^\]\\\n]|\\.)*)\]
    |(?P<repeat>\{\s*[0-9]+\s*(?:,\s*[0-9]*\s*)?\}|[*+?])
    |(?P<sign>[()|.])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([^\\])", re.DOTALL)
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t"}


def lark_grammar(text: str) -> str:
    """Return a grammar in llguidance's Lark; one with rules written `name ::= ...` is read as GBNF.

    Raises RequestError for GBNF that cannot be read, naming the place, and for too many rules.
    """
    is_gbnf = _GBNF_RULE.search(text) is not None
    num_rules = len((_GBNF_RULE if is_gbnf else _LARK_RULE).findall(text))
    if num_rules > MAX_RULES:
        raise RequestError("grammar has too many rules", value=num_rules, limit=MAX_RULES)
    return _from_gbnf(text) if is_gbnf else text


def _from_gbnf(text: str) -> str:
    rules = _read(text)
    if "root" not in rules:
        raise RequestError("grammar: GBNF begins at a rule named root, and there is none", remedy="name it root")
    terminals = _terminals(rules)
    names = {name: f"{'T' if name in terminals else 'r'}{number}" for number, name in enumerate(rules)}
    lines = [f"{names[name]}: {_body(tokens, names)}" for name, tokens in rules.items()]
    return "\n".join([f"start: {names['root']}", *lines])


Token = tuple[str, str]
"""A kind (name, text, class, repeat or sign) and what it says, ready for Lark but for names."""


def _read(text: str) -> dict[str, list[Token]]:
    """Return the rules, each a list of tokens."""
    rules: dict[str, list[Token]] = {}
    current: list[Token] | None = None
    for kind, said, place in _tokens(text):
        if kind == "rule":
            if said in rules:
                raise _unreadable(text, place, f"the rule {said} is there twice")
            current = rules[said] = []
        elif current is None:
            raise _unreadable(text, place, "text before the first rule")
        else:
            current.append((kind, said))
    for name, tokens in rules.items():
        for kind, said in tokens:
            if kind == "name" and said not in rules:
                raise RequestError(f"grammar: the rule {name} speaks of a rule that is not there", value=said[:80])
    return rules


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _unreadable(text, place, "GBNF does not go on like this")
        if match["rule"] is not None:
            yield "rule", match["rule"], place
        elif match["name"] is not None:
            yield "name", match["name"], place
        elif match["text"] is not None:
            yield "text", json.dumps("".join(_characters(match["text"])), ensure_ascii=False), place
        elif match["members"] is not None:
            yield "class", _class(match["negated"], match["members"]), place
        elif match["repeat"] is not None:
            yield "repeat", re.sub(r"\s", "", match["repeat"]), place
        elif match["sign"] is not None:
            yield "sign", "/(?s:.)/" if match["sign"] == "." else match["sign"], place
        place = match.end()


def _class(negated: str, members: str) -> str:
    """Return a character class as a regex; a dash between two characters is a range."""
    parts = []
    for match in _ESCAPE.finditer(members):
        parts.append("-" if match[0] == "-" else f"\\x{{{ord(_character(match)):X}}}")
    return f"/[{negated}{''.join(parts)}]/" if parts else '""'


def _characters(text: str) -> Iterator[str]:
    return (_character(match) for match in _ESCAPE.finditer(text))


def _character(match: re.Match[str]) -> str:
    """Return the character that an escape, or itself, stands for."""
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return match[5] or _SIMPLE.get(match[4], match[4])
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise RequestError("grammar: an escape is no character", value=match[0], limit="Unicode characters")
    return chr(code)


def _terminals(rules: Mapping[str, list[Token]]) -> set[str]:
    """Return the rules from which no way leads to a rule that leads back to itself."""
    users: dict[str, set[str]] = {name: set() for name in rules}
    missing = {}
    for name, tokens in rules.items():
        used = {said for kind, said in tokens if kind == "name"}
        missing[name] = len(used)
        for other in used:
            users[other].add(name)
    ready = [name for name, count in missing.items() if count == 0]
    found = set()
    while ready:
        name = ready.pop()
        found.add(name)
        for user in users[name]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    return found


def _body(tokens: list[Token], names: Mapping[str, str]) -> str:
    """Return a rule's right side in Lark, where an empty alternative is written out."""
    parts: list[str] = []
    for kind, said in tokens:
        if said in ("|", ")") and kind == "sign" and (not parts or parts[-1] in ("|", "(")):
            parts.append('""')
        parts.append(names[said] if kind == "name" else said)
    if not parts or parts[-1] == "|":
        parts.append('""')
    return " ".join(parts)


def _unreadable(text: str, place: int, why: str) -> RequestError:
    line = text.count("\n", 0, place) + 1
    return RequestError(
        f"grammar: {why}", value=f"line {line}: {text[place : place + 40]!r}", remedy="correct it, or write Lark"
    )
