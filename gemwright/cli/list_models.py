"""`gemwright list`: the models on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.options import SectionCommand, option, output_options

if TYPE_CHECKING:
    from gemwright.loading.hub_models import CachedModel

_COLUMNS = ("MODEL", "REVISION", "FORMAT", "FAMILY", "SIZE", "LAST USED", "STATE")
_UNITS = ((86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))
_SHOWN_COMMIT = 12


@click.command(
    "list",
    cls=SectionCommand,
    short_help="Show the models on this machine.",
    epilog="""\b
Examples:
  gemwright list
  gemwright list --json""",
)
@option("List", "--all", "Show models of the cache that cannot be run too, with the reason.", is_flag=True)
@output_options
def list_models(**values: Any) -> None:
    """Show the models of the local hub cache that Gemwright can run, and its default model. Also: gemwright ls.

    A model that is not whole is completed by `run` and `pull`.
    """
    from gemwright.cli.run import write_json
    from gemwright.loading.hub_cache import cache_folder
    from gemwright.loading.hub_models import cached_models

    found, num_others = cached_models()
    runnable = [model for model in found if model.refused is None]
    shown = found if values["all"] else runnable
    num_left_out = num_others + len(found) - len(shown)
    default = _default_model()
    if values["json"]:
        write_json(
            {
                "cache": str(cache_folder()),
                "models": [to_json(model) for model in shown],
                "num_others": num_left_out,
                "default_model": default,
            }
        )
        return
    rows = [_row(model) for model in shown]
    if default["installed"]:
        rows.insert(0, _default_row(default))
    for line in table(rows):
        print(line)
    if not shown:
        print(f"no models in {cache_folder()}; gemwright pull MODEL fetches one")
    if num_left_out:
        hint = "" if values["all"] else "; --all shows the models among them"
        print(f"{num_left_out} more in {cache_folder()} that Gemwright does not run{hint}")


def to_json(model: CachedModel) -> dict[str, Any]:
    """Return the object of one model."""
    used = None if model.last_used is None else datetime.fromtimestamp(model.last_used, UTC).isoformat()
    return {**asdict(model), "path": str(model.path), "last_used": used, "complete": not model.missing}


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows below their headings, columns aligned; nothing for no rows."""
    if not rows:
        return []
    lines = [_COLUMNS, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(_COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _row(model: CachedModel) -> tuple[str, ...]:
    from gemwright.errors import show_bytes

    revision = model.revision if model.revision != model.commit else model.commit[:_SHOWN_COMMIT]
    state = "ready" if not model.missing else f"incomplete: {_some(model.missing)}"
    return (
        model.model,
        revision,
        model.format or "?",
        model.family or "?",
        show_bytes(model.size_bytes),
        "-" if model.last_used is None else show_age(model.last_used, time.time()),
        state if model.refused is None else f"not run: {model.refused}",
    )


def _default_model() -> dict[str, Any]:
    """Return where the default model stands: in its packages, joined, or neither."""
    from gemwright.errors import CheckpointError
    from gemwright.loading.default_model import MODEL_BYTES, MODEL_NAME, cache_folder, terms_path

    joined = cache_folder() / "default-model" / MODEL_NAME
    is_joined = joined.is_file() and joined.stat().st_size == MODEL_BYTES
    try:
        terms_path()
        is_installed = True
    except CheckpointError:
        is_installed = is_joined
    return {
        "file": MODEL_NAME,
        "size_bytes": MODEL_BYTES,
        "installed": is_installed,
        "joined": is_joined,
        "path": str(joined) if is_joined else None,
    }


def _default_row(default: dict[str, Any]) -> tuple[str, ...]:
    from gemwright.errors import show_bytes

    size = show_bytes(default["size_bytes"])
    state = "ready" if default["joined"] else "ready (joined on first use)"
    return ("(default model)", "-", "gguf", "gemma3", size, "-", state)


def _some(names: Sequence[str]) -> str:
    return f"lacks {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def show_age(then: float, now: float) -> str:
    """Return how long ago something was, in its largest whole unit."""
    seconds = max(0.0, now - then)
    for unit, name in _UNITS:
        if seconds >= unit:
            count = int(seconds // unit)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"
