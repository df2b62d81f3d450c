"""A source file stays below 400 lines, or docs/structure.md says why it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 400
HEADING = "## Files over 400 lines"


def source_files() -> list[Path]:
    folders = [ROOT / name for name in ("gemwright", "csrc", "tests", "benchmarks", "examples")]
    suffixes = {".py", ".cpp", ".cc", ".c", ".cu", ".h", ".hpp"}
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes)


def reasons(document: str) -> dict[str, str]:
    """Return path -> reason from the section's lines, written "- `path`: reason"."""
    section = document.partition(HEADING)[2].partition("\n## ")[0]
    return dict(re.findall(r"^- `([^`]+)`: (.+)$", section, re.MULTILINE))


def complaints(lengths: dict[str, int], document: str) -> list[str]:
    """Return what is wrong: long files without a reason, and reasons for files that are not long."""
    excused = reasons(document)
    long = {name for name, length in lengths.items() if length > LIMIT}
    unexcused = [f"{name}: {lengths[name]} lines and no reason" for name in sorted(long - excused.keys())]
    return unexcused + [f"{name}: a reason, but it is no longer long" for name in sorted(excused.keys() - long)]


def test_files_are_short_or_excused() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in source_files()}
    assert len(lengths) > 10
    assert not complaints(lengths, (ROOT / "docs" / "structure.md").read_text())


@pytest.mark.parametrize(
    ("lengths", "document", "number"),
    [
        ({"a.py": 400}, "", 0),
        ({"a.py": 401}, "", 1),
        ({"a.py": 401}, f"{HEADING}\n\n- `a.py`: one long table, of no use in halves.\n", 0),
        ({"a.py": 401}, f"{HEADING}\n\n## Other\n\n- `a.py`: not in the section.\n", 1),
        ({"a.py": 12}, f"{HEADING}\n\n- `a.py`: one long table, of no use in halves.\n", 1),
    ],
)
def test_what_counts_as_an_excuse(lengths: dict[str, int], document: str, number: int) -> None:
    assert len(complaints(lengths, document)) == number
