"""docs/licenses.md is true: every dependency with its version and license, and none whose license nobody looked at."""

from __future__ import annotations

import re
from importlib.metadata import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.write_licenses import ALLOWED_NOTED, DOCUMENT, NOTED, complaints, document, project

ROOT = Path(__file__).parents[2]


def pinned() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    return {str(canonicalize_name(name)): version for name, version in (line.split("==") for line in lines)}


def listed() -> dict[str, str]:
    rows = re.findall(r"^\| ([a-z0-9-]+) \| ([0-9][^ |]*) \|", DOCUMENT.read_text(), re.M)
    assert len(rows) == len(dict(rows)) > 60
    return dict(rows)


def test_the_page_is_what_the_installed_packages_say() -> None:
    assert DOCUMENT.read_text() == document(), "write it anew: python -m docs.write_licenses"


def test_it_lists_what_the_constraints_pin_and_nothing_else() -> None:
    assert listed() == pinned()


def test_it_lists_every_requirement_of_the_project() -> None:
    asked = {str(canonicalize_name(Requirement(line).name)) for lines in project().values() for line in lines}
    assert asked - {"gemwright"} <= listed().keys()


def test_what_is_compiled_into_the_kernels_brings_its_license() -> None:
    shipped = (ROOT / "csrc" / "licenses.txt").read_text()
    (license,) = (path.locate() for path in files("nanobind") or [] if path.name == "LICENSE")
    assert Path(str(license)).read_text().strip() in shipped
    (source,) = (path.locate() for path in files("nanobind") or [] if path.name == "robin_map.h")
    comment = Path(str(source)).read_text().partition("*/")[0]
    words = comment.removeprefix("/").replace("*", " ").split()
    assert "MIT" in words
    assert " ".join(words) in " ".join(shipped.split())


def test_no_exception_is_left_over() -> None:
    assert ALLOWED_NOTED.keys() <= listed().keys()
    assert set(ALLOWED_NOTED.values()) == NOTED.keys()


@pytest.mark.parametrize(
    ("name", "license", "number"),
    [
        ("one", "MIT", 0),
        ("one", "(MIT OR Apache-2.0) AND BSD-3-Clause", 0),
        ("one", "unknown", 1),
        ("one", "AGPL-3.0", 1),
        ("one", "MIT AND GPL-3.0", 1),
        ("one", "MPL-2.0", 1),
        ("certifi", "MPL-2.0", 0),
        ("certifi", "MPL-2.0 AND GPL-3.0", 1),
    ],
)
def test_what_is_complained_about(name: str, license: str, number: int) -> None:
    assert len(complaints(name, license)) == number
