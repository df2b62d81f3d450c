"""What the verbs of `bench` share."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

KEY_FLAG = "--api-key"


class Counts(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """Counts with commas between: 512,4096."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the counts, or fail as a usage error."""
        if isinstance(value, tuple):
            return value
        try:
            counts = tuple(int(part) for part in value.split(","))
        except ValueError:
            counts = ()
        if not counts or min(counts) < 1:
            self.fail(f"{value!r} is no list of counts such as 512,4096", param, ctx)
        return counts


def machine_facts() -> dict[str, Any]:
    """Return the machine and versions that a result was measured on."""
    from importlib.metadata import PackageNotFoundError, version

    from gemwright import __version__
    from gemwright.planner.devices import this_machine

    here = this_machine()
    try:
        torch: str | None = version("torch")
    except PackageNotFoundError:
        torch = None
    return {
        "processor": here.processor,
        "num_cores": here.cores.num_allowed,
        "fingerprint": here.fingerprint(),
        "gemwright": __version__,
        "torch": torch,
        "command": shlex.join(["gemwright", *without_keys(sys.argv[1:])]),
    }


def without_keys(words: Sequence[str]) -> list[str]:
    """Return the words of a command with the API key hidden: results are shown to others."""
    found = [f"{KEY_FLAG}=..." if word.startswith(f"{KEY_FLAG}=") else word for word in words]
    return ["..." if place and found[place - 1] == KEY_FLAG else word for place, word in enumerate(found)]


def require_writable(output: str | None, flag: str = "--output") -> None:
    """Raise CheckpointError where a result could not be written, before anything is measured."""
    from gemwright.errors import CheckpointError

    if output is None:
        return
    path = Path(output)
    place = path if path.exists() else path.parent
    if path.is_dir():
        reason = "it is a folder"
    elif not place.exists():
        reason = "its folder does not exist"
    elif not os.access(place, os.W_OK):
        reason = "it may not be written"
    else:
        return
    raise CheckpointError(
        "the result cannot be written", value=f"{output}: {reason}", remedy=f"name another place with {flag}"
    )


def write_result(content: dict[str, Any], output: str | None) -> None:
    """Write a result to a file where one was named. Raises CheckpointError where it cannot be written."""
    from gemwright.errors import CheckpointError

    if output is None:
        return
    try:
        Path(output).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            "the result cannot be written", value=f"{output}: {error.strerror}", remedy="name another place for it"
        ) from error


def make_result_folder(values: dict[str, Any]) -> None:
    """Make the folder of --save-result, before anything is measured. Raises CheckpointError where it cannot be used."""
    from gemwright.errors import CheckpointError

    if not values["save_result"]:
        return
    folder = Path(values["result_dir"] or ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            "the result cannot be written",
            value=f"{folder}: {error.strerror}",
            remedy="name another folder with --result-dir",
        ) from error
    require_writable(str(folder / (values["result_filename"] or "result.json")), "--result-dir")


def save_result(content: dict[str, Any], values: dict[str, Any]) -> Path | None:
    """Write a result where --save-result, --result-dir and --result-filename say and return its path; None where none
    was asked for. Raises CheckpointError where it cannot be written."""
    from datetime import UTC, datetime

    if not values["save_result"]:
        return None
    model = re.sub(r"[^\w.-]+", "_", str(content["model"]).rstrip("/").rpartition("/")[2])
    load = "knee" if "knee" in content else f"concurrency{content['max_concurrency'] or content['peak_concurrency']}"
    name = values["result_filename"] or f"serve-{model}-{load}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path = Path(values["result_dir"] or ".") / name
    write_result(content, str(path))
    return path
