"""What README tells a newcomer to type exists: make targets, verbs and their flags, Python names, links."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import gemwright

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(*languages: str) -> list[str]:
    """Return README's fenced blocks in the given languages."""
    return [
        text for language, text in re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S) if language in languages
    ]


def commands() -> list[list[str]]:
    """Return the words of each shell command README shows: "$ " before it and comments after it are left off."""
    lines = "\n".join(blocks("bash", "sh", "console")).replace("\\\n", " ").splitlines()
    typed = [line.removeprefix("$ ") for line in lines]
    return [words for words in (shlex.split(line, comments=True) for line in typed) if words]


COMMANDS = commands()
VERB_COMMANDS = [words[1:] for words in COMMANDS if Path(words[0]).name == "gemwright"]


@cache
def help_of(*verb: str) -> str:
    program = (
        f"import sys; sys.argv = ['gemwright', *{verb!r}, '--help']; from gemwright.cli import main; sys.exit(main())"
    )
    environment = {**os.environ, "COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_two_commands_are_shown() -> None:
    assert ["make", "demo"] in COMMANDS
    assert ["make", "test"] in COMMANDS


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    shown = {word for words in COMMANDS if words[0] == "make" for word in words[1:] if "=" not in word}
    assert shown <= targets


@pytest.mark.parametrize("words", VERB_COMMANDS, ids=" ".join)
def test_verbs_and_flags_exist(words: list[str]) -> None:
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    text = help_of() if words[0].startswith("-") else help_of(words[0])
    assert not [flag for flag in flags if not re.search(rf"{flag}\b(?!-)", text)]


def test_the_main_verb_is_shown() -> None:
    assert "run" in {words[0] for words in VERB_COMMANDS}


def test_python_names_exist() -> None:
    names = [
        alias.name
        for text in blocks("python")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "gemwright"
        for alias in node.names
    ]
    assert names
    assert not [name for name in names if not hasattr(gemwright, name)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    inside = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert not [target for target in inside if not (document.parent / target).exists()]
