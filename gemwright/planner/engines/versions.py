"""Release numbers of other engines, to compare: "0.9" is below "0.20.1"."""

from __future__ import annotations

import re
from typing import Final

from gemwright.errors import UnsupportedError

Version = tuple[int, int, int]
NEWEST: Final[Version] = (1 << 30, 0, 0)
"""Above all releases: what is planned for where no version is named."""

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
