"""Python functions as tools: their schemas, their calls, and what becomes of a call that goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from gemwright.agent import Tool, load_tool, tool_of
from gemwright.errors import CheckpointError, RequestError


def find_city(name: str, units: Literal["metric", "imperial"] = "metric", limit: int | None = None) -> dict[str, Any]:
    """Find a city
    by its name.

    name: as people there
    units: (of distances) what to measure in
    """
    return {"name": name, "units": units, "limit": limit}


def everything(
    a: str,
    b: int,
    c: float,
    d: bool,
    e: list[int],
    f: dict[str, Any],
    g: Annotated[int, "how many"],
    h: tuple[str, ...] = (),
) -> str:
    return f"{a}{b}{c}{d}{e}{f}{g}{h}"


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def error_of(tool: Tool, **arguments: Any) -> str:
    """What a model is told of a call that went wrong."""
    told = json.loads(tool.call(arguments))
    assert list(told) == ["error"]
    return str(told["error"])


def test_a_function_becomes_a_tool_with_the_schema_of_its_signature() -> None:
    assert tool_of(find_city).to_dict() == {
        "type": "function",
        "function": {
            "name": "find_city",
            "description": "Find a city by its name.",
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "as people there"},
                    "units": {
                        "type": "string",
                        "enum": ["metric", "imperial"],
                        "description": "(of distances) what to measure in",
                    },
                    "limit": {"type": ["integer", "null"]},
                },
                "required": ["name"],
            },
        },
    }
    properties = tool_of(everything).parameters["properties"]
    assert [properties[name]["type"] for name in "abcdef"] == [
        *("string", "integer", "number", "boolean", "array", "object")
    ]
    assert properties["e"] == {"type": "array", "items": {"type": "integer"}}
    assert properties["g"] == {"type": "integer", "description": "how many"}
    assert tool_of(everything).parameters["required"] == list("abcdefg")


def no_types(a, b: int) -> None: ...  # type: ignore[no-untyped-def]  # what is tested


def a_set(a: set[int]) -> None: ...


def many(*a: int) -> None: ...


def by_place(a: int, /) -> None: ...


def unknown_type(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # what is tested


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_types, "no_types: parameter a has no type"),
        (a_set, "a_set: parameter a has a type that JSON cannot carry"),
        (many, "many: parameter a has no name to be given by"),
        (by_place, "by_place: parameter a has no name to be given by"),
        (unknown_type, "the types of unknown_type cannot be read"),
        (int, "int"),
        (dict, "dict"),
    ],
)
def test_what_cannot_be_described_to_a_model_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        tool_of(function)


def test_what_a_function_returns_is_told_as_text() -> None:
    assert tool_of(add).call({"a": 3, "b": 4}) == "7"
    assert json.loads(tool_of(find_city).call({"name": "Köln"})) == {"name": "Köln", "units": "metric", "limit": None}

    def say(text: str) -> str:
        return text

    assert tool_of(say).call({"text": "as it is"}) == "as it is"
    assert tool_of(say).call({"text": "half a pair \ud83d"}) == "half a pair \\ud83d"
    long = tool_of(say).call({"text": "x" * 20_005})
    assert long == "x" * 20_000 + "\n[5 more characters were left out]"


def test_a_coroutine_function_is_run_to_its_end() -> None:
    async def later(a: int) -> int:
        return a + 1

    assert tool_of(later).call({"a": 1}) == "2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": 1}, "missing a required argument: 'b'"),
        ({"a": 1, "b": 2, "c": 3}, "unexpected keyword argument 'c'"),
        ({"a": "1", "b": 2}, 'a is "1", which is no integer'),
        ({"a": True, "b": 2}, "a is true, which is no integer"),
        ({"a": 1.5, "b": 2}, "a is 1.5, which is no integer"),
        ({"a": None, "b": 2}, "a is null, which is no integer"),
    ],
)
def test_wrong_arguments_are_told_and_the_function_is_not_called(arguments: dict[str, Any], message: str) -> None:
    called = []

    def add(a: int, b: int) -> int:
        called.append((a, b))
        return a + b

    told = error_of(tool_of(add), **arguments)
    assert told.startswith("wrong arguments: ")
    assert message in told
    assert not called


def test_arguments_inside_lists_and_of_named_values_are_looked_at() -> None:
    def take(numbers: list[float], unit: Literal["km", "mile"] | None = None) -> str:
        return "taken"

    tool = tool_of(take)
    assert tool.call({"numbers": [1, 2.5], "unit": None}) == tool.call({"numbers": [], "unit": "km"}) == "taken"
    assert error_of(tool, numbers=[1, "2"]) == 'wrong arguments: numbers[1] is "2", which is no number'
    assert error_of(tool, numbers=[], unit="inch") == 'wrong arguments: unit is "inch", and may be ["km", "mile"]'


@pytest.mark.parametrize(
    "raised", [ValueError("no such city"), KeyError("x"), SystemExit(3), RecursionError("deep"), TimeoutError("late")]
)
def test_whatever_a_function_raises_is_told(raised: BaseException) -> None:
    def fail() -> None:
        raise raised

    assert error_of(tool_of(fail)) == f"{type(raised).__name__}: {raised}"


def test_a_result_that_json_cannot_carry_is_told() -> None:
    def circle() -> list[Any]:
        found: list[Any] = []
        found.append(found)
        return found

    assert "Circular" in error_of(tool_of(circle))


def test_tools_are_loaded_from_files_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file named like a module takes nobody's place, and two tools of one file share its state."""
    (tmp_path / "json.py").write_text(
        "NOTES = []\n"
        "def put(note: str) -> int:\n    NOTES.append(note)\n    return len(NOTES)\n"
        "def all_notes() -> list:\n    return NOTES\n"
    )
    put, all_notes = (load_tool(f"{tmp_path}/json.py:{name}") for name in ("put", "all_notes"))
    assert sys.modules["json"] is json
    assert (put.name, all_notes.name) == ("put", "all_notes")
    put.call({"note": "milk"})
    assert all_notes.call({}) == '["milk"]'
    (tmp_path / "own_tools.py").write_text("def one() -> int:\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert load_tool("own_tools:one").call({}) == "1"


@pytest.mark.parametrize(
    ("spelled", "error", "message"),
    [
        ("json", RequestError, "module:function"),
        (":dumps", RequestError, "module:function"),
        ("json:", RequestError, "module:function"),
        ("json:no-name", RequestError, "module:function"),
        ("json:nothing", RequestError, "no such function"),
        ("json:__name__", RequestError, "no such function"),
        ("no_such_module:f", CheckpointError, "No module named 'no_such_module'"),
        ("no_such_file.py:f", CheckpointError, "FileNotFoundError"),
        ("json:dumps", RequestError, "dumps: parameter obj has no type"),
    ],
)
def test_a_tool_that_cannot_be_loaded_is_refused(spelled: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_tool(spelled)


@pytest.mark.parametrize("line", ["raise ValueError('broken')", "import sys; sys.exit(3)", "def ("])
def test_a_file_that_breaks_when_it_is_read_is_refused_each_time(tmp_path: Path, line: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(f"{line}\n")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="cannot be imported"):
            load_tool(f"{path}:f")
