"""`gemwright agent`: a task, tools, and a server; thinks, calls, observes and answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.options import SectionCommand, given, option, output_options

if TYPE_CHECKING:
    from gemwright.agent import Step


@click.command(
    cls=SectionCommand,
    short_help="Let a served model work with tools.",
    epilog="""\b
Examples:
  gemwright agent "Which files are here?" --tool tools.py:list_files
  gemwright agent "What is 17 * 23?" --tool tools.py:multiply --think --transcript run.jsonl""",
)
@click.argument("task")
@option(
    "Agent",
    "--tool",
    "A function the model may call, module:function or file.py:function; may be given several times (the variable "
    "holds one).",
    multiple=True,
)
@option("Agent", "--system", "The system message.")
@option("Agent", "--think/--no-think", "Let the model think (Gemma 4).", default=None)
@option("Server", "--base-url", "The server; left out, http://127.0.0.1:8000/v1.")
@option("Server", "--model", "The model's name there; left out, the first one it lists.")
@option("Server", "--api-key", "The key that the server asks for.")
@option("Limits", "--max-rounds", "Answers asked of the model; left out, 10.", type=int)
@option("Limits", "--max-tokens", "Tokens of one answer; left out, 2048.", type=int)
@option("Limits", "--token-budget", "Tokens of the whole run; left out, 100000.", type=int)
@option("Limits", "--timeout", "Seconds of the whole run; left out, 600.", type=float)
@option("Limits", "--tool-timeout", "Seconds of one call; left out, 60.", type=float)
@option("Output", "--transcript", "Write every step to this file, one JSON object a line.", type=click.Path())
@output_options
def agent(task: str, **values: Any) -> None:
    """Work on TASK with tools until it is answered or a limit is met.

    The functions run in this process with your rights: give only those you trust. The answer goes to stdout, thoughts,
    calls and observations to stderr. Exit code 1 says that a limit was met before an answer.
    """
    from gemwright.agent import Agent, Limits, load_tool
    from gemwright.agent.loop import DEFAULT_URL

    names = {
        "max_rounds": "max_rounds",
        "max_tokens": "max_tokens",
        "token_budget": "token_budget",
        "timeout": "timeout_s",
        "tool_timeout": "tool_timeout_s",
    }
    limits = Limits(**{names[name]: value for name, value in given(values, tuple(names)).items()})
    tools = [load_tool(spelled) for spelled in values["tool"]]
    with _transcript(values["transcript"]) as write:

        def tell(step: Step) -> None:
            write(step.to_dict())
            if not values["json"]:
                _show(step)

        runner = Agent(
            tools,
            base_url=values["base_url"] or DEFAULT_URL,
            model=values["model"],
            api_key=values["api_key"],
            system=values["system"],
            thinking=values["think"],
            limits=limits,
            on_step=tell,
        )
        found = runner.run(task)
        write(found.summary())
    if values["json"]:
        print(json.dumps({**found.summary(), "steps": [step.to_dict() for step in found.steps]}, ensure_ascii=False))
    if found.ending != "answered":
        raise SystemExit(1)


@contextmanager
def _transcript(name: str | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Give what writes a line of the transcript. A line is in the file once its step has happened, so that a run that
    is interrupted leaves what it did."""
    from gemwright.errors import CheckpointError

    def refusal(error: OSError) -> CheckpointError:
        return CheckpointError(
            "the transcript cannot be written",
            value=f"{name}: {error.strerror}",
            remedy="look at the path, its permissions and the space on its disk",
        )

    if name is None:
        yield lambda content: None
        return
    try:
        # A lone surrogate is written as JSON's own escape.
        file = Path(name).open("w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115  # closed below
    except OSError as error:
        raise refusal(error) from error

    def write(content: dict[str, Any]) -> None:
        try:
            file.write(json.dumps(content, ensure_ascii=False) + "\n")
            file.flush()
        except OSError as error:
            raise refusal(error) from error

    with file:
        yield write


def _show(step: Step) -> None:
    if step.kind == "answer":
        print(step.text, flush=True)
    elif step.kind == "call":
        print(f"call: {step.tool}({step.text})", file=sys.stderr)
    elif step.kind != "task":
        print(f"{step.kind}: {step.text}", file=sys.stderr)
