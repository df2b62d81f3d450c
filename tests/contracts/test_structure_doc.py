"""docs/structure.md names only what exists, and leaves out no package folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gemwright"
DOCUMENT = ROOT / "docs" / "structure.md"
SUFFIXES = (".py", ".md", ".toml", ".txt", ".cpp", ".h", ".sh")


def paths_named(document: str) -> list[str]:
    """Return the paths in backticks: what has a slash, or a source or document suffix, and no space."""
    spans = re.findall(r"`([^`\n]+)`", document)
    paths = [span for span in spans if ("/" in span or span.endswith(SUFFIXES)) and not re.search(r"[\s<>*(){}]", span)]
    return sorted(set(paths))


def exists(path: str) -> bool:
    """Paths are given from the repository's root, or from the package folder."""
    return (ROOT / path).exists() or (PACKAGE / path).exists()


def test_every_path_named_exists() -> None:
    paths = paths_named(DOCUMENT.read_text())
    assert len(paths) > 10
    assert not [path for path in paths if not exists(path)]


def test_every_package_folder_is_named() -> None:
    document = DOCUMENT.read_text()
    folders = sorted(path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py"))
    names = [str(folder) for folder in folders if folder != Path()]
    assert not [name for name in names if f"{name}/`" not in document]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("`spec/weights.py` and `tests/`", ["spec/weights.py", "tests/"]),
        ("`Makefile`, `make test` and `ModelSpec` are no paths", []),
        ("`README.md`", ["README.md"]),
        ("`gemwright run MODEL/x`", []),
    ],
)
def test_what_counts_as_a_path(text: str, paths: list[str]) -> None:
    assert paths_named(text) == paths
