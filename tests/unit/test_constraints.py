"""Constraints: what exactly each admits, and how it meets the other sampling parameters."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from gemwright import SamplingParams
from gemwright.engine.sampler import choose_token
from gemwright.errors import RequestError, UnsupportedError
from gemwright.testing.tokenizer_files import FAMILY_IDS, SPECIAL_IDS
from gemwright.text.constraint import (
    Constraint,
    choice_constraint,
    object_constraint,
    regex_constraint,
    schema_constraint,
    tool_constraint,
)
from gemwright.text.grammar import ConstraintCompiler
from tests.constrained import admits, byte_compiler, random_answer, text_of

OPEN, CLOSE = "<|tool_call>call:", "<tool_call|>"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> ConstraintCompiler:
    return byte_compiler(tmp_path_factory.mktemp("bytes"))


def call_of(schema: dict[str, Any], **options: Any) -> Constraint:
    constraint = tool_constraint([{"name": "f", "parameters": schema, **options}], "required")
    assert constraint is not None
    return constraint


def takes(compiler: ConstraintCompiler, schema: dict[str, Any], arguments: str, **options: Any) -> bool:
    return admits(compiler, call_of(schema, **options), f"{OPEN}f{{{arguments}}}{CLOSE}".replace("'", '<|"|>'))


def test_only_a_stop_id_may_follow_what_is_complete_and_none_comes_before(compiler: ConstraintCompiler) -> None:
    matcher = compiler.start(choice_constraint(["ab", "abc"]))
    encode = compiler.tokenizer.encode
    for token in encode("ab"):
        assert not matcher.allowed()[[1, 50, 106]].any()
        assert not matcher.is_complete
        matcher.accept(token)
    assert np.flatnonzero(matcher.allowed()).tolist() == sorted([1, 50, 106, *encode("c")])
    matcher.accept(*encode("c"))
    assert np.flatnonzero(matcher.allowed()).tolist() == [1, 50, 106]
    assert matcher.is_complete


def test_ids_past_the_tokenizer_and_control_words_are_never_text(tmp_path: Any) -> None:
    small = byte_compiler(tmp_path, 400)
    wide = ConstraintCompiler(small.tokenizer, 513, (1,))
    for constraint in (regex_constraint("(?s).*"), object_constraint(), object_constraint().with_thinking(True, True)):
        matcher = wide.start(constraint)
        allowed = set(np.flatnonzero(matcher.allowed()).tolist())
        assert max(allowed) < 400
        assert allowed & set(SPECIAL_IDS.values()) <= {1, 101}


@pytest.mark.parametrize(
    ("text", "is_admitted"),
    [
        ('{"a":1}', True),
        ('{"a": 1}', True),
        ('{\n  "a": 1\n}', True),
        ('{"a":  1}', False),
        ('{\n\n"a": 1}', False),
        ('{\t"a": 1}', False),
        (' {"a":1}', False),
        ('{"a":1} ', False),
        ('{"a":01}', False),
        ('{"a":1,"b":2}', False),
        ("{}", False),
    ],
)
def test_json_has_one_space_or_one_line_break_between_its_tokens(
    text: str, is_admitted: bool, compiler: ConstraintCompiler
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert admits(compiler, schema_constraint(schema), text) is is_admitted


def test_an_object_that_lists_properties_takes_others_only_where_the_schema_says_so(
    compiler: ConstraintCompiler,
) -> None:
    properties = {"properties": {"a": {"type": "integer"}}}
    more = '{"a":1,"z":[]}'
    assert not admits(compiler, schema_constraint(properties), more)
    assert admits(compiler, schema_constraint({**properties, "additionalProperties": True}), more)
    # Parts of an allOf meet in one object: closing one would leave nothing.
    both = {"allOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, {**properties, "required": ["a"]}]}
    assert admits(compiler, schema_constraint({"type": "object", **both}), '{"b":2,"a":1}')
    either = {"type": "object", "properties": {"kind": {}}, "anyOf": [{"required": ["a"], **properties}]}
    assert admits(compiler, schema_constraint(either), '{"kind":null,"a":1}')


SCHEMA = {
    "type": "object",
    "properties": {
        "b": {"type": "string", "maxLength": 3},
        "A": {"type": "integer", "minimum": 2},
        "c": {"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 2},
        "d": {"type": "object", "properties": {"z": {"type": "number"}, "y": {"const": "q"}}, "required": ["y"]},
    },
    "required": ["b"],
}


@pytest.mark.parametrize(
    ("arguments", "is_admitted"),
    [
        ("b:'x'", True),
        ("A:2,b:'x',c:[true,null],d:{y:'q',z:-1.5}", True),
        ("b:'',c:[]", True),
        ("b:'{},'", True),
        ("", False),
        ("A:2", False),
        ("A:1,b:'x'", False),
        ("b:'x',A:2", False),  # keys are sorted, case ignored
        ("b:'long'", False),
        ('b:"x"', False),
        ("b:x", False),
        ("b: 'x'", False),
        ("b:'x',e:1", False),
        ("b:'x',b:'x'", False),
        ("b:'x',c:[1]", False),
        ("b:'x',c:[true,true,true]", False),
        ("b:'x',d:{z:1}", False),
        ("'b':'x'", False),
        ("b.b:'x'", False),  # field case 120
    ],
)
def test_arguments_have_the_keys_and_types_of_the_tool(
    arguments: str, is_admitted: bool, compiler: ConstraintCompiler
) -> None:
    assert takes(compiler, SCHEMA, arguments) is is_admitted


def test_a_string_cannot_hold_its_own_end_spelled_out(compiler: ConstraintCompiler) -> None:
    constraint = call_of({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    plain = compiler.tokenizer.encode('x<|"|>', parse_special=False)
    matcher = compiler.start(constraint)
    for token in [*compiler.tokenizer.encode(f'{OPEN}f{{a:<|"|>'), *plain[:-1]]:
        assert matcher.allowed()[token]
        matcher.accept(token)
    assert not matcher.allowed()[plain[-1]]
    assert matcher.allowed()[52]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "[0-9]{2}"}, "v:'a12b'", "v:'a1b'"),
        ({"pattern": "^[0-9]{2}$"}, "v:'12'", "v:'123'"),
        ({"pattern": "^a|b$"}, "v:'xb'", "v:'xa'"),
        ({"pattern": "^a/[$^]$"}, "v:'a/$'", "v:'a/x'"),
        ({"format": "date"}, "v:'2024-02-28'", "v:'2024-02-30'"),
        ({"format": "uuid", "nullable": True}, "v:null", "v:'x'"),
        ({"enum": ["a", 1, None, {"k": ["x"]}]}, "v:{k:['x']}", "v:{k:['y']}"),
        ({"type": "string", "enum": ["a", None, "b"]}, "v:'b'", "v:null"),
        ({"type": ["integer", "string"], "minLength": 2, "maximum": 5}, "v:'ab'", "v:6"),
        ({"anyOf": [{"maximum": 3}, {"const": "x"}], "type": "integer"}, "v:-3", "v:'x'"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "v:[1,2]", "v:[1]"),
        ({"type": "array", "items": [{"type": "null"}], "additionalItems": False}, "v:[null]", "v:[null,1]"),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, "v:0.5", "v:0"),
        ({"additionalProperties": {"type": "integer"}}, "v:{free:1,'odd key':2}", "v:{free:'x'}"),
        ({"type": "object", "properties": {"x:y": {"type": "null"}, "no": False}}, "v:{'x:y':null}", "v:{no:1}"),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, "v:{a:1,b:[]}", "v:{b:1,a:1}"),
        ({"type": "string", "x-unit": "m", "title": "t", "default": 1}, "v:'m'", "v:1"),
        ({}, "v:{a:[true,{}],b:-1.5e3}", "v:word"),
    ],
)
def test_what_schemas_say_of_a_value(schema: dict[str, Any], good: str, bad: str, compiler: ConstraintCompiler) -> None:
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    for strict in (False, True):
        assert takes(compiler, whole, good, strict=strict)
        assert not takes(compiler, whole, bad, strict=strict)


def test_tools_that_are_not_strict_are_enforced_as_far_as_they_can_be(compiler: ConstraintCompiler) -> None:
    schema = {
        "type": "object",
        "properties": {"v": {"type": "string", "pattern": "(?=a)b", "x-unit": "m"}, "w": {}},
        "required": ["v"],
        "dependentRequired": {"v": ["w"]},
    }
    assert takes(compiler, schema, "v:'anything'")
    assert not takes(compiler, schema, "v:1")
    with pytest.raises(RequestError, match='tool f: the keyword "dependentRequired"') as caught:
        compiler.check(call_of(schema, strict=True))
    assert caught.value.value == "dependentRequired at #"
    del schema["dependentRequired"]
    with pytest.raises(RequestError, match="pattern") as caught:
        compiler.check(call_of(schema, strict=True))
    assert caught.value.value == "pattern at #/properties/v"


def test_tool_choice_is_read_in_all_its_spellings(compiler: ConstraintCompiler) -> None:
    tools = [{"type": "function", "function": {"name": "a"}}, {"name": "b", "parameters": None}]
    for choice in ("b", {"name": "b"}, {"type": "function", "function": {"name": "b"}}):
        found = tool_constraint(tools, choice)
        assert found is not None
        assert admits(compiler, found, f"{OPEN}b{{}}{CLOSE}{OPEN}b{{}}{CLOSE}")
        assert not admits(compiler, found, f"{OPEN}a{{}}{CLOSE}")
        assert not admits(compiler, found, "text")
    assert tool_constraint(tools, "none") is tool_constraint(tools, "auto") is tool_constraint(tools, None) is None
    assert tool_constraint([], "auto", parallel_tool_calls=False) is None
    for choice in ("c", {"type": "function"}, 5, "", {"name": 1}):
        with pytest.raises(RequestError, match="tool_choice"):
            tool_constraint(tools, choice)
    for bad in ([], [{"type": "function"}], [{"name": "a"}, {"name": "a"}], [{"name": ""}], ["a"]):
        with pytest.raises(RequestError, match="tool"):
            tool_constraint(bad, "required")  # type: ignore[list-item]


def test_free_calls_come_one_at_most_where_that_was_asked(compiler: ConstraintCompiler) -> None:
    one = tool_constraint([{"name": "a"}], "auto", parallel_tool_calls=False)
    assert one is not None
    assert admits(compiler, one, "text")
    assert admits(compiler, one, f"text{OPEN}a{{}}{CLOSE}")
    assert not admits(compiler, one, f"{OPEN}a{{}}{CLOSE}{OPEN}a{{}}{CLOSE}")


def test_the_start_of_an_answer_follows_the_prompt(compiler: ConstraintCompiler) -> None:
    """Field case 051: one resolved value says whether a thought is open, may come, or may not."""
    constraint = schema_constraint({"const": 7})
    encode = compiler.tokenizer.encode
    seven, thought = "7", "<|channel>thought\n"
    assert admits(compiler, constraint, seven)
    assert not admits(compiler, constraint, f"{thought}hm<channel|>{seven}")
    free = constraint.with_thinking(True, False)
    assert admits(compiler, free, seven)
    assert admits(compiler, free, f"{thought}hm {{<channel|>{seven}")
    assert not admits(compiler, free, f"{thought}<channel|>{thought}<channel|>{seven}")
    assert not admits(compiler, free, f"<|channel>other\nhm<channel|>{seven}")
    opened = constraint.with_thinking(True, True)
    assert admits(compiler, opened, f"hm<channel|>{seven}")
    assert not admits(compiler, opened, f"{thought}hm<channel|>{seven}")
    matcher = compiler.start(opened)
    for token in encode("ab"):  # no end, no turn and no call inside a thought
        assert not matcher.allowed()[[1, 48, 50, 100, 106]].any()
        matcher.accept(token)


def test_a_model_without_call_syntax_writes_calls_as_json(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILY_IDS, "gemma4", {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3})
    compiler = byte_compiler(tmp_path, stop_token_ids=(1,))
    tools = [{"name": "f", "parameters": SCHEMA, "strict": True}, {"name": "g"}]
    call = '{"name": "f", "parameters": {"b": "x"}}'
    for parallel in (True, False):
        constraint = tool_constraint(tools, "required", parallel_tool_calls=parallel)
        assert constraint is not None
        assert admits(compiler, constraint, call)
        assert admits(compiler, constraint, f'{call}\n{{"name":"g","parameters":{{}}}}') is parallel
        assert not admits(compiler, constraint, '{"name": "f", "parameters": {}}')
        with pytest.raises(UnsupportedError, match="thoughts"):
            compiler.check(constraint.with_thinking(True, False))
    with pytest.raises(UnsupportedError, match="strict tools with tool_choice auto"):
        compiler.check(tool_constraint(tools, "auto"))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="one call at most with tool_choice auto"):
        compiler.check(tool_constraint(tools[1:], "auto", parallel_tool_calls=False))  # type: ignore[arg-type]
    broken = tool_constraint([{"name": "h", "parameters": {"properties": {"a": {"not": {}}}}, "strict": True}], "h")
    with pytest.raises(RequestError, match='tool h: the keyword "not"') as caught:
        compiler.check(broken)  # type: ignore[arg-type]
    assert caught.value.value == "at #/properties/a"


def test_recursion_is_followed_where_it_ends(compiler: ConstraintCompiler) -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "v": {"type": "integer"}}, "required": ["v"]}
    assert admits(compiler, schema_constraint(tree), '{"left":{"left":{"v":1},"v":2},"v":3}')
    assert takes(compiler, tree, "left:{left:{v:1},v:2},v:3", strict=True)
    assert not takes(compiler, tree, "left:{left:{},v:2},v:3", strict=True)


def test_a_tokenizer_without_stop_ids_knows_when_an_answer_is_whole(tmp_path: Any) -> None:
    compiler = byte_compiler(tmp_path, stop_token_ids=())
    matcher = compiler.start(choice_constraint(["a"]))
    matcher.accept(*compiler.tokenizer.encode("a"))
    assert matcher.is_complete
    assert not matcher.allowed().any()


def test_settings_meet_the_constraint_and_an_empty_rest_is_named() -> None:
    logits = np.array([5.0, 1.0, 2.0, 3.0], dtype=np.float32)
    mask = np.array([False, True, True, False])

    def choose(forbidden: tuple[int, ...] = (), **settings: Any) -> int:
        params = SamplingParams(regex="x", **settings)
        known: Any = {"seed": 1, "answer_index": 0, "prompt_token_ids": [], "token_ids": []}
        return choose_token(logits, params, **known, forbidden=forbidden, mask=mask)

    assert choose(temperature=0) == 2
    assert {choose(temperature=t) for t in (0.5, 1.0, 9.0)} <= {1, 2}
    assert choose(temperature=0, logit_bias={0: 100}) == 2
    assert choose(temperature=0, logit_bias={1: 100}) == 1
    assert choose(temperature=0, allowed_token_ids=[0, 1]) == 1
    assert choose((2,), temperature=0, min_tokens=1) == 1
    for forbidden, settings in (((), {"allowed_token_ids": (0, 3)}), ((1, 2), {"min_tokens": 1, "bad_words": ("x",)})):
        with pytest.raises(RequestError, match="not allowed") as caught:
            choose(forbidden, **settings)
        assert set(str(caught.value.value).split(", ")) == {"regex", *settings}


def test_parameters_take_one_constraint_and_keep_it_comparable() -> None:
    schema = {"type": "object", "properties": {"é": {}}}
    params = SamplingParams(json_schema=schema)
    assert params == SamplingParams(json_schema=json.dumps(schema))
    assert hash(params) == hash(SamplingParams(json_schema=schema))
    assert SamplingParams(choice=["a", "b"]).choice == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams().with_thinking(True).constraint is None
    moved = params.with_thinking(True, True)
    assert moved.json_schema is None
    assert moved.constraint == schema_constraint(schema).with_thinking(True, True)
    for bad in (
        {"json_object": True, "regex": "a"},
        {"json_schema": {}, "constraint": regex_constraint("a")},
        {"choice": ["a"], "ignore_eos": True},
        {"json_object": 1},
        {"choice": "ab"},
        {"constraint": "a"},
    ):
        with pytest.raises(RequestError):
            SamplingParams(**bad)  # type: ignore[arg-type]


def test_one_seed_and_constraint_give_one_answer(compiler: ConstraintCompiler) -> None:
    constraint = object_constraint()
    first = text_of(compiler.tokenizer, random_answer(compiler, constraint, 3)[0])
    random_answer(compiler, constraint, 4)
    assert text_of(compiler.tokenizer, random_answer(compiler, constraint, 3)[0]) == first


def test_free_text_never_spells_a_control_word(compiler: ConstraintCompiler) -> None:
    """A reader takes spelled marks for real ones, so that a thought could end, or a call begin, unseen."""
    encode = compiler.tokenizer.encode
    strict = tool_constraint([{"name": "f", "strict": True}], "auto")
    assert strict is not None
    for constraint in (strict, object_constraint().with_thinking(True, True)):
        for text in ("<|tool_call>", "<|<|tool_call>", "a<channel|>", "<|tool_call<channel|>", "<|turn>"):
            matcher = compiler.start(constraint)
            tokens = encode(text, parse_special=False)
            for token in tokens[:-1]:
                assert matcher.allowed()[token], text
                matcher.accept(token)
            assert not matcher.allowed()[tokens[-1]], text
            assert matcher.allowed()[encode("|")[0]]
        matcher = compiler.start(constraint)
        for token in encode("<|tool-call> <channel> <|> a->b |>", parse_special=False):
            assert matcher.allowed()[token]
            matcher.accept(token)


def test_who_compiles_holds_up_nobody_whose_constraint_is_ready(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = byte_compiler(tmp_path)
    ready, slow = choice_constraint(["a"]), choice_constraint(["b"])
    compiler.check(ready)
    began, go_on = threading.Event(), threading.Event()
    compile_one = compiler._compile

    def wait(constraint: Constraint) -> Any:
        began.set()
        assert go_on.wait(60)
        return compile_one(constraint)

    monkeypatch.setattr(compiler, "_compile", wait)
    threads = [threading.Thread(target=compiler.check, args=(slow,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert began.wait(60)
    assert compiler.start(ready).allowed().any()
    go_on.set()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(compiler, "_compile", None)  # all three found what the first one made
    assert compiler.start(slow).allowed().any()


def test_what_is_compiled_is_kept_within_bounds_whatever_the_prompt(tmp_path: Any) -> None:
    compiler = byte_compiler(tmp_path)
    for number in range(40):
        for thinking in (False, True):
            compiler.check(choice_constraint([f"c{number}"]).with_thinking(thinking, False))
    assert len(compiler._programs) == 32
    for size in range(5):
        compiler.check(choice_constraint(["x" * (1_000_000 - size)]))
    assert sum(len(text) for kept in compiler._programs for text in kept.choices) <= 4 << 20
