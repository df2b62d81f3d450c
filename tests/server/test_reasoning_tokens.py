"""How many tokens an answer spent on its thoughts: those between the marks, streamed or not, counted by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import pytest

from gemwright.text.parser import OutputParser, TokenReader
from gemwright.text.tokenizer import Tokenizer
from tests.openai_script import TOOL, ask, stream, user
from tests.serving import Served

INSIDE = "thought\nThe sky must be asked."
"""What the script thinks: the label counts, the marks around it do not."""


@pytest.fixture(scope="module")
def tokenizer(served: Served) -> Tokenizer:
    found = served.engine.llm.tokenizer
    assert found is not None
    return found


def of_usage(found: Any) -> int:
    return int(found.usage.completion_tokens_details.reasoning_tokens)


@pytest.mark.parametrize(
    ("text", "fields", "num_thoughts"),
    [
        ("greet", {}, 0),
        ("twice", {"tools": [TOOL]}, 0),
        ("think", {}, 1),
        ("weather", {"tools": [TOOL]}, 1),
        ("weather", {}, 1),
        ("several", {"n": 3, "temperature": 1.0}, 1),
        ("several", {"n": 5, "temperature": 1.0}, 2),
        ("think", {"extra_body": {"include_reasoning": False}}, 1),
    ],
)
def test_usage_has_the_tokens_between_the_marks(
    client: openai.OpenAI, tokenizer: Tokenizer, text: str, fields: dict[str, Any], num_thoughts: int
) -> None:
    by_hand = num_thoughts * len(tokenizer.encode(INSIDE))
    assert of_usage(ask(client, text, **fields)) == by_hand
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(client, text, **fields, stream_options=options)
    counts = [of_usage(chunk) for chunk in chunks]
    assert counts[-1] == by_hand
    assert counts == sorted(counts)
    assert all(of_usage(chunk) <= chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None)


def test_a_thought_that_is_cut_counts_as_far_as_it_came(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    whole = len(tokenizer.encode(INSIDE))
    # One token is the opening mark, one the closing one, and one of the answer follows.
    for max_tokens, by_hand in ((1, 0), (2, 1), (12, 11), (whole + 1, whole), (whole + 2, whole), (whole + 3, whole)):
        found = ask(client, "think", max_tokens=max_tokens)
        assert found.choices[0].finish_reason == "length"
        assert of_usage(found) == by_hand
        last = stream(client, "think", max_tokens=max_tokens, stream_options={"include_usage": True})[-1]
        assert of_usage(last) == by_hand


def test_anthropic_clients_read_the_same_number(served: Served, tokenizer: Tokenizer) -> None:
    for text, num_thoughts in (("think", 1), ("greet", 0)):
        body = {"model": "gemma", "max_tokens": 200, "messages": user(text)}
        found = httpx2.post(f"{served.url}/v1/messages", json=body, headers={"x-api-key": "secret"}, timeout=60)
        details = found.json()["usage"]["output_tokens_details"]
        assert details == {"thinking_tokens": num_thoughts * len(tokenizer.encode(INSIDE))}


# The count itself.


def counted(tokenizer: Tokenizer, parts: Sequence[Sequence[int]], *, opens_thought: bool = False) -> int:
    reader = TokenReader(tokenizer, OutputParser("gemma4", opens_thought=opens_thought))
    for part in parts:
        reader.push(part)
    reader.finish("stop")
    return reader.num_thought_tokens


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text whose control words are written in ordinary tokens."""
    return tokenizer.encode(text, parse_special=False)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("It is blue.", ""),
        (f"<|channel>{INSIDE}<channel|>It is blue.", INSIDE),
        ("<|channel><channel|>It is blue.", ""),
        ("<|channel>thought\n<channel|>It is blue.", "thought\n"),
        ("<|channel>thought\nZwölf €, 🙂.<channel|>ok", "thought\nZwölf €, 🙂."),
        # Two thoughts, one that opens a second time, and what ends one without its closing mark.
        ("<|channel>thought\nA<channel|>b<|channel>thought\nC<channel|>", ("thought\nA", "thought\nC")),
        ("<|channel>thought\nA<|channel>thought\nC<channel|>", ("thought\nA", "thought\nC")),
        ("<|channel>thought\nA<|tool_call>call:f{}<tool_call|>b", "thought\nA"),
        ("<|channel>thought\nA<turn|>b", "thought\nA"),
        ("<|channel>thought\nA<|turn>model\nb", "thought\nA"),
        # A mark without a place in it is left out of what is shown, and was made all the same.
        ("<|channel>thought\nA<|think|>b<channel|>", "thought\nA<|think|>b"),
        # The opening mark was forgotten: the label stands for it.
        ("thought\nA<channel|>b", "A"),
        ("<channel|>A", ""),
    ],
)
def test_the_count_is_that_of_the_text_between_the_marks(
    tokenizer: Tokenizer, text: str, inside: str | tuple[str, ...]
) -> None:
    ids = tokenizer.encode(text)
    by_hand = sum(len(tokenizer.encode(part)) for part in ([inside] if isinstance(inside, str) else inside))
    assert counted(tokenizer, [ids]) == by_hand
    assert counted(tokenizer, [[token_id] for token_id in ids]) == by_hand
    choose = random.Random(5)
    for _ in range(20):
        places = sorted(choose.choices(range(len(ids) + 1), k=4))
        parts = [ids[begin:end] for begin, end in zip([0, *places], [*places, len(ids)], strict=True)]
        assert counted(tokenizer, parts) == by_hand


def test_a_thought_that_the_prompt_opened_counts_from_the_first_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("It is known now.<channel|>ok")
    assert counted(tokenizer, [ids], opens_thought=True) == len(tokenizer.encode("It is known now."))


def test_of_a_spelled_mark_the_token_that_completes_it_is_the_mark(tokenizer: Tokenizer) -> None:
    """Until it came the others might have been text."""
    mark = spelled(tokenizer, "<channel|>")
    ids = [*tokenizer.encode("<|channel>thought\nA"), *mark, *tokenizer.encode("ok")]
    assert counted(tokenizer, [ids]) == len(tokenizer.encode("thought\nA")) + len(mark) - 1
