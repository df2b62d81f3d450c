"""Helpers for tests of constraints: random answers under one, whether it admits a text, and calls read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gemwright.testing.tokenizer_files import write_byte_tokenizer
from gemwright.text.constraint import Constraint
from gemwright.text.grammar import ConstraintCompiler
from gemwright.text.tokenizer import Tokenizer, from_tokenizer_json

QUOTE = '<|"|>'
CLOSERS = (*b'}]"', 52, 49, 101)


def byte_compiler(
    folder: Path, vocab_size: int = 512, stop_token_ids: tuple[int, ...] = (1, 106, 50)
) -> ConstraintCompiler:
    """Return a compiler over a byte-level tokenizer with Gemma 4's control words."""
    write_byte_tokenizer(folder, vocab_size)
    return ConstraintCompiler(from_tokenizer_json(folder), vocab_size, stop_token_ids)


def random_answer(
    compiler: ConstraintCompiler, constraint: Constraint, seed: int, max_tokens: int = 4000
) -> tuple[list[int], bool]:
    """Return the tokens of a random walk, its stop id included, and whether it came to one. Closing brackets and
    quotes are favored, so that most walks end."""
    matcher = compiler.start(constraint)
    generator = np.random.default_rng(seed)
    tokenizer = compiler.tokenizer
    closing = {token for token in CLOSERS if tokenizer.is_special(token)} | set(compiler.stop_token_ids)
    closing |= {token for byte in b'}]"' if (token := tokenizer.token_to_id(f"<0x{byte:02X}>")) is not None}
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        allowed = np.flatnonzero(matcher.allowed())
        assert len(allowed), tokenizer.decode(tokens, skip_special=False)
        closers = [token for token in allowed.tolist() if token in closing]
        token = int(generator.choice(closers if closers and generator.random() < 0.25 else allowed))
        tokens.append(token)
        if token in compiler.stop_token_ids:
            return tokens, True
        matcher.accept(token)
    return tokens, False


def admits(compiler: ConstraintCompiler, constraint: Constraint, text: str) -> bool:
    """Whether a whole answer may be this text, control words spelled out."""
    matcher = compiler.start(constraint)
    for token in compiler.tokenizer.encode(text):
        if not matcher.allowed()[token]:
            return False
        matcher.accept(token)
    return bool(matcher.allowed()[list(compiler.stop_token_ids)].all())


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Return the text of an answer with its control words, without the stop id."""
    return tokenizer.decode(tokens[:-1], skip_special=False)


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Read well-formed calls back: what the constraint promises, and nothing it does not."""
    calls = []
    while text:
        assert text.startswith("<|tool_call>call:"), text
        name, _, rest = text.removeprefix("<|tool_call>call:").partition("{")
        value, rest = _value("{" + rest)
        assert rest.startswith("<tool_call|>"), rest
        text = rest.removeprefix("<tool_call|>")
        calls.append((name, value))
    return calls


def _value(text: str) -> tuple[Any, str]:
    if text.startswith(QUOTE):
        value, found, rest = text.removeprefix(QUOTE).partition(QUOTE)
        assert found
        return value, rest
    if text[0] not in "{[":
        end = min(text.index(mark) for mark in ",}]" if mark in text)
        return json.loads(text[:end]), text[end:]
    closer = "}" if text[0] == "{" else "]"
    pairs: list[tuple[str, Any]] = []
    items: list[Any] = []
    is_object, text = text[0] == "{", text[1:]
    while not text.startswith(closer):
        if pairs or items:
            assert text[0] == ",", text
            text = text[1:]
        if is_object:
            if text.startswith(QUOTE):
                key, text = _value(text)
            else:
                key, _, text = text.partition(":")
                text = ":" + text
            value, text = _value(text.removeprefix(":"))
            pairs.append((key, value))
        else:
            value, text = _value(text)
            items.append(value)
    return (dict(pairs) if is_object else items), text[1:]
