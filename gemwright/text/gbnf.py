"""Grammars as users write them, Lark or llama.cpp's GBNF, as the one dialect that is compiled."""

from __future__ import annotations

import json
import re

from gemwright.errors import RequestError

_IS_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_ESCAPE = re.compile(
    r"(?P<before>(?<!\\)(?:\\\\)*)\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8}))"
)


def lark_grammar(text: str) -> str:
    """Return a grammar in llguidance's Lark; one with rules written `name ::= ...` is read as GBNF.

    Raises RequestError for GBNF that cannot be read.
    """
    if _IS_GBNF.search(text) is None:
        return text
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(_ESCAPE.sub(_character, text)))
    except (Exception, RecursionError) as error:  # whatever its reader meets: bare exceptions, ends of text
        raise RequestError("grammar is no GBNF", value=str(error)[:200], remedy="correct it, or write Lark") from None


def _character(match: re.Match[str]) -> str:
    """Return an escaped character as itself, where it then means the same."""
    code = int(match["x"] or match["u"] or match["U"], 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise RequestError("grammar: an escape is no character", value=match[0], limit="Unicode characters")
    character = chr(code)
    if character in '"\\[]':
        character = f"\\{character}"
    elif not character.isprintable():
        character = json.dumps(character)[1:-1]
    return match["before"] + character
