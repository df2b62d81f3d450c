"""How a model of the hub is written: owner/name, then :QUANTIZATION for a GGUF file, then @REVISION.

Refuses to know what lies there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemwright.errors import RequestError

DEFAULT_REVISION = "main"
SPELLING = "owner/name, owner/name:Q4_K_M for one of several GGUF files, @REVISION at the end for another revision"

_LONGEST_NAME = 96
_SPELLED = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?::(?P<quantization>[\w.-]+))?(?:@(?P<revision>[\w./+-]+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class HubName:
    """A model of the hub: a repository, a revision of it and, where it holds GGUF files, which of them."""

    repository: str
    quantization: str | None = None
    revision: str = DEFAULT_REVISION

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.model}{revision}"

    @property
    def model(self) -> str:
        """The name without its revision."""
        return self.repository if self.quantization is None else f"{self.repository}:{self.quantization}"


def is_hub_name(text: str) -> bool:
    """Whether `text` is spelled as a model of the hub."""
    return _SPELLED.fullmatch(text) is not None and not text.endswith(".gguf")


def parse_hub_name(text: str, revision: str | None = None) -> HubName | None:
    """Return what `text` names, at `revision` where it names none itself; None where no hub would take the name.

    Raises RequestError for two revisions.
    """
    match = _SPELLED.fullmatch(text)
    if match is None or text.endswith(".gguf"):
        return None
    named = match["revision"]
    if named is not None and revision is not None and named != revision:
        raise RequestError("two revisions are named", value=f"{named} and {revision}", remedy="name one")
    found = named or revision or DEFAULT_REVISION
    if ".." in found or found.startswith("/") or "\0" in found:
        raise RequestError("no revision can be called so", value=found, limit="a branch, a tag or a commit")
    if _refuses(match["repository"]):
        return None
    return HubName(match["repository"], match["quantization"], found)


def _refuses(repository: str) -> bool:
    """Whether the hub gives no repository such a name."""
    parts = repository.split("/")
    has_bad_end = any(part[-1] in "-." for part in parts) or repository.endswith(".git")
    return has_bad_end or "--" in repository or ".." in repository or len(repository) > _LONGEST_NAME
