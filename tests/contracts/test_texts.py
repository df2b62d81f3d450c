"""Nothing in the repository speaks of one machine: no absolute paths of it, no hosts it installs from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("gemwright", "csrc", "tests", "docs", "benchmarks", "examples", ".ci")
SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".cpp", ".h", ".json", ".jsonl", ".yaml", ".yml", ""}

# Written so that the patterns do not match themselves.
FORBIDDEN = re.compile(
    r"(?<![\w.~-])/(?:work|tmp|root|home|opt)/\w"
    r"|\b(?:pypi|pythonhosted|npmjs|debian|crates)\.(?:org|com|io)\b"
    r"|\bshared/(?:design|contracts|reference|data)\b"
)


def text_files() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in found if path.suffix in SUFFIXES)


def matches(text: str) -> list[str]:
    return [f"line {text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in FORBIDDEN.finditer(text)]


def test_no_text_names_a_machine() -> None:
    files = text_files()
    assert len(files) > 30
    found = {str(path.relative_to(ROOT)): matches(path.read_text(errors="replace")) for path in files}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    ("parts", "is_forbidden"),
    [
        (("see /", "tmp/x"), True),
        (("(/", "home/me)"), True),
        (("https://", "pypi", ".org/simple"), True),
        (("../", "shared", "/design.md"), True),
        (("~/work/x", " and src/tmp/x"), False),
        (("a path such as /etc/passwd",), False),
    ],
)
def test_what_is_forbidden(parts: tuple[str, ...], is_forbidden: bool) -> None:
    assert bool(matches("".join(parts))) is is_forbidden
