"""What gets installed: wheel and sdist hold what they should and nothing beside it, and say what they are."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_THE_WHEEL = ("LICENSE", "README.md", "pyproject.toml", "gemwright")
"""What the build of a wheel reads; the Dockerfile copies just these."""


def build(source: Path, folder: Path, *kinds: str) -> Path:
    """Build and return the one file that lies in the folder then, the wheel first."""
    command = [sys.executable, "-m", "build", *kinds, "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the working tree, and the wheel that was built from that sdist."""
    return build(ROOT, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> dict[str, bytes]:
    (path,) = built.glob("gemwright-*-py3-none-any.whl")
    return contents(path)


@pytest.fixture(scope="module")
def sdist(built: Path) -> set[str]:
    (path,) = built.glob("gemwright-*.tar.gz")
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def information(wheel: dict[str, bytes], name: str) -> bytes:
    (found,) = (content for path, content in wheel.items() if path.endswith(f".dist-info/{name}"))
    return found


def package_files() -> dict[str, bytes]:
    files = [path for path in (ROOT / "gemwright").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in files}


def test_wheel_from_the_sdist_holds_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    packed = {name: content for name, content in wheel.items() if ".dist-info/" not in name}
    assert packed.keys() == package_files().keys()
    assert packed == package_files()
    assert "gemwright/py.typed" in packed
    assert information(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_wheel_can_be_built_from_the_files_that_the_image_gets(wheel: dict[str, bytes], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in FOR_THE_WHEEL:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    (path,) = build(source, tmp_path / "built", "--wheel").iterdir()
    assert contents(path) == wheel


def test_sdist_holds_what_building_and_testing_need(sdist: set[str]) -> None:
    wanted = {"Makefile", "constraints.txt", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    assert wanted <= sdist
    assert package_files().keys() <= sdist
    assert {"tests/conftest.py", "docs/structure.md", "benchmarks/decode.py"} <= sdist


def test_sdist_holds_nothing_that_only_lies_in_the_folder(sdist: set[str]) -> None:
    tops = {name.partition("/")[0] for name in sdist if name}
    left_out = {".ci", ".git", ".venv", ".venvs", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "dist"}
    assert not tops & left_out
    assert not [name for name in sdist if "__pycache__" in name]


def test_metadata_is_valid_and_complete(wheel: dict[str, bytes]) -> None:
    metadata = Metadata.from_email(information(wheel, "METADATA"), validate=True)
    assert (metadata.name, str(metadata.version)) == ("gemwright", PROJECT["version"])
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE"]
    assert set(metadata.provides_extra or []) == set(PROJECT["optional-dependencies"])
    assert metadata.summary == PROJECT["description"]
    assert str(metadata.requires_python) == PROJECT["requires-python"]


def test_readme_is_the_description_and_renders(wheel: dict[str, bytes]) -> None:
    message = BytesParser().parsebytes(information(wheel, "METADATA"))
    assert message["Description-Content-Type"] == "text/markdown"
    text = message.get_payload(decode=True).decode()
    assert text.strip() == (ROOT / "README.md").read_text().strip()
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert html.startswith("<h1>Gemwright</h1>")
    assert "```" not in html, "a fence is not closed"


def test_entry_point_and_tags(wheel: dict[str, bytes]) -> None:
    assert information(wheel, "entry_points.txt").decode().split() == [
        "[console_scripts]",
        "gemwright",
        "=",
        "gemwright.cli:main",
    ]
    assert "Tag: py3-none-any" in information(wheel, "WHEEL").decode().splitlines()
