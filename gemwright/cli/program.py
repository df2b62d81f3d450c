"""The program `gemwright` and its verbs."""

from __future__ import annotations

import click

from gemwright import __version__
from gemwright.cli.agent import agent
from gemwright.cli.batch import batch
from gemwright.cli.bench import bench
from gemwright.cli.chat import chat
from gemwright.cli.completion import completion
from gemwright.cli.doctor import doctor
from gemwright.cli.list_models import list_models
from gemwright.cli.parse import parse
from gemwright.cli.plan import plan
from gemwright.cli.pull import pull
from gemwright.cli.rm import remove
from gemwright.cli.run import run
from gemwright.cli.serve import serve
from gemwright.cli.show import show
from gemwright.cli.verify import verify


class Program(click.Group):
    """The verbs, `ls` being `list` too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb of a name or an alias."""
        return super().get_command(ctx, "list" if cmd_name == "ls" else cmd_name)


@click.group(
    cls=Program,
    epilog="""\b
Example:
  gemwright run "The capital of France is" --max-tokens 16

\b
Every flag of a verb can be set by an environment variable, which its help names.""",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def program() -> None:
    """Run Gemma models: exactly, weighed beforehand, and in plain sight."""


program.add_command(run)
program.add_command(chat)
program.add_command(serve)
program.add_command(plan)
program.add_command(bench)
program.add_command(agent)
program.add_command(batch)
program.add_command(verify)
program.add_command(parse)
program.add_command(pull)
program.add_command(list_models)
program.add_command(show)
program.add_command(remove)
program.add_command(doctor)
program.add_command(completion)
