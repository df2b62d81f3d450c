"""What starts an engine: the words of its command line, and the model as that engine is told it.

Refuses to know what an engine needs: planner/export.py decides that from a plan.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gemwright.errors import RequestError
from gemwright.spec.model_header import ModelHeader

_MAIN: Final = "main"
_NAMELESS: Final = "model"
"""What a file to be put in place is called where the model has no name to go by, such as a folder ".."."""


@dataclass(frozen=True, slots=True)
class Start:
    """The settings that start an engine as it was planned."""

    engine: str
    program: tuple[str, ...]
    """The words before all flags: the program and, where it takes one so, the model."""
    settings: Mapping[str, Any]
    """Flags and their values in their order; True for a switch. Of Ollama the parameters of the Modelfile."""
    notes: tuple[str, ...] = ()
    """What whoever starts it should know, a sentence each."""
    modelfile: tuple[str, ...] = ()
    """Ollama's: the lines that name files."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the program reads."""

    @property
    def command(self) -> str:
        """The command line, as a shell reads it."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        words.append(shlex.join(self.program))
        if not self.modelfile:
            for flag, value in self.settings.items():
                words.append(flag if value is True else shlex.join([flag, str(value)]))
        return " ".join(words)

    def modelfile_lines(self) -> list[str]:
        """Return Ollama's Modelfile; nothing for engines that have none."""
        if not self.modelfile:
            return []
        return [*self.modelfile, *(f"PARAMETER {name} {value}" for name, value in self.settings.items())]

    def lines(self) -> list[str]:
        """Return the lines for people; those that begin with # say why."""
        notes = [f"# {note}" for note in self.notes]
        if not self.modelfile:
            return [*notes, self.command]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return [*notes, "# Modelfile", *self.modelfile_lines(), "# environment of ollama serve", *variables]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        content: dict[str, Any] = {
            "engine": self.engine,
            "command": self.command,
            "settings": dict(self.settings),
            "environment": dict(self.environment),
        }
        if self.modelfile:
            content["modelfile"] = "\n".join(self.modelfile_lines()) + "\n"
        return {**content, "notes": list(self.notes)}


def split_revision(header: ModelHeader) -> tuple[str, str | None]:
    """Return a model's name without its revision, and the revision where it is not the main one; a path has none."""
    if header.origin in ("folder", "file"):
        return header.name, None
    name, _, revision = header.name.partition("@")
    return name, revision if revision not in ("", _MAIN) else None


def served_name(header: ModelHeader) -> tuple[str, str | None]:
    """Return how an engine that reads checkpoints is told the model, and a revision to name beside.

    Raises RequestError for a config that does not lie where a checkpoint's does: it is the model of no engine.
    """
    name, revision = split_revision(header)
    if is_config(header):
        folder, _, file = name.rpartition("/")
        if file != "config.json":
            raise RequestError(
                "a config alone starts no engine",
                value=name,
                limit="a model of the hub, a folder, a .gguf file, or the config.json of a folder with weights",
                remedy="name the model, or leave --emit out",
            )
        name = folder or ("/" if name.startswith("/") else ".")
    return shielded(name), revision


def gguf_file(header: ModelHeader) -> str:
    """Return the model's file; for what is none, the name of one to put in its place."""
    if header.name.endswith(".gguf"):
        return shielded(header.name)
    return f"{stem(header)}.gguf"


def stem(header: ModelHeader) -> str:
    """Return the last part of a model's name, as files of it are called."""
    name = split_revision(header)[0].rstrip("/")
    name = name.rpartition("/")[0] if is_config(header) else name.removesuffix(".gguf")
    last = name.rpartition("/")[2].replace(":", "-").lstrip("-")
    return last if last.strip(".") else _NAMELESS


def is_config(header: ModelHeader) -> bool:
    """Whether the model was named by the file of its config."""
    return header.name.endswith(".json") and header.format == "config" and header.origin == "file"


def shielded(name: str) -> str:
    """Return a name where no flag can be meant by it."""
    return f"./{name}" if name.startswith("-") else name
