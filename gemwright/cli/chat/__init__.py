"""`gemwright chat`: a conversation in the terminal."""

from __future__ import annotations

from typing import Any

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    SAMPLING_NAMES,
    SectionCommand,
    backend_options,
    batch_options,
    chat_options,
    debug_option,
    dtype_option,
    engine_options,
    given,
    model_options,
    option,
    sampling_options,
)

NOT_FOR_CHAT = ("n", "logprobs", "prompt_logprobs")
"""Sampling flags that make no sense where one answer is shown as text."""


@click.command(
    cls=SectionCommand,
    epilog="""\b
Examples:
  gemwright chat
  gemwright chat google/gemma-3-1b-it --system "Answer in one sentence."
  gemwright chat ./gemma-4-E2B-it --think --max-model-len 8192

\b
In the chat, /help lists the commands.""",
)
@click.argument("model_word", required=False, metavar="[MODEL]", shell_complete=complete_model)
@chat_options
@option("Chat", "--fold", "Show thoughts as one line.", is_flag=True)
@option("Chat", "--load", "Go on with a conversation that /save wrote.", type=click.Path(dir_okay=False))
@option("Chat", "--no-history", "Do not keep what is typed for the arrow keys of later chats.", is_flag=True)
@model_options
@sampling_options
@dtype_option
@backend_options
@batch_options
@debug_option
def chat(model_word: str | None, **values: Any) -> None:
    """Talk with a model.

    MODEL is a hub id, a folder with config.json and safetensors, or a .gguf file; left out, it is Gemma 3 270M, a base
    model, which continues what is typed instead of answering it. Answers go to stdout.

    An answer may fill what the context has room for, unless --max-tokens says less. --max-num-seqs is 1 if left out,
    since one answer is made at a time.
    """
    from gemwright.cli.asked import choose_model
    from gemwright.cli.chat.commands import COMMANDS
    from gemwright.cli.chat.keyboard import open_keyboard
    from gemwright.cli.chat.screen import Screen
    from gemwright.cli.load import load_model
    from gemwright.cli.summary import note_lines
    from gemwright.engine.request import SamplingParams
    from gemwright.errors import UnsupportedError

    for name in NOT_FOR_CHAT:
        if values[name] is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UnsupportedError(f"{flag} is not for chats", value=values[name], remedy="use gemwright run")
    sampling = given(values, SAMPLING_NAMES)
    SamplingParams(**sampling)
    model = choose_model(model_word, click.get_current_context())
    llm = load_model(
        model,
        revision=values["revision"],
        offline=values["offline"],
        chat_template=values["chat_template"],
        must_chat=values["system"] is not None or bool(values["think"]),
        options={"max_num_seqs": 1, **engine_options(values)},
    )
    from gemwright.cli.chat.session import Session

    screen = Screen()
    screen.folds_thoughts = values["fold"]
    session = Session(llm, screen, sampling, system=values["system"], thinking=values["think"])
    llm.sampling_params(**sampling)  # refuses what cannot be, before anything is typed
    if values["load"] is not None:
        from pathlib import Path

        session.load(Path(values["load"]))
    for line in note_lines(llm, is_default_model=model is None):
        screen.note(line)
    screen.note(_greeting(session.has_turns, llm.model))
    keyboard = open_keyboard(list(COMMANDS), keep_history=not values["no_history"])
    session.run(keyboard)
    if not keyboard.is_terminal:  # whoever typed has seen what was refused; a script looks at the exit code
        click.get_current_context().exit(session.exit_code)


def _greeting(has_turns: bool, name: str) -> str:
    if has_turns:
        return f"{name}; /help lists the commands, Ctrl-D leaves"
    return (
        f"{name} is a base model: it continues what you type, and answers nothing. Ctrl-D leaves, /help lists commands"
    )
