"""`gemwright agent` from the command line against a served model that says what the test wants."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemwright.agent import Agent, tool_of
from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm
from tests.end_to_end.command_line import CHILD, CommandLine, child_environment
from tests.serving import Served, serving

THOUGHT = "<|channel>thought\nThe tool will know.<channel|>"
MULTIPLY = "<|tool_call>call:multiply{a:17,b:23}<tool_call|>"
REPLIES = {
    "17 * 23": THOUGHT + MULTIPLY,
    "391": "It is 391.",
    "forever": "<|tool_call>call:multiply{a:1,b:1}<tool_call|>",
    "response:multiply{value:1}": "<|tool_call>call:multiply{a:1,b:1}<tool_call|>",
    "Divide": "<|tool_call>call:divide{a:1,b:0}<tool_call|>",
    "ZeroDivisionError": "Nothing can be divided by 0.",
    "Hang": "<|tool_call>call:hang{}<tool_call|>",
    "given up": "It hangs.",
}
TOOLS = '''
"""Tools of a test."""
import time

def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b

def divide(a: float, b: float) -> float:
    return a / b

def hang() -> None:
    time.sleep(600)

def untyped(a, b):
    return a + b

not_a_function = 7
'''


def reply(prompt: str, answer_index: int) -> str:
    """A model that thinks finds its thought begun behind a result of a tool, and ends it."""
    said = answers(REPLIES)(prompt, answer_index)
    return f"Now I know.<channel|>{said}" if prompt.endswith("<|channel>thought\n") else said


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_tiny_checkpoint(
        "gemma4-e", tmp_path_factory.mktemp("agent"), overrides={"max_position_embeddings": 4096}
    )
    llm = scripted_llm(folder, reply, threads=1, max_model_len=4096, chat_template="gemma4")
    with serving(llm, ServerSettings(api_keys=("secret",))) as server:
        yield server


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "own_tools.py"
    path.write_text(TOOLS)
    return path


@pytest.fixture
def to_server(served: Served) -> tuple[str, ...]:
    return ("--base-url", f"{served.url}/v1", "--api-key", "secret")


def test_a_task_is_worked_on_and_every_step_is_written_down(
    gemwright: CommandLine, tools: Path, to_server: tuple[str, ...], tmp_path: Path
) -> None:
    found = gemwright(
        *("agent", "What is 17 * 23?", "--tool", f"{tools}:multiply", "--think", *to_server),
        *("--transcript", tmp_path / "run.jsonl"),
    )
    assert (found.code, found.stdout) == (0, "It is 391.\n")
    thought, call, observation, last_thought = found.stderr.splitlines()
    assert thought == "thought: The tool will know."
    assert call.startswith("call: multiply(")
    assert json.loads(call.removeprefix("call: multiply(").removesuffix(")")) == {"a": 17, "b": 23}
    assert (observation, last_thought) == ("observation: 391", "thought: Now I know.")
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == [
        *("task", "thought", "call", "observation", "thought", "answer", "summary")
    ]
    assert lines[-1]["ending"] == "answered"
    assert lines[-1]["model"] == "gemma"
    assert lines[-1]["num_rounds"] == 2
    assert lines[-1]["completion_tokens"] > len("It is 391.")


def test_the_output_is_one_json_object_where_that_is_wanted(
    gemwright: CommandLine, tools: Path, to_server: tuple[str, ...]
) -> None:
    found = gemwright("agent", "What is 17 * 23?", "--tool", f"{tools}:multiply", "--json", *to_server)
    assert (found.code, found.stderr) == (0, "")
    content = found.json()
    assert (content["answer"], content["ending"]) == ("It is 391.", "answered")
    assert [step["kind"] for step in content["steps"]] == ["task", "thought", "call", "observation", "answer"]


def test_an_error_of_a_tool_reaches_the_model(gemwright: CommandLine, tools: Path, to_server: tuple[str, ...]) -> None:
    found = gemwright("agent", "Divide 1 by 0.", "--tool", f"{tools}:divide", *to_server)
    assert (found.code, found.stdout) == (0, "Nothing can be divided by 0.\n")


def test_a_run_that_meets_its_limit_exits_with_1(
    gemwright: CommandLine, tools: Path, to_server: tuple[str, ...]
) -> None:
    words = ("agent", "Go on forever.", "--tool", f"{tools}:multiply", "--max-rounds", 3, *to_server)
    with pytest.raises(SystemExit) as caught:
        gemwright(*words)
    assert caught.value.code == 1
    printed = gemwright.capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == "stopped: the rounds allowed are used up"
    assert printed.err.count("call: multiply") == 3


def test_a_tool_that_hangs_does_not_keep_the_command_from_ending(tools: Path, to_server: tuple[str, ...]) -> None:
    """And a module is found in the folder where the command runs."""
    found = subprocess.run(
        [*CHILD, "agent", "Hang on.", "--tool", "own_tools:hang", "--tool-timeout", "0.2", *to_server],
        cwd=tools.parent,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "It hangs.\n"), found.stderr
    assert "hang took longer than 0.2 seconds" in found.stderr


@pytest.mark.parametrize(
    ("spelled", "code", "message"),
    [
        ("no_such_module:f", 5, "No module named 'no_such_module'"),
        ("no_such_file.py:f", 5, "no_such_file.py"),
        ("{tools}:not_a_function", 2, "no such function"),
        ("{tools}:nothing", 2, "no such function"),
        ("{tools}:untyped", 2, "untyped: parameter a has no type"),
        ("{tools}", 2, "module:function"),
    ],
)
def test_a_tool_that_is_none_is_refused_before_the_server_is_asked(
    gemwright: CommandLine, tools: Path, spelled: str, code: int, message: str
) -> None:
    spelled = spelled.format(tools=tools)
    found = gemwright("agent", "Hello", "--tool", spelled, "--base-url", "http://127.0.0.1:1/v1")
    assert (found.code, found.stdout) == (code, "")
    assert found.stderr.startswith("error: ")
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_what_else_is_wrong_is_said_in_a_few_lines(
    gemwright: CommandLine, served: Served, tools: Path, to_server: tuple[str, ...], tmp_path: Path
) -> None:
    url = f"{served.url}/v1"
    for words, code, message in (
        (("--base-url", "http://127.0.0.1:1/v1"), 1, "cannot be reached"),
        (("--base-url", url), 1, "401"),
        (("--base-url", url, "--api-key", "wrong"), 1, "the API key is wrong"),
        (("--base-url", served.url, "--api-key", "secret"), 1, "no such route"),
        ((*to_server, "--model", "other"), 1, "no such model"),
        ((*to_server, "--max-rounds", 0), 2, "max_rounds"),
        ((*to_server, "--tool", f"{tools}:multiply", "--tool", f"{tools}:multiply"), 2, "one name"),
        ((*to_server, "--transcript", tmp_path / "no" / "run.jsonl"), 5, "transcript"),
    ):
        found = gemwright("agent", "Hello", *words)
        assert (found.code, found.stdout) == (code, ""), words
        assert message in found.stderr
        assert "remedy" in found.stderr


def test_what_happened_before_the_server_went_is_in_the_transcript(
    gemwright: CommandLine, tools: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    assert (
        gemwright("agent", "Hello", "--model", "m", "--transcript", path, "--base-url", "http://127.0.0.1:1").code == 1
    )
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["task"]


def test_the_agent_is_python_too(served: Served) -> None:
    def multiply(a: int, b: int) -> int:
        return a * b

    agent = Agent([tool_of(multiply)], base_url=f"{served.url}/v1", api_key="secret", thinking=True)
    first = agent.run("What is 17 * 23?")
    assert (first.answer, first.ending) == ("It is 391.", "answered")
    again = agent.run("Divide? No: what is 17 * 23?", first.messages)
    assert again.answer == "It is 391."
