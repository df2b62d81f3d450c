"""Whatever a model's logits are, an answer that ends under a constraint is one that the constraint admits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from gemwright.text.constraint import (
    choice_constraint,
    grammar_constraint,
    object_constraint,
    regex_constraint,
    schema_constraint,
    tool_constraint,
)
from gemwright.text.grammar import ConstraintCompiler
from gemwright.text.tokenizer import from_gguf_metadata
from tests.constrained import byte_compiler, random_answer, read_calls, text_of
from tests.schemas import ANSWERS, PARAMETERS
from tests.tokenizer_cases import small_gemma3_metadata, small_gemma4_metadata

TOOLS = [{"type": "function", "function": {"name": name, "parameters": found}} for name, found in PARAMETERS.items()]
THINKING = [(False, False), (True, False), (True, True)]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> ConstraintCompiler:
    return byte_compiler(tmp_path_factory.mktemp("bytes"))


def validate(value: Any, schema: Any) -> None:
    validator = jsonschema.Draft202012Validator
    jsonschema.validate(value, schema, cls=validator, format_checker=validator.FORMAT_CHECKER)


@pytest.mark.parametrize("name", ANSWERS)
def test_json_is_what_its_schema_admits(name: str, compiler: ConstraintCompiler) -> None:
    constraint = schema_constraint(ANSWERS[name])
    num_whole = 0
    for seed in range(12):
        tokens, is_whole = random_answer(compiler, constraint, seed)
        if is_whole:
            num_whole += 1
            validate(json.loads(text_of(compiler.tokenizer, tokens)), ANSWERS[name])
    assert num_whole >= 6


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_call_has_the_arguments_of_its_tool(name: str, strict: bool, compiler: ConstraintCompiler) -> None:
    tool = {"name": name, "parameters": PARAMETERS[name], "strict": strict}
    constraint = tool_constraint([tool, *TOOLS[:2]] if name not in list(PARAMETERS)[:2] else TOOLS[:2], name)
    assert constraint is not None
    num_whole = 0
    for seed in range(8):
        tokens, is_whole = random_answer(compiler, constraint, seed)
        if is_whole:
            num_whole += 1
            for called, arguments in read_calls(text_of(compiler.tokenizer, tokens)):
                assert called == name
                validate(arguments, PARAMETERS[name])
    assert num_whole >= 4


@pytest.mark.parametrize(("thinking", "opens_thought"), THINKING)
def test_required_calls_are_calls_of_the_tools_and_a_thought_may_come_first(
    thinking: bool, opens_thought: bool, compiler: ConstraintCompiler
) -> None:
    constraint = tool_constraint(TOOLS, "required")
    assert constraint is not None
    names, num_calls, num_thoughts = set(), [], 0
    for seed in range(60):
        tokens, is_whole = random_answer(compiler, constraint.with_thinking(thinking, opens_thought), seed)
        if not is_whole:
            continue
        text = text_of(compiler.tokenizer, tokens)
        thought = re.match(r"(?s)(?:<\|channel>thought\n)?((?!<\|tool_call>).*?)<channel\|>", text)
        assert not opens_thought or thought is not None
        if thought is not None:
            assert thinking
            assert opens_thought is not text.startswith("<|channel>")
            text = text[thought.end() :]
            num_thoughts += 1
        calls = read_calls(text)
        num_calls.append(len(calls))
        for name, arguments in calls:
            names.add(name)
            validate(arguments, PARAMETERS[name])
    assert len(names) > 10
    assert min(num_calls) == 1 < max(num_calls)
    assert thinking is (num_thoughts > 0)


def test_one_call_at_most_where_calls_are_not_parallel(compiler: ConstraintCompiler) -> None:
    constraint = tool_constraint(TOOLS[:3], "required", parallel_tool_calls=False)
    assert constraint is not None
    for seed in range(30):
        tokens, is_whole = random_answer(compiler, constraint, seed)
        assert not is_whole or len(read_calls(text_of(compiler.tokenizer, tokens))) == 1


@pytest.mark.parametrize("thinking", [False, True])
def test_with_strict_tools_text_is_free_and_calls_conform(thinking: bool, compiler: ConstraintCompiler) -> None:
    strict = [{**tool["function"], "strict": number % 2 == 0} for number, tool in enumerate(TOOLS[:6])]  # type: ignore[dict-item]
    constraint = tool_constraint(strict, "auto")
    assert constraint is not None
    num_free, called = 0, set()
    for seed in range(250):
        tokens, is_whole = random_answer(compiler, constraint.with_thinking(thinking, False), seed, max_tokens=800)
        parts = re.split(r"(<\|tool_call>.*?<tool_call\|>)", text_of(compiler.tokenizer, tokens), flags=re.DOTALL)
        num_free += is_whole and len(parts) == 1
        for call in parts[1::2]:
            ((name, arguments),) = read_calls(call)
            called.add(name)
            if list(PARAMETERS).index(name) % 2 == 0:
                validate(arguments, PARAMETERS[name])
    assert num_free > 5
    assert len(called) > 1


@pytest.mark.parametrize(("thinking", "opens_thought"), THINKING)
def test_a_json_object_comes_with_thinking_on_off_or_absent(
    thinking: bool, opens_thought: bool, compiler: ConstraintCompiler
) -> None:
    """Field cases 051, 115 and 116: never the thought without the JSON, nor JSON in a fence after it."""
    constraint = object_constraint().with_thinking(thinking, opens_thought)
    for seed in range(40):
        tokens, is_whole = random_answer(compiler, constraint, seed)
        if is_whole:
            text = text_of(compiler.tokenizer, tokens)
            assert ("<channel|>" in text) >= opens_thought
            assert isinstance(json.loads(text.rpartition("<channel|>")[2]), dict)


@pytest.mark.parametrize(
    ("grammar", "regex"),
    [
        ('start: "a" /[0-9]{2}/ ("," /[0-9]{2}/)*', r"a[0-9]{2}(,[0-9]{2})*"),
        (
            'root ::= item ("; " item){0,3}\nitem ::= [a-c]+ "=" ("\\u00e9" | "\\x41")',
            "[a-c]+=[éA](; [a-c]+=[éA]){0,3}",
        ),
        ('root ::= "(" root ")" | "x"', r"\(*x\)*"),
    ],
)
def test_grammars_in_both_dialects(grammar: str, regex: str, compiler: ConstraintCompiler) -> None:
    found = {
        text_of(compiler.tokenizer, random_answer(compiler, grammar_constraint(grammar), seed)[0]) for seed in range(30)
    }
    assert len(found) > 2
    assert all(re.fullmatch(regex, text) for text in found)


def test_regexes_match_whole_answers(compiler: ConstraintCompiler) -> None:
    regex = r"[A-Z]{2}-\d{3,5}( (left|right))?"
    for seed in range(30):
        tokens, is_whole = random_answer(compiler, regex_constraint(regex), seed)
        assert is_whole
        assert re.fullmatch(regex, text_of(compiler.tokenizer, tokens))


def test_choices_are_all_found_and_nothing_else(compiler: ConstraintCompiler) -> None:
    choices = ["yes", "yes, please", 'no "thanks"', "日本", "a\nb\\", "<eos>"]
    constraint = choice_constraint(choices)
    found = {text_of(compiler.tokenizer, random_answer(compiler, constraint, seed)[0]) for seed in range(120)}
    assert found == set(choices)


@pytest.mark.parametrize("make", [small_gemma3_metadata, small_gemma4_metadata], ids=["sentencepiece", "bpe"])
def test_tokenizers_of_gguf_files_write_valid_json_and_calls(make: Callable[[], dict[str, Any]]) -> None:
    tokenizer = from_gguf_metadata(make(), cache_dir=None)
    made = ConstraintCompiler(tokenizer, tokenizer.vocab_size + 3, tokenizer.eos_token_ids)
    schema = PARAMETERS["search_web"]
    tool = tool_constraint([{"name": "search_web", "parameters": schema}], "required", parallel_tool_calls=False)
    assert tool is not None
    num_whole = 0
    for seed in range(20):
        tokens, is_whole = random_answer(made, schema_constraint(schema), seed)
        if is_whole:
            num_whole += 1
            validate(json.loads(tokenizer.decode(tokens)), schema)
        tokens, is_whole = random_answer(made, tool, seed)
        if is_whole:
            num_whole += 1
            text = text_of(tokenizer, tokens)
            if "<|tool_call>" in tokenizer.special_tokens:
                validate(read_calls(text)[0][1], schema)
            else:
                validate(json.loads(text)["parameters"], schema)
    assert num_whole >= 20
