"""`gemwright completion`: what a shell runs to complete verbs, flags and models.

It knows where the hub's library keeps models, and nothing of what is in them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

if TYPE_CHECKING:
    from gemwright.cli.options import Settings

PROGRAM = "gemwright"
VARIABLE = "_GEMWRIGHT_COMPLETE"
"""Set by a shell that wants completions; the name is click's."""

SHELLS = ("bash", "zsh", "fish")


@click.command(
    short_help="Print the completion script of a shell.",
    epilog="""\b
Examples:
  bash: echo 'eval "$(gemwright completion bash)"' >> ~/.bashrc
  zsh:  echo 'eval "$(gemwright completion zsh)"' >> ~/.zshrc
  fish: gemwright completion fish > ~/.config/fish/completions/gemwright.fish""",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete verbs, flags and models.

    In zsh the line stands after compinit. A model is completed from the hub cache and from the files here.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells of the choice"
    click.echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source(), nl=False)


def answer_shell(program: click.Command, settings: Settings) -> int | None:
    """Answer a shell that asks for completions and return the exit code; None where no shell asks."""
    instruction = os.environ.get(VARIABLE)
    if not instruction:
        return None
    return shell_complete(program, {"obj": settings}, PROGRAM, VARIABLE, instruction)


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the hub ids in the cache that begin so, and leave files and folders to the shell."""
    # The file comes first, since bash forgets what came before it.
    cached = [CompletionItem(name) for name in cached_hub_ids() if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *cached]


def cached_hub_ids() -> list[str]:
    """Return the ids in the hub's cache, by the names of its folders, which the hub's library makes so.

    That library is not asked: a key press waits for the answer, and its import takes longer than all the rest.
    """
    try:
        names = sorted(path.name for path in hub_cache().glob("models--*--*"))
    except (OSError, RuntimeError):
        return []
    return [name.removeprefix("models--").replace("--", "/", 1) for name in names]


def hub_cache() -> Path:
    """Return the folder of the hub's cache, by the variables that its library reads."""
    environment = os.environ
    shared = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{shared}/huggingface"
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return Path(named or f"{home}/hub").expanduser()
