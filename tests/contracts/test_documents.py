"""Every command that a document shows could be typed: verbs and flags are parsed by the program's own parser.

tests/end_to_end/test_documents.py then runs them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from gemwright.cli.options import Settings
from gemwright.cli.program import program
from tests.documents import DOCUMENTS, ROOT, Command, blocks, is_ours, is_pattern, simple_commands, spans

LANGUAGES = {"bash", "console", "python", "json", "jsonl", "yaml", "text"}
"""bash and console hold commands; what a program prints stands in console blocks, or in text blocks."""

OTHER_PROGRAMS = {
    "cat",
    "cd",
    "curl",
    "docker",
    "echo",
    "eval",
    "git",
    "head",
    "make",
    "mkdir",
    "pip",
    "python",
    "source",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def typed() -> list[Command]:
    """Return every command in the fenced blocks of all documents."""
    return [command for path in DOCUMENTS for block in blocks(path) for command in block.commands()]


def calls() -> list[tuple[str, tuple[str, ...]]]:
    """Return (place, words after the program's name) of all that is ours and could be typed, inline code included."""
    named = [
        *typed(),
        *(span for path in DOCUMENTS for span in spans(path) if is_ours(span) and not is_pattern(span.text)),
    ]
    return [
        (command.where, tuple(words[1:]))
        for command in named
        for words in command.programs()
        if Path(words[0]).name == "gemwright"
    ]


def parse(words: tuple[str, ...]) -> None:
    """Let the program's own parser read the words, without running anything; raises click.UsageError."""
    with program.make_context("gemwright", list(words), obj=Settings()) as context:
        name, command, rest = program.resolve_command(context, list(words))
        assert command is not None
        command.make_context(name, rest, parent=context).close()


def flags() -> set[str]:
    """Return the flags of all verbs, and the program's own."""
    commands = [program, *program.commands.values()]
    found = {
        flag
        for command in commands
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    return {flag for flag in found if flag.startswith("-")} | {"--help", "-h"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_fences_are_closed_and_say_what_they_hold(path: Path) -> None:
    found = blocks(path)
    assert path.read_text().count("```") == 2 * len(found)
    assert not [f"{block.where}: {block.language!r}" for block in found if block.language not in LANGUAGES]


def test_no_command_hides_in_another_block() -> None:
    others = [block for path in DOCUMENTS for block in blocks(path) if block.language not in ("bash", "console")]
    assert not [block.where for block in others if re.search(r"^\s*(\$ |gemwright |make )", block.text, re.M)]


@pytest.mark.parametrize(
    ("where", "words"), calls(), ids=lambda part: part if isinstance(part, str) else shlex.join(part)
)
def test_our_commands_parse(where: str, words: tuple[str, ...]) -> None:
    try:
        parse(words)
    except click.exceptions.Exit:
        return  # after --help and --version
    except click.UsageError as error:
        pytest.fail(f"{where}: {error.format_message()}")


@pytest.mark.parametrize("words", [("run", "x", "--no-such-flag"), ("no-such-verb",), ("run", "--max-tokens", "many")])
def test_a_wrong_command_is_seen(words: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        parse(words)


def test_patterns_of_commands_name_verbs_and_flags_that_exist() -> None:
    patterns = [span for path in DOCUMENTS for span in spans(path) if is_ours(span) and is_pattern(span.text)]
    wrong = []
    for pattern in patterns:
        words = pattern.text.split()[1:]
        verbs = set(words[0].split("|")) - program.commands.keys() - flags()
        unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", pattern.text)) - flags()
        wrong += [f"{pattern.where}: {name}" for name in sorted(verbs | unknown)]
    assert not wrong


def test_flags_and_variables_in_our_column_exist() -> None:
    named = [span for path in DOCUMENTS for span in spans(path) if span.is_side_by_side]
    variables = {
        parameter.envvar
        for command in program.commands.values()
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.envvar
    }
    wrong = [
        span for span in named if re.match(r"-\S", span.text) and span.text.split()[0].partition("=")[0] not in flags()
    ]
    wrong += [
        span
        for span in named
        if re.match(r"GEMWRIGHT_\w+$", span.text) and span.text not in variables | {"GEMWRIGHT_CACHE"}
    ]
    assert not [f"{span.where}: {span.text}" for span in wrong]


def test_other_programs_are_few_and_known() -> None:
    used = {words[0]: command.where for command in typed() for words in command.programs()}
    ours = {".venv/bin/gemwright", "gemwright", ".ci/run"}
    assert {name: where for name, where in used.items() if name not in OTHER_PROGRAMS | ours} == {}
    assert (ROOT / ".ci" / "run").exists()


def test_make_targets_exist() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for command in typed():
        for words in command.programs():
            if words[0] == "make":
                asked = ["make", "--dry-run", *words[1:]]
                done = subprocess.run(asked, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{command.where}: {done.stderr}"


def in_containers() -> list[tuple[str, list[str]]]:
    """Return (verb, words) of every "docker run" and "docker compose run", in documents and in the files themselves."""
    texts = [command.text for command in typed()]
    for name in ("Dockerfile", "compose.yaml"):
        texts += re.findall(r"^#.*?(docker (?:compose )?run .*)$", (ROOT / name).read_text(), re.M)
    found = []
    for words in (
        words for text in texts for words in simple_commands(text) if words[0] == "docker" and "run" in words
    ):
        if words[1] == "compose":
            verb, *rest = [word for word in words[3:] if word != "--rm"]
        else:
            verb, *rest = words[words.index("gemwright", 3) + 1 :]
        found.append((verb, rest))
    return found


def test_commands_in_containers_parse_and_name_a_service() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    found = in_containers()
    assert len(found) >= 3
    for verb, rest in found:
        assert verb in services
        parse((verb, *rest))


def test_extras_that_pip_is_told_exist() -> None:
    named = [*typed(), *(span for path in DOCUMENTS for span in spans(path))]
    asked = [
        extra
        for command in named
        for group in re.findall(r"(?:gemwright|\.)\[([\w,]+)\]", command.text)
        for extra in group.split(",")
    ]
    assert asked
    assert set(asked) <= set(PROJECT["optional-dependencies"])
