"""`gemwright pull`: bring a model of the hub into the local cache, or up to date."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.options import SectionCommand, output_options, revision_option, unknown_keys_option

if TYPE_CHECKING:
    from gemwright.loading.hub import Pulled


@click.command(
    cls=SectionCommand,
    short_help="Fetch a model from the hub.",
    epilog="""\b
Examples:
  gemwright pull google/gemma-3-1b-it
  gemwright pull ggml-org/gemma-3-1b-it-GGUF:Q4_K_M
  gemwright pull google/gemma-3-1b-it@main --json""",
)
@click.argument("model", shell_complete=complete_model)
@revision_option
@unknown_keys_option
@output_options
def pull(model: str, **values: Any) -> None:
    """Fetch MODEL from the hub into the local cache, or what is new of it; what is there is not fetched again.

    MODEL is owner/name; owner/name:Q4_K_M picks one of several GGUF files, @REVISION at the end a branch, a tag or a
    commit. Only what Gemwright reads is fetched, and a model that it cannot run is refused before its weights are.
    Broken off, the same command goes on where it stopped.

    The cache is that of the huggingface_hub library (HF_HOME, HF_HUB_CACHE). A gated or private model takes a token:
    HF_TOKEN, or hf auth login. HF_ENDPOINT names another hub.
    """
    from gemwright.cli.load import progress_bar
    from gemwright.cli.run import write_json
    from gemwright.errors import RequestError
    from gemwright.loading.resolve import local_path_or_name

    name = local_path_or_name(model, values["revision"])
    if isinstance(name, Path):
        raise RequestError("this is a path on this machine", value=name, remedy="name a model of the hub, owner/name")
    from gemwright.loading.hub import pull as fetch

    with progress_bar(f"fetching {name}", in_bytes=True) as progress:
        pulled = fetch(name, progress=progress, allow_unknown_config_keys=values["allow_unknown_config_keys"])
    if values["json"]:
        write_json(to_json(pulled))
    else:
        print(closing_line(pulled))


def to_json(pulled: Pulled) -> dict[str, Any]:
    """Return what the verb prints with --json."""
    fields = dataclasses.asdict(pulled)
    name = fields.pop("name")
    return {"model": pulled.name.model, **name, **fields, "path": str(pulled.path)}


def closing_line(pulled: Pulled) -> str:
    """Return the one line that the verb ends with."""
    from gemwright.errors import show_bytes

    fetched = "nothing new to fetch"
    if pulled.fetched_bytes:
        speed = show_bytes(round(pulled.fetched_bytes / max(pulled.seconds, 1e-6)))
        fetched = f"{show_bytes(pulled.fetched_bytes)} fetched in {pulled.seconds:.1f} s ({speed}/s)"
    files = f"{len(pulled.files)} file{'s' if len(pulled.files) > 1 else ''}"
    return f"{pulled.name}: {files}, {show_bytes(pulled.total_bytes)}, {fetched}; {pulled.path}"
