"""Builds the test programs of csrc/tests with the machine's compiler, each kernel level with its own instructions."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
FLAGS = ("-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-psabi", "-pthread")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
IS_X86 = platform.machine() == "x86_64"

SOURCES: dict[str, tuple[str, ...]] = {
    "matrix.cpp": (),
    "attention_scratch.cpp": (),
    "level_portable.cpp": (),
    **({"level_avx2.cpp": AVX2, "tests/level_wide.cpp": AVX2} if IS_X86 else {}),
}

Build = Callable[[str], Path]
"""Builds one program of csrc/tests and returns where it lies."""


@pytest.fixture(
    scope="session",
    params=[(), ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1")],
    ids=["plain", "sanitized"],
)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("csrc")
    extra: tuple[str, ...] = request.param

    def compile_one(source: str, flags: tuple[str, ...]) -> Path:
        made = folder / (source.replace("/", "_") + ".o")
        # Under sanitizers gcc warns of what is not so, and takes many minutes to optimize.
        strict = () if extra else ("-O1", "-Werror")
        run("g++", *FLAGS, *strict, *flags, *extra, "-c", CSRC / source, "-o", made)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, SOURCES, SOURCES.values()))

    def build_program(name: str) -> Path:
        program = folder / name
        run("g++", *FLAGS, *extra, CSRC / "tests" / f"{name}.cpp", *objects, "-o", program)
        return program

    return build_program


def run(*words: object) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
