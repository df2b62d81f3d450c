"""`gemwright agent`: a task, tools, and a server; thinks, calls, observes and answers."""

from __future__ import annotations

import json
import sys
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
    from gemwright.errors import CheckpointError

    names = {
        "max_rounds": "max_rounds",
        "max_tokens": "max_tokens",
        "token_budget": "token_budget",
        "timeout": "timeout_s",
        "tool_timeout": "tool_timeout_s",
    }
    limits = Limits(**{names[name]: value for name, value in given(values, tuple(names)).items()})
    runner = Agent(
        [load_tool(spelled) for spelled in values["tool"]],
        base_url=values["base_url"] or DEFAULT_URL,
        model=values["model"],
        api_key=values["api_key"],
        system=values["system"],
        thinking=values["think"],
        limits=limits,
        on_step=None if values["json"] else _show,
    )
    found = runner.run(task)
    if values["transcript"] is not None:
        try:
            Path(values["transcript"]).write_text("\n".join(found.lines()) + "\n", encoding="utf-8")
        except OSError as error:
            raise CheckpointError(
                "the transcript cannot be written", value=f"{values['transcript']}: {error.strerror}"
            ) from error
    if values["json"]:
        print(json.dumps({**found.summary(), "steps": [step.to_dict() for step in found.steps]}, ensure_ascii=False))
    if found.ending != "answered":
        raise SystemExit(1)


def _show(step: Step) -> None:
    if step.kind == "answer":
        print(step.text, flush=True)
    elif step.kind == "call":
        print(f"call: {step.tool}({step.text})", file=sys.stderr)
    elif step.kind != "task":
        print(f"{step.kind}: {step.text}", file=sys.stderr)
