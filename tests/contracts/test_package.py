"""What gets installed: wheel and sdist hold what they should and nothing beside it, and say what they are."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
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
FOR_THE_WHEEL = ("CMakeLists.txt", "LICENSE", "README.md", "csrc", "gemwright", "pyproject.toml")
"""What the build of a wheel reads; the Dockerfile copies just these."""


KERNELS = "gemwright/ops/_kernels" + sysconfig.get_config_var("EXT_SUFFIX")


def build(source: Path, folder: Path, *words: str, **variables: str) -> Path:
    """Build from a folder, by default an sdist and the wheel from it, and return `folder`, where they then lie."""
    command = [sys.executable, "-m", "build", *words, "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def build_here(folder: Path, *words: str) -> Path:
    """Build from the working tree; its kernels are compiled in one place, by one process at a time, and kept there."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(ROOT, folder, *words)


def build_without_compiler(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel where no C++ compiler is to be found."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    command += [f"-Cbuild-dir={folder.parent / 'objects'}", str(ROOT)]
    kept = {name: value for name, value in os.environ.items() if name != "GEMWRIGHT_REQUIRE_KERNELS"}
    kept |= {"CXX": str(folder.parent / "no-compiler"), **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=kept)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    (path,) = build_here(tmp_path_factory.mktemp("wheel"), "--wheel").iterdir()
    assert path.name.startswith(f"gemwright-{PROJECT['version']}-cp3")
    return contents(path)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    (path,) = build_here(tmp_path_factory.mktemp("sdist"), "--sdist").iterdir()
    return sdist_contents(path)


def sdist_contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {entry.name.partition("/")[2]: archive.extractfile(entry) for entry in archive if entry.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def information(wheel: dict[str, bytes], name: str) -> bytes:
    (found,) = (content for path, content in wheel.items() if path.endswith(f".dist-info/{name}"))
    return found


def files_of(*names: str) -> dict[str, bytes]:
    """Return the files of the working tree that are called so, or lie in folders that are."""
    below = [path for name in names for path in [ROOT / name, *(ROOT / name).rglob("*")] if path.is_file()]
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in below if "__pycache__" not in path.parts}


def test_wheel_holds_the_package_with_its_kernels_and_nothing_else(wheel: dict[str, bytes]) -> None:
    packed = {name: content for name, content in wheel.items() if ".dist-info/" not in name}
    assert packed.pop(KERNELS).startswith(b"\x7fELF")
    assert packed.keys() == files_of("gemwright").keys()
    assert packed == files_of("gemwright")
    assert "gemwright/ops/_kernels.pyi" in packed
    assert "gemwright/py.typed" in packed
    for name in PROJECT["license-files"]:
        assert information(wheel, f"licenses/{name}") == (ROOT / name).read_bytes()


@pytest.mark.slow
def test_wheel_can_be_built_from_the_files_that_the_image_gets(wheel: dict[str, bytes], tmp_path: Path) -> None:
    """And it is the same wheel; the image gets no tests of the kernels."""
    for name, content in files_of(*FOR_THE_WHEEL).items():
        if not name.startswith("csrc/tests/"):
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "source" / name).write_bytes(content)
    required = build(tmp_path / "source", tmp_path / "built", "--wheel", GEMWRIGHT_REQUIRE_KERNELS="1")
    (path,) = required.iterdir()
    built = contents(path)
    for made in (KERNELS, f"gemwright-{PROJECT['version']}.dist-info/RECORD"):
        assert built.pop(made)
    assert built == {name: content for name, content in wheel.items() if name in built}
    assert len(wheel) == len(built) + 2


def test_sdist_holds_what_building_and_testing_need(sdist: dict[str, bytes]) -> None:
    wanted = {"Makefile", "constraints.txt", "CHANGELOG.md", "CITATION.cff"}
    assert wanted <= sdist.keys()
    for name, content in files_of(*FOR_THE_WHEEL).items():
        assert sdist[name] == content
    assert {"tests/conftest.py", "csrc/tests/check.hpp", "docs/structure.md", "benchmarks/decode.py"} <= sdist.keys()


def test_sdist_holds_nothing_that_only_lies_in_the_folder(sdist: dict[str, bytes]) -> None:
    tops = {name.partition("/")[0] for name in sdist if name}
    left_out = {
        ".ci",
        ".git",
        ".venv",
        ".venvs",
        ".hypothesis",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        "build",
        "dist",
    }
    assert not tops & left_out
    assert not [name for name in sdist if "__pycache__" in name]


def test_metadata_is_valid_and_complete(wheel: dict[str, bytes]) -> None:
    metadata = Metadata.from_email(information(wheel, "METADATA"), validate=True)
    assert (metadata.name, str(metadata.version)) == ("gemwright", PROJECT["version"])
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == PROJECT["license-files"]
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
    (tag,) = (line for line in information(wheel, "WHEEL").decode().splitlines() if line.startswith("Tag: "))
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert tag.startswith(f"Tag: {version}-{version}-linux_"), "the kernels are built for one Python and one system"


def test_without_a_compiler_the_wheel_is_the_python_alone_and_says_so(tmp_path: Path) -> None:
    done = build_without_compiler(tmp_path / "built")
    assert done.returncode == 0, done.stderr
    assert "The native kernels could not be built, so Gemwright was installed without them." in done.stdout
    assert "apt-get install g++" in done.stdout
    (path,) = (tmp_path / "built").iterdir()
    assert path.name == f"gemwright-{PROJECT['version']}-py3-none-any.whl"
    packed = {name: content for name, content in contents(path).items() if ".dist-info/" not in name}
    assert packed == files_of("gemwright")


def test_without_a_compiler_nothing_is_built_where_the_kernels_are_required(tmp_path: Path) -> None:
    done = build_without_compiler(tmp_path / "built", GEMWRIGHT_REQUIRE_KERNELS="1")
    assert done.returncode != 0
    assert "apt-get install g++" in done.stdout
    assert not list((tmp_path / "built").glob("*.whl"))
