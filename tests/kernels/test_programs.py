"""The programs that hold matrix products, elementwise kernels and attention to sums in double, and to the row law."""

from __future__ import annotations

import subprocess

import pytest

from tests.kernels.conftest import Build

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["test_linear", "test_rows", "test_attention"])
def test_program(build: Build, name: str) -> None:
    done = subprocess.run([build(name)], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
