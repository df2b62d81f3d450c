"""The types that mypy reads for the compiled kernels (gemwright/ops/_kernels.pyi) are those of the module itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from gemwright.ops import _kernels

ROOT = Path(__file__).parents[2]
STUB = ast.parse((ROOT / "gemwright" / "ops" / "_kernels.pyi").read_text())

# How the module spells a type, and what the stub calls it.
SPELLINGS = (
    (r"(numpy\.)?ndarray\[dtype=(\w+)[^]]*\]", r"NDArray[numpy.\2]"),
    (r"ndarray\[[^]]*\]", "NDArray[numpy.float32] | NDArray[numpy.uint16]"),
    (r"gemwright\.ops\._kernels\.|collections\.abc\.", ""),
)


def stated(nodes: list[ast.stmt]) -> dict[str, str]:
    """Return each name of the stub with its parameters and result, methods as Class.name."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}": text for name, text in stated(node.body).items()}
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns or ast.Constant(None))}"
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = ast.unparse(node.annotation)
    return found


def signature(value: Any) -> str:
    ((text, *_),) = getattr(value, "fget", value).__nb_signature__
    for spelling, name in SPELLINGS:
        text = re.sub(spelling, name, text)
    return text[text.index("(") :]


def built() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in vars(_kernels).items():
        if name.startswith("__"):
            continue
        if isinstance(value, type):
            members = {key: member for key, member in vars(value).items() if key == "__init__" or key[:2] != "__"}
            found |= {f"{name}.{key}": signature(member) for key, member in members.items()}
        else:
            found[name] = signature(value) if callable(value) else type(value).__name__
    return found


def test_the_stub_says_what_the_module_says_of_itself() -> None:
    assert stated(STUB.body) == built()
    assert len(built()) > 25


def test_every_level_that_runs_here_can_be_had_and_no_other() -> None:
    assert "portable" in _kernels.runnable_levels()
    for level in _kernels.runnable_levels():
        operations = _kernels.Operations(level, False, 1)
        assert (operations.level, operations.num_threads) == (level, 1)
    with pytest.raises(ValueError, match="no such level"):
        _kernels.Operations("abacus", False, 1)
