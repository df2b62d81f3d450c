"""`gemwright rm`: delete a model from the local hub cache."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.options import SectionCommand, option, output_options


@click.command(
    "rm",
    cls=SectionCommand,
    short_help="Delete a model from the local cache.",
    epilog="""\b
Examples:
  gemwright rm google/gemma-3-1b-it
  gemwright rm ggml-org/gemma-3-1b-it-GGUF:Q4_K_M --yes""",
)
@click.argument("model", shell_complete=complete_model)
@option("Model", "--revision", "Delete this revision alone; left out, all that are here.")
@option("Delete", "--yes", "Do not ask; needed where stdin is no terminal.", is_flag=True, short="-y")
@output_options
def remove(model: str, **values: Any) -> None:
    """Delete MODEL from the local hub cache.

    owner/name means all that is there of it, owner/name@REVISION one revision, owner/name:Q4_K_M one GGUF model. What
    other revisions need is kept. Folders and files outside the cache are never deleted.
    """
    from gemwright.cli.run import write_json
    from gemwright.errors import RequestError, show_bytes
    from gemwright.loading.resolve import local_path_or_name

    name = local_path_or_name(model, values["revision"])
    if isinstance(name, Path):
        raise RequestError(
            "this is a path on this machine, and rm deletes from the hub cache only",
            value=name,
            remedy="delete it yourself, if it is yours",
        )
    from gemwright.loading.hub_remove import plan_removal

    removal = plan_removal(name, all_revisions="@" not in model and values["revision"] is None)
    question = f"delete {removal.what} ({show_bytes(removal.freed_bytes)})?"
    if not values["yes"]:
        if sys.stdin is None or not sys.stdin.isatty():
            raise RequestError("nobody can be asked", value=question, remedy="--yes deletes without asking")
        if not _confirm(question):
            print("nothing was deleted", file=sys.stderr)
            click.get_current_context().exit(1)
    removal.execute()
    if values["json"]:
        paths = [str(path) for path in removal.paths]
        write_json({"model": name.model, "freed_bytes": removal.freed_bytes, "paths": paths})
    else:
        print(f"deleted {removal.what}, {show_bytes(removal.freed_bytes)} freed")


def _confirm(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C, or the end of the input
        raise KeyboardInterrupt from None
