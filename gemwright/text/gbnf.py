"""Grammars as users write them, Lark or llama.cpp's GBNF, as the one dialect that is compiled (llguidance's Lark).

What of GBNF leads to no rule that leads back to itself becomes terminals, regexes, as long as they can be: within one
every way is tried, and they are fast. Where two terminals meet, the first takes all it can, as in Lark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

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
_IS_PLAIN = re.compile(r'T[0-9]+|"(?:[^"\\]|\\.)*"|/\[.*\]/')
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
    runs: list[str] = []
    lines = [f"{names[name]}: {_body(tokens, names, terminals, runs)}" for name, tokens in rules.items()]
    return "\n".join([f"start: {names['root']}", *lines, *(f"RUN{number}: {run}" for number, run in enumerate(runs))])


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


@dataclass(slots=True)
class _Group:
    """What stands between two brackets, as far as it is read."""

    alternatives: list[str] = field(default_factory=list)
    elements: list[tuple[str, bool]] = field(default_factory=list)
    """Of the alternative that is being read: what it says in Lark, and whether it is terminal."""
    is_terminal: bool = True

    def close(self, runs: list[str] | None) -> None:
        """End an alternative. Runs of terminal elements become terminals of their own, kept in `runs`."""
        parts: list[str] = []
        for is_terminal, elements in groupby(self.elements, key=lambda element: element[1]):
            texts = [said for said, _ in elements]
            if is_terminal and runs is not None and (len(texts) > 1 or not _IS_PLAIN.fullmatch(texts[0])):
                runs.append(" ".join(texts))
                texts = [f"RUN{len(runs) - 1}"]
            parts += texts
        self.is_terminal &= all(is_terminal for _, is_terminal in self.elements)
        self.alternatives.append(" ".join(parts) or '""')
        self.elements = []


def _body(tokens: list[Token], names: Mapping[str, str], terminals: set[str], runs: list[str]) -> str:
    """Return a rule's right side in Lark."""
    is_terminal = all(kind != "name" or said in terminals for kind, said in tokens)
    open_groups = [_Group()]
    for kind, said in tokens:
        group = open_groups[-1]
        if said == "|" and kind == "sign":
            group.close(None if is_terminal or len(open_groups) > 1 else runs)
        elif said == "(" and kind == "sign":
            open_groups.append(_Group())
        elif said == ")" and kind == "sign":
            group.close(None)
            open_groups.pop()
            if not open_groups:
                raise RequestError("grammar: a bracket closes that never opened", remedy="correct it, or write Lark")
            open_groups[-1].elements.append((f"({' | '.join(group.alternatives)})", group.is_terminal))
        elif kind == "repeat":
            if not group.elements:
                raise RequestError("grammar: a repetition of nothing", value=said, remedy="correct it")
            before, is_plain = group.elements[-1]
            group.elements[-1] = (before + said, is_plain)
        else:
            group.elements.append((names[said] if kind == "name" else said, kind != "name" or said in terminals))
    if len(open_groups) > 1:
        raise RequestError("grammar: a bracket never closes", remedy="correct it, or write Lark")
    open_groups[0].close(None if is_terminal else runs)
    return " | ".join(open_groups[0].alternatives)


def _unreadable(text: str, place: int, why: str) -> RequestError:
    line = text.count("\n", 0, place) + 1
    return RequestError(
        f"grammar: {why}", value=f"line {line}: {text[place : place + 40]!r}", remedy="correct it, or write Lark"
    )
