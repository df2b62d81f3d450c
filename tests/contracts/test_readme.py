"""What README leads a newcomer to: the two commands that set things up, a verb for each first wish, names, links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gemwright
from tests.documents import ROOT, blocks

README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def programs() -> list[list[str]]:
    return [words for block in blocks(README) for command in block.commands() for words in command.programs()]


def test_the_two_commands_are_shown() -> None:
    assert ["make", "demo"] in programs()
    assert ["make", "test"] in programs()


def test_a_completion_a_chat_a_listed_model_and_a_report_of_the_machine_are_shown() -> None:
    shown = [words[1] for words in programs() if Path(words[0]).name == "gemwright"]
    assert shown[:4] == ["run", "chat", "list", "doctor"]


def test_python_names_exist() -> None:
    names = [
        alias.name
        for block in blocks(README)
        if block.language == "python"
        for node in ast.walk(ast.parse(block.text))
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
