"""`gemwright run` on tiny checkpoints: what it prints, where, and that its answers are those of LLM."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from gemwright import LLM, SamplingParams
from gemwright.cli.run import run
from gemwright.config import EngineConfig
from gemwright.testing import write_tiny_checkpoint
from tests.end_to_end.command_line import CHILD, CommandLine, child_environment
from tests.end_to_end.conftest import TinyFolder, TinyLLM

PROMPT = "Wie geht's?"
VARIED = ("--temperature", 12, "--seed", 3, "--max-tokens", 12, "--ignore-eos")


@pytest.fixture(scope="module")
def folder(tiny_folder: TinyFolder) -> Path:
    return tiny_folder("gemma3")


def expected(tiny_llm: TinyLLM, **settings: object) -> object:
    llm: LLM = tiny_llm("gemma3")
    params = {"temperature": 12.0, "seed": 3, "max_tokens": 12, "ignore_eos": True, **settings}
    return llm.generate([PROMPT], SamplingParams(**params))[0]  # type: ignore[arg-type]


def test_json_is_one_object_with_the_fields_of_a_completion(
    gemwright: CommandLine, folder: Path, tiny_llm: TinyLLM
) -> None:
    outcome = gemwright("run", folder, PROMPT, *VARIED, "--logprobs", 3, "--prompt-logprobs", 1, "--json")
    assert outcome.code == 0, outcome.stderr
    found = outcome.json()
    # LLM gives the same tokens and, bit for bit, the same numbers.
    completion = expected(tiny_llm, logprobs=3, prompt_logprobs=1)
    wanted = completion.to_dict()  # type: ignore[attr-defined]
    same = ("prompt_token_ids", "token_ids", "text", "finish_reason", "logprobs", "prompt_logprobs", "usage")
    assert {name: found[name] for name in same} == {name: wanted[name] for name in same}
    assert found.keys() == {*same, "model", "timing", "memory"}
    assert found["model"] == str(folder)
    assert found["usage"] == {
        "prompt_tokens": len(found["prompt_token_ids"]),
        "completion_tokens": 12,
        "cached_tokens": 0,
    }
    assert 0 < found["timing"]["ttft_s"] < 60
    assert found["timing"]["load_s"] > 0
    assert found["timing"]["decode_tokens_per_s"] > 0
    assert found["memory"]["planned_bytes"] == found["memory"]["measured_bytes"] > 0
    assert found["memory"]["process_bytes"] > found["memory"]["measured_bytes"]


def test_text_goes_to_stdout_and_all_else_to_stderr(gemwright: CommandLine, folder: Path, tiny_llm: TinyLLM) -> None:
    outcome = gemwright("run", folder, PROMPT, *VARIED)
    assert outcome.code == 0
    assert outcome.stdout == expected(tiny_llm).text + "\n"  # type: ignore[attr-defined]
    assert re.search(r"^12 tokens at [\d.]+ tokens/s, first token after [\d.]+ s, loaded in", outcome.stderr)
    for name in ("weights: embedding", "K/V cache", "workspace", "in all", "process"):
        assert re.search(rf"^  {name}.*  [\d.]+ [KM]iB", outcome.stderr, re.MULTILINE), name
    (found,) = re.findall(r"^  in all +([\d.]+ [KM]iB) +([\d.]+ [KM]iB) ", outcome.stderr, re.MULTILINE)
    planned, measured = found
    assert planned == measured
    # No bar, and no terms of a model that was not used.
    assert "\x1b" not in outcome.stderr
    assert "terms" not in outcome.stderr


def test_several_answers_lie_in_choices(gemwright: CommandLine, folder: Path, tiny_llm: TinyLLM) -> None:
    wanted = expected(tiny_llm, n=3).choices  # type: ignore[attr-defined]
    found = gemwright("run", folder, PROMPT, *VARIED, "--n", 3, "--json").json()
    assert [tuple(choice["token_ids"]) for choice in found["choices"]] == [choice.token_ids for choice in wanted]
    assert "token_ids" not in found
    text = gemwright("run", folder, PROMPT, *VARIED, "--n", 3).stdout
    assert text == "".join(f"--- {number} of 3\n{choice.text}\n" for number, choice in enumerate(wanted, start=1))


def test_stdin_is_the_prompt_exactly_as_it_comes(
    gemwright: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ids(*words: object, stdin: bytes = b"") -> object:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return gemwright("run", folder, *words, "--max-tokens", 1, "--json").json()["prompt_token_ids"]

    typed = ids("two\nlines\n")
    assert ids("-", stdin=b"two\nlines\n") == typed
    assert ids("--prompt", "-", stdin=b"two\nlines\n") == typed
    assert ids("-", stdin=b"two\nlines") == typed[:-1]  # type: ignore[index]


def test_ids_are_used_as_given_and_text_gets_bos(gemwright: CommandLine, folder: Path) -> None:
    assert gemwright("run", folder, "--token-ids", "40,300", "--max-tokens", 1, "--json").json()[
        "prompt_token_ids"
    ] == [40, 300]
    assert gemwright("run", folder, "a", "--max-tokens", 1, "--json").json()["prompt_token_ids"] == [2, 108 + ord("a")]


def test_a_checkpoint_without_tokenizer_takes_and_gives_ids(gemwright: CommandLine, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma4-e", tmp_path)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    words = ("run", folder, "--token-ids", "40,300", "--max-tokens", 4)
    found = gemwright(*words, "--json").json()
    assert found["text"] is None
    assert gemwright(*words).stdout == ",".join(map(str, found["token_ids"])) + "\n"
    assert gemwright(*words, "--n", 2, "--temperature", 0).stdout.count(",".join(map(str, found["token_ids"]))) == 2


def test_stop_texts_and_ids(gemwright: CommandLine, folder: Path) -> None:
    found = gemwright("run", folder, PROMPT, *VARIED, "--json").json()
    middle = found["text"][4]
    words = ("--stop", "never there", "--stop", middle)
    stopped = gemwright("run", folder, PROMPT, *VARIED, *words, "--json").json()
    assert stopped["text"] == found["text"][: found["text"].index(middle)]
    assert stopped["finish_reason"] == "stop"
    token = found["token_ids"][5]
    stopped = gemwright("run", folder, PROMPT, *VARIED, "--stop-token-ids", f"1,{token}", "--json").json()
    assert stopped["token_ids"] == found["token_ids"][: found["token_ids"].index(token) + 1]


def test_variables_stand_for_flags_and_flags_go_before_them(
    gemwright: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = gemwright("run", folder, PROMPT, *VARIED, "--json").json()
    stop = " " + plain["text"][3:5]
    for name, value in (("MODEL", folder), ("MAX_TOKENS", 12), ("JSON", 1), ("IGNORE_EOS", 1), ("SEED", 3)):
        monkeypatch.setenv(f"GEMWRIGHT_{name}", str(value))
    monkeypatch.setenv("GEMWRIGHT_STOP", stop)
    assert gemwright("run", PROMPT, "--temperature", 12).json()["token_ids"] == plain["token_ids"]
    assert len(gemwright("run", PROMPT, "--temperature", 12, "--max-tokens", 2).json()["token_ids"]) == 2
    monkeypatch.setenv("GEMWRIGHT_STOP", plain["text"][3:5])
    assert gemwright("run", PROMPT, "--temperature", 12).json()["finish_reason"] == "stop"
    monkeypatch.setenv("GEMWRIGHT_PROMPT", PROMPT)
    assert gemwright("run", "--temperature", 12).json()["prompt_token_ids"] == plain["prompt_token_ids"]
    assert gemwright("run", "b", "--temperature", 12).json()["prompt_token_ids"] == [2, 108 + ord("b")]


def test_notes_are_shown_in_either_form(gemwright: CommandLine, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma4-e", tmp_path, with_unused=True)
    for form in ((), ("--json",)):
        outcome = gemwright("run", folder, "a", "--max-tokens", 1, *form)
        assert outcome.code == 0
        assert re.search(r"^note: .*(unused|shared|K/V)", outcome.stderr, re.MULTILINE), outcome.stderr


def test_every_setting_has_a_flag_and_every_flag_a_variable() -> None:
    flags = {parameter.name: parameter for parameter in run.params if parameter.param_type_name == "option"}
    settings = [field.name for config in (EngineConfig, SamplingParams) for field in fields(config)]
    settings.remove("constraint")  # made by callers in Python, from a request's tools
    assert {"no_prefix_caching" if name == "prefix_caching" else name for name in settings} <= flags.keys()
    for name, flag in flags.items():
        assert flag.opts == [f"--{name.replace('_', '-')}"]  # type: ignore[union-attr]
        assert flag.envvar == f"GEMWRIGHT_{name.upper()}"  # type: ignore[union-attr]


def test_sizes_may_have_units(gemwright: CommandLine, folder: Path) -> None:
    words = ("run", folder, "a", "--max-tokens", 1, "--max-model-len", 64, "--json")
    bytes_by_size = {
        size: gemwright(*words, "--kv-cache-memory-bytes", size).json()["memory"]["planned_bytes"]
        for size in ("204800", "200KiB", "1MiB", "1GiB")
    }
    assert bytes_by_size["204800"] == bytes_by_size["200KiB"] < bytes_by_size["1MiB"]
    assert bytes_by_size["1MiB"] <= bytes_by_size["1GiB"]


def test_a_terminal_sees_bars_while_loading(folder: Path) -> None:
    main_side, child_side = pty.openpty()
    child = subprocess.Popen(
        [*CHILD, "run", str(folder), "a", "--max-tokens", "1", "--json"],
        stdout=subprocess.PIPE,
        stderr=child_side,
        env={**child_environment(), "TERM": "xterm"},
    )
    os.close(child_side)
    shown = b""
    # Reading a terminal whose other side has gone ends with an error rather than with an end.
    with contextlib.suppress(OSError):
        while piece := os.read(main_side, 4096):
            shown += piece
    os.close(main_side)
    stdout, _ = child.communicate()
    assert child.returncode == 0, shown.decode()
    assert b"loading weights" in shown
    assert json.loads(stdout)["finish_reason"] == "length"
