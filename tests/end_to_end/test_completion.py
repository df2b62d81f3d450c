"""Shells complete verbs, flags and models: each shell on this machine is asked, with its own machinery."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from gemwright.cli.completion import SHELLS, cached_hub_ids, hub_cache
from gemwright.cli.program import program
from tests.end_to_end.command_line import CommandLine, child_environment
from tests.programs import write_programs

INSTALLED = [shell for shell in SHELLS if shutil.which(shell)]

# Typed so far -> what stands there after the tab key.
CASES = {
    "gemwright ver": "gemwright verify",
    "gemwright run --max-to": "gemwright run --max-tokens",
    "gemwright run --model goo": "gemwright run --model google/gemma-3-1b-it",
    "gemwright run goo": "gemwright run google/gemma-3-1b-it",
    "gemwright verify ./some-fi": "gemwright verify ./some-file.gguf",
    "gemwright completion z": "gemwright completion zsh",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one model in its hub cache and one file, and the program in `bin`."""
    write_programs(tmp_path / "bin")
    (tmp_path / ".cache/huggingface/hub/models--google--gemma-3-1b-it").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/hub/datasets--google--other").mkdir()
    (tmp_path / "some-file.gguf").touch()
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in child_environment().items() if not name.startswith(("HF_", "XDG_"))}
    return {**kept, "HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "TERM": "dumb", "PS1": ""}


def type_and_tab(home: Path, shell: str, setup: list[str], typed: str) -> str:
    """Return what an interactive shell shows from the moment that `typed` is put in, and the tab key behind it."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(home)
        os.execvpe(shell, setup[:1] + setup[1:2], environment(home))
    try:
        for line in [*setup[2:], "echo rea''dy"]:
            os.write(terminal, f"{line}\n".encode())
        _read_until(terminal, lambda shown: "\nready" in shown)
        os.write(terminal, f"{typed}\t".encode())
        wanted = CASES[typed]
        return _read_until(terminal, lambda shown: wanted in shown)
    finally:
        os.close(terminal)  # hangs the shell up
        os.waitpid(process, 0)


def _read_until(terminal: int, is_enough: Callable[[str], bool], seconds: float = 30.0) -> str:
    shown = ""
    ends_at = time.monotonic() + seconds
    while not is_enough(shown) and time.monotonic() < ends_at:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace").replace("\r", "")
    return shown


def completed(home: Path, shell: str, typed: str) -> str:
    if shell == "bash":
        setup = ["bash", "--norc", 'eval "$(gemwright completion bash)"']
        return type_and_tab(home, shell, setup, typed)
    if shell == "zsh":
        setup = ["zsh", "-f", "autoload -U compinit && compinit -u -D", 'eval "$(gemwright completion zsh)"']
        return type_and_tab(home, shell, setup, typed)
    script = f"gemwright completion fish | source; complete --do-complete '{typed}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    head = typed.rpartition(" ")[0]
    return "\n".join(f"{head} {line.partition(chr(9))[0]}" for line in done.stdout.splitlines()) + done.stderr


def test_every_verb_that_takes_a_model_completes_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(home / ".cache/huggingface/hub"))
    for name, command in program.commands.items():
        context = click.Context(command, info_name=name)
        for argument in command.params:
            if isinstance(argument, click.Argument) and "MODEL" in argument.make_metavar(context):
                found = [item.value for item in argument.shell_complete(context, "google/")]
                assert found == ["google/", "google/gemma-3-1b-it"], name


@pytest.mark.parametrize("shell", INSTALLED)
@pytest.mark.parametrize("typed", CASES)
def test_the_tab_key_completes(home: Path, shell: str, typed: str) -> None:
    assert CASES[typed] in completed(home, shell, typed)


def test_each_script_is_printed_and_names_the_program(gemwright_command: CommandLine) -> None:
    for shell in SHELLS:
        outcome = gemwright_command("completion", shell)
        assert (outcome.code, outcome.stderr) == (0, "")
        assert "_GEMWRIGHT_COMPLETE" in outcome.stdout


def test_another_shell_is_refused(gemwright_command: CommandLine) -> None:
    outcome = gemwright_command("completion", "tcsh")
    assert outcome.code == 2
    assert "'bash', 'zsh', 'fish'" in outcome.stderr


@pytest.fixture
def gemwright_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "/one"},
        {"XDG_CACHE_HOME": "/one", "HF_HOME": "/two"},
        {"HF_HOME": "/two", "HF_HUB_CACHE": "/three"},
        {"HF_HUB_CACHE": "~/four"},
    ],
)
def test_the_cache_is_where_the_hub_library_puts_it(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    program = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert str(hub_cache()) == asked.stdout.strip()


def test_no_cache_is_no_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "nowhere"))
    assert cached_hub_ids() == []
