"""`gemwright chat` on a pseudo-terminal and through a pipe. What a tiny random Gemma 4 says is set by a grammar."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemwright.testing import write_tiny_checkpoint
from tests.programs import PROGRAM
from tests.terminal import Terminal

SAYS = ["--grammar", 'start: <|channel> "thought\\nLet me see.\\n" <channel|> "All is well."']
FOR_EVER = ["--grammar", "start: /[a-z ]*/", "--logit-bias", "106=-100,1=-100,50=-100"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Gemma 4 that counts as instruction-tuned by its name."""
    return str(write_tiny_checkpoint("gemma4-e", tmp_path_factory.mktemp("models") / "tiny-gemma-4-it"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GEMWRIGHT_")}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "NO_COLOR": "",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }


@pytest.fixture
def in_colors(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "NO_COLOR"}


@pytest.fixture
def terminal(model: str, environment: dict[str, str]) -> Iterator[Terminal]:
    with Terminal(["chat", model, *SAYS], environment) as screen:
        screen.wait_for("Ctrl-D leaves")
        screen.wait_for(">>>")
        yield screen


def piped(words: list[str], typed: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "chat", *words],
        input=typed,
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_an_answer_with_its_thought_and_a_closing_line(terminal: Terminal) -> None:
    terminal.type("How are you?\r")
    shown = terminal.wait_for(r"\[\d+ tokens[^\]]*\]")
    assert re.search(r"Let me see\.\n\nAll is well\.\n\[", shown), shown
    closing = shown[shown.rindex("[") :]
    assert re.fullmatch(
        r"\[\d+ tokens at [\d.]+ tokens/s \| first after [\d.]+ s \| context \d+ of 4,096 \| memory [\d.]+ [MG]iB\]",
        closing,
    )
    terminal.type("/exit\r")
    assert terminal.wait_for_end() == 0
    for marker in ("<|channel>", "<channel|>", "thought\n", "<turn|>"):
        assert marker not in terminal.shown


def test_thoughts_are_dim_in_colors_and_fold_to_a_line(model: str, in_colors: dict[str, str]) -> None:
    with Terminal(["chat", model, *SAYS], in_colors) as screen:
        screen.wait_for(">>>")
        screen.type("one\r")
        screen.wait_for(r"tokens/s")
        assert "\x1b[2mL\x1b[0m" in screen.raw or "\x1b[2mLet" in screen.raw
        screen.wait_for(">>>")
        screen.type("/fold on\r")
        screen.wait_for("thoughts are folded")
        screen.wait_for(">>>")
        screen.type("two\r")
        shown = screen.wait_for(r"tokens/s")
        assert "Let me see." not in shown
        assert re.search(r"\[thought for [\d.]+ s, 3 words; /thought shows it\]\nAll is well\.", shown)
        screen.wait_for(">>>")
        screen.type("/thought\r")
        screen.wait_for(r"Let me see\.\s+>>>")
        screen.type("\x04")
        assert screen.wait_for_end() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(model: str, environment: dict[str, str]) -> None:
    with Terminal(["chat", model, *FOR_EVER], environment) as screen:
        screen.wait_for(">>>")
        screen.type("Talk.\r")
        screen.wait_for(r"Talk\.\s+[a-z ]{3}")
        screen.type("\x03")
        screen.wait_for(r"\| stopped\]")
        screen.wait_for(">>>")
        screen.type("\x03")
        screen.wait_for(r"Ctrl-D or /exit leaves\s+>>>")
        screen.type("/undo\r")
        screen.wait_for(r"taken back: Talk\.[^>]*>>>")
        screen.type("\x04")
        assert screen.wait_for_end() == 0


def test_pasted_lines_are_one_message(terminal: Terminal, tmp_path: Path) -> None:
    terminal.paste("first\nsecond\n\nthird")
    terminal.type("\r")
    terminal.wait_for("tokens/s")
    terminal.wait_for(">>>")
    terminal.type(f"/save {tmp_path / 'talk.json'}\r")
    terminal.wait_for("saved 2 messages")
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert messages[0] == {"role": "user", "content": "first\nsecond\n\nthird"}
    assert messages[1] == {"role": "assistant", "content": "All is well.", "reasoning_content": "Let me see."}


@pytest.mark.slow
def test_what_was_typed_comes_back_with_the_arrow_key_also_in_the_next_chat(
    model: str, environment: dict[str, str], terminal: Terminal
) -> None:
    terminal.type("Remember this.\r")
    terminal.wait_for("tokens/s")
    terminal.wait_for(">>>")
    terminal.type("\x04")
    assert terminal.wait_for_end() == 0
    history = Path(environment["XDG_STATE_HOME"]) / "gemwright" / "chat_history"
    assert history.stat().st_mode & 0o077 == 0
    with Terminal(["chat", model, *SAYS], environment) as later:
        later.wait_for(">>>")
        later.type("\x1b[A")
        later.wait_for(r"Remember this\.")
    before = history.read_text()
    with Terminal(["chat", model, *SAYS, "--no-history"], environment) as secret:
        secret.wait_for(">>>")
        secret.type("A secret.\r")
        secret.wait_for("tokens/s")
        secret.wait_for(">>>")
        secret.type("\x04")
        assert secret.wait_for_end() == 0
    assert history.read_text() == before


@pytest.mark.slow
def test_a_conversation_is_saved_loaded_and_remembered(model: str, environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    done = piped([model, *SAYS, "--system", "Be kind."], f"Hello.\n/save {path}\n/reset\nAgain.\n", environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "All is well.\nAll is well.\n"
    saved = json.loads(path.read_text())
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    counts = [int(count) for count in re.findall(r"context (\d+) of", done.stderr)]
    assert counts[0] == counts[1], (
        "after /reset the first question is forgotten: what is left of it would be read again"
    )
    loaded = piped([model, *SAYS, "--load", str(path)], "And now?\n", environment)
    assert loaded.returncode == 0, loaded.stderr
    assert "loaded 2 messages" in loaded.stderr
    (count,) = [int(count) for count in re.findall(r"context (\d+) of", loaded.stderr)]
    assert count > counts[0]


def test_the_second_turn_reads_only_what_is_new(model: str, environment: dict[str, str]) -> None:
    done = piped([model, *SAYS], f"{'A long question. ' * 20}\nAnd?\n", environment)
    found = re.search(r"([\d,]+) of ([\d,]+) read before", done.stderr)
    assert found is not None, done.stderr
    cached, prompt = (int(number.replace(",", "")) for number in found.groups())
    assert cached > 320
    assert prompt - cached < 60


def test_a_stream_that_is_no_terminal_gets_the_answers_alone(model: str, environment: dict[str, str]) -> None:
    done = piped([model, *SAYS], 'Hi.\n"""\nTwo\nlines.\n"""\n//not a command\n', environment)
    assert done.returncode == 0
    assert done.stdout == "All is well.\n" * 3
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr.count("[thought for") == 3


def test_thinking_is_a_switch_of_the_prompt(model: str, environment: dict[str, str]) -> None:
    plain = ["--max-tokens", "1"]
    done = piped([model, *plain], "Hi.\n/think on\n/reset\nHi.\n/think off\n/reset\nHi.\n", environment)
    off, on, off_again = [int(count) for count in re.findall(r"context (\d+) of", done.stderr)]
    assert off == off_again < on
    assert "thinking is on" in done.stderr
    assert "thinking is off" in done.stderr


def test_mistakes_are_named_and_the_chat_goes_on(model: str, environment: dict[str, str], tmp_path: Path) -> None:
    typed = (
        "/nope\n/think maybe\n/save\n"
        f"/save {tmp_path}\n/load {tmp_path / 'missing.json'}\n/save {tmp_path / 'no' / 'such.json'}\nStill here?\n"
    )
    done = piped([model, *SAYS], typed, environment)
    assert done.returncode == 2, "a script sees that the first of them was refused"
    assert done.stdout == "All is well.\n"
    for said in ("no such command", "value: maybe", "/save needs the name", "this is a folder", "missing.json: cannot"):
        assert said in done.stderr
    assert done.stderr.count("error: ") == 6
    assert "unforeseen" not in done.stderr


def test_a_conversation_over_the_context_is_refused_and_the_question_not_kept(
    model: str, environment: dict[str, str]
) -> None:
    words = [model, *SAYS, "--max-model-len", "128"]
    done = piped(words, f"{'x' * 200}\nHi.\n", environment)
    assert "leaves no room for an answer" in done.stderr
    assert "limit: 127 tokens" in done.stderr
    assert "/reset" in done.stderr
    assert done.stdout == "All is well.\n"


def test_an_answer_may_fill_the_context_and_says_so(model: str, environment: dict[str, str]) -> None:
    done = piped([model, *FOR_EVER, "--max-model-len", "64"], "Hi.\n", environment)
    assert "context 64 of 64" in done.stderr
    assert "the context is full" in done.stderr
    done = piped([model, *FOR_EVER, "--max-tokens", "5"], "Hi.\n", environment)
    assert "[5 tokens" in done.stderr
    assert "cut at --max-tokens" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--n", "2"], 3, "--n is not for chats"),
        (["--logprobs", "2"], 3, "--logprobs is not for chats"),
        (["--temperature", "-1"], 2, "temperature"),
        (["--load", "missing.json"], 5, "missing.json"),
        (["--json"], 2, "No such option"),
        (["--think", "--chat-template", "gemma3"], 3, "vocabulary"),
    ],
)
def test_flags_that_cannot_be_are_refused(
    model: str, environment: dict[str, str], words: list[str], code: int, said: str
) -> None:
    done = piped([model, *words], "Hi.\n", environment)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_a_base_model_says_so_and_continues_texts(environment: dict[str, str]) -> None:
    done = piped(["--max-tokens", "8"], "The capital of France is\n/think on\n/save x\n/memory\n", environment)
    assert done.returncode == 2, done.stderr
    assert "is a base model" in done.stderr
    assert len(done.stdout.split()) > 3
    assert done.stderr.count("this is a base model: it continues texts") == 2
    assert "planned" in done.stderr
    refused = piped(["--system", "Be kind."], "Hi.\n", environment)
    assert refused.returncode == 3
    assert "base model" in refused.stderr


def test_a_model_cannot_move_the_cursor(model: str, environment: dict[str, str]) -> None:
    says = ["--grammar", 'start: "a\\u001b[2Jb\\u0007c"']
    with Terminal(["chat", model, *says], environment) as screen:
        screen.wait_for(">>>")
        screen.type("Hi.\r")
        screen.wait_for("tokens/s")
        assert "a\ufffd[2Jb\ufffdc" in screen.raw


def test_input_that_is_no_text_ends_the_chat(model: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "chat", model, *SAYS],
        input=b"Hi.\n\xff\xfe\nHi.\n",
        capture_output=True,
        env={**environment, "LC_ALL": "C"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert b"stdin is not UTF-8 text" in done.stderr
    assert b"unforeseen" not in done.stderr
