"""Release numbers of other engines, to compare: "0.9" is below "0.20.1"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gemwright.errors import UnsupportedError

Version = tuple[int, int, int]
NEWEST: Final[Version] = (1 << 30, 0, 0)
"""Above all releases: what is planned for where no version is named."""
NEWEST_KNOWN: Final[Mapping[str, Version]] = {"vLLM": (0, 33, 0), "Ollama": (0, 33, 0)}
"""The newest releases whose rules were read."""

# vLLM 0.8 brought the engine (V1) whose pages are planned here, and Gemma 3; 0.19 brought Gemma 4 (release notes).
# Ollama: gemma4 is answered with "requires a newer version" before 0.20 (ollama/ollama, issue 15222).
_FIRST: Final[Mapping[str, Mapping[str, Version]]] = {
    "vLLM": {"gemma2": (0, 8, 0), "gemma3": (0, 8, 0), "gemma4": (0, 19, 0)},
    "Ollama": {"gemma2": (0, 1, 47), "gemma3": (0, 6, 0), "gemma4": (0, 20, 0)},
}

_NEWEST_NAMES: Final = frozenset({"main", "latest", "nightly"})
_VERSION: Final = re.compile(
    r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:[.-]?(?:rc|dev|post)\d*)?(?:\+[\w.]+)?", re.ASCII
)


def parse_version(text: str | None, engine: str) -> Version:
    """Return a version; None, "main", "latest" and "nightly" are the newest known, a candidate is its release.

    Raises UnsupportedError for what is no version.
    """
    if text is None or text.strip().lower() in _NEWEST_NAMES:
        return NEWEST
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise UnsupportedError(
            f"not a version of {engine}",
            value=text,
            limit='such as "0.26.0", or "main"',
            remedy="change --engine-version, or leave it out for the newest known",
        )
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch or 0)


def check_version(version: Version, engine: str, family: str) -> list[str]:
    """Return a note where a version is newer than all whose rules are known; else nothing.

    Raises UnsupportedError for a version before the first that runs the family by rules that are known.
    """
    first = _FIRST[engine][family]
    if version < first:
        raise too_old(engine, ".".join(map(str, version)), family, f"from {'.'.join(map(str, first))} on")
    known = NEWEST_KNOWN[engine]
    if version == NEWEST or version[:2] <= known[:2]:
        return []
    names = [".".join(map(str, one[:2])) for one in (known, version)]
    return [f"the newest {engine} whose rules are known is {names[0]}: {names[1]} may size its memory otherwise"]


def too_old(engine: str, version: str, family: str, limit: str) -> UnsupportedError:
    """Return the error for a version of an engine from before a family; the caller raises it."""
    return UnsupportedError(
        f"no {engine} of this version runs Gemma {family[-1]} by rules that are known",
        value=version,
        limit=limit,
        remedy="name a newer --engine-version, or leave it out for the newest known",
    )
