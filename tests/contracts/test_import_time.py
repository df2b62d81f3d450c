"""Starting is cheap: what `import gemwright` and `gemwright --help` load and cost, and that torch is optional."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gemwright"
HELP = "import sys; sys.argv = ['gemwright', '--help']; from gemwright.cli import main; sys.exit(main())"
HEAVY = ("torch", "transformers", "gguf", "sentencepiece", "tokenizers", "huggingface_hub", "jinja2", "numpy")

# Put in front of a program, it makes the named packages look as if they were not installed.
BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (hidden by the test)", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def cpu_seconds(program: str, runs: int = 7) -> float:
    """Return the CPU time, user and system, of a Python child that runs the program: the least of several runs."""
    least = float("inf")
    for _ in range(runs):
        child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        least = min(least, usage.ru_utime + usage.ru_stime)
    return least


def loaded_by(program: str) -> set[str]:
    """Return which of the heavy packages a program has loaded when it ends."""
    at_exit = f"atexit.register(lambda: print(*({set(HEAVY)!r} & sys.modules.keys()), file=sys.stderr))"
    done = run(f"import atexit, sys\n{at_exit}\n{program}")
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_import_gemwright_loads_nothing_heavy() -> None:
    assert loaded_by("import gemwright") == set()


def test_help_loads_nothing_heavy() -> None:
    assert loaded_by(HELP) == set()


def test_import_gemwright_takes_little_time() -> None:
    assert cpu_seconds("import gemwright") < 0.1


def test_help_takes_under_three_tenths_of_a_second() -> None:
    assert cpu_seconds(HELP) < 0.3


def test_public_names_resolve() -> None:
    done = run("import gemwright\nfor name in gemwright.__all__: getattr(gemwright, name)")
    assert done.returncode == 0, done.stderr


def imports_at_top(path: Path, package: str) -> bool:
    """Return whether the module imports the package outside any function, and so needs it to be imported itself."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(name.partition(".")[0] == package for name in names):
            return True
        waiting.extend(ast.iter_child_nodes(node))
    return False


def modules_without(package: str, rooms: tuple[str, ...]) -> list[str]:
    """Return the modules that must import where the package is absent: all but those in `rooms` that need it."""
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in rooms and imports_at_top(path, package):
            continue
        names.append(".".join(["gemwright", *(parts[:-1] if parts[-1] == "__init__" else parts)]))
    return names


@pytest.mark.parametrize(("package", "rooms"), [("torch", ("ops", "verify")), ("transformers", ("verify",))])
def test_every_other_module_imports_where_it_is_not_installed(package: str, rooms: tuple[str, ...]) -> None:
    hidden = {package, "transformers", "accelerate"}
    modules = modules_without(package, rooms)
    assert len(modules) > 10
    done = run(BLOCK.format(names=hidden) + "\n".join(f"import {name}" for name in modules))
    assert done.returncode == 0, done.stderr
