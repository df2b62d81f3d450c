"""Token by token: control tokens are marks for certain, spelled ones are known too, data stays data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemwright.errors import RequestError
from gemwright.testing.tokenizer_files import write_byte_tokenizer
from gemwright.text.parser import OutputParser, TokenReader
from gemwright.text.parser_events import Event
from gemwright.text.tokenizer import Tokenizer, from_gguf_metadata, from_tokenizer_json
from tests.parser_tools import CASES, case_options, fields, joined, run
from tests.tokenizer_cases import small_gemma3_metadata


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder, 400)
    return from_tokenizer_json(folder)


def read(tokenizer: Tokenizer, ids: list[int], size: int = 1, reason: str = "stop") -> tuple[OutputParser, list[Event]]:
    parser = OutputParser("gemma4")
    reader = TokenReader(tokenizer, parser)
    events = [event for start in range(0, len(ids), size) for event in reader.push(ids[start : start + size])]
    return parser, events + reader.finish(reason)


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, parse_special=False)


def call(tokenizer: Tokenizer, *ids: int) -> dict[str, object]:
    parser, _ = read(tokenizer, [48, *spelled(tokenizer, "call:f{a:"), *ids])
    (found,) = parser.output.tool_calls
    return found.arguments


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize("case", [case for case in CASES if "context" not in case], ids=lambda case: case["id"])
def test_cases_read_the_same_from_ids_and_from_spelled_marks(
    tokenizer: Tokenizer, case: dict, parse_special: bool, size: int
) -> None:
    # A byte tokenizer: every character beyond ASCII comes in several tokens.
    reason = case_options(case)["reason"]
    parser, events = read(tokenizer, tokenizer.encode(case["text"], parse_special=parse_special), size, reason)
    assert fields(parser.output) == joined(events) == fields(run([case["text"]], reason=reason).output)


def test_a_string_begun_by_a_token_is_closed_by_a_token_alone(tokenizer: Tokenizer) -> None:
    text = 'x<|"|>,b:<|"|>y'
    assert call(tokenizer, 52, *spelled(tokenizer, text), 52, *spelled(tokenizer, "}")) == {"a": text}


def test_marks_spelled_in_a_string_are_its_data(tokenizer: Tokenizer) -> None:
    text = "<tool_call|><|tool_call>call:g{}<tool_call|><turn|><bos>"
    assert call(tokenizer, 52, *spelled(tokenizer, text), 52, *spelled(tokenizer, "}"), 49) == {"a": text}


def test_a_call_that_begins_behind_an_unclosed_string_ends_it(tokenizer: Tokenizer) -> None:
    begin, end = spelled(tokenizer, "call:f{a:"), spelled(tokenizer, "x}")
    parser, _ = read(tokenizer, [48, *begin, 52, *end, 49, 48, *begin, 52, *end[:1], 52, *end[1:], 49, 50])
    assert [one.arguments for one in parser.output.tool_calls] == [{"a": "x"}, {"a": "x"}]


def test_other_control_tokens_are_left_out_and_their_names_in_text_are_not(tokenizer: Tokenizer) -> None:
    text = spelled(tokenizer, "BERT has <mask> and <pad>.")
    parser, _ = read(tokenizer, [2, *text[:5], 0, 46, *text[5:], 98, 106])
    assert parser.output.content == "BERT has <mask> and <pad>."


def test_half_a_character_before_a_control_token_is_shown_as_the_detokenizer_does(tokenizer: Tokenizer) -> None:
    half = spelled(tokenizer, "é")[:1]
    parser, events = read(tokenizer, [100, *spelled(tokenizer, "thought\n"), *half, 101, *half])
    assert (parser.output.reasoning_content, parser.output.content) == ("\ufffd", "\ufffd")
    assert joined(events) == fields(parser.output)


def test_gemma_3_tokens() -> None:
    tokenizer = from_gguf_metadata(small_gemma3_metadata(), cache_dir=None)
    parser = OutputParser("gemma3")
    reader = TokenReader(tokenizer, parser)
    word = next(word for word in tokenizer.special_tokens if word in parser.dialect.words)
    ids = [*tokenizer.encode("a", parse_special=False), tokenizer.special_tokens[word]]
    events = [*reader.push(ids), *reader.finish("stop")]
    assert (parser.output.content or "").strip() == "a"
    assert joined(events) == fields(parser.output)


def test_a_negative_id_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="negative"):
        read(tokenizer, [-1])


def test_events_print_as_json(tokenizer: Tokenizer) -> None:
    _, events = read(tokenizer, [48, *spelled(tokenizer, "call:f{}")])
    assert json.dumps([event.to_dict() for event in events]) == json.dumps(
        [
            {"type": "tool_call", "index": 0, "name": "f"},
            {"type": "arguments", "index": 0, "text": "{}"},
            {"type": "tool_call_end", "index": 0},
            {"type": "finish", "text": "tool_calls"},
        ]
    )
