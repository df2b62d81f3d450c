"""`gemwright batch`: a file of requests in, a file of answers out, in the order finished."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    SectionCommand,
    backend_options,
    batch_options,
    dtype_option,
    engine_options,
    model_options,
    option,
    output_options,
)

if TYPE_CHECKING:
    from gemwright.engine.batch import Answered


@click.command(
    cls=SectionCommand,
    short_help="Answer a file of requests.",
    epilog="""\b
Examples:
  gemwright batch prompts.jsonl answers.jsonl
  gemwright batch ./gemma-3-1b-it prompts.jsonl answers.jsonl --max-num-seqs 64 --resume""",
)
@click.argument("words", nargs=-1, metavar="[MODEL] IN.jsonl OUT.jsonl", shell_complete=complete_model)
@option("Batch", "--resume", "Go on where an earlier run with this OUT stopped.", is_flag=True)
@model_options
@dtype_option
@backend_options
@batch_options
@output_options
@click.pass_context
def batch(context: click.Context, /, words: tuple[str, ...], **values: Any) -> None:
    """Answer every line of IN (- is stdin), many at a time, and write the answers to OUT in the order finished.

    A line holds "id" and one of "prompt", "prompt_token_ids" and "messages"; if wanted "max_tokens", "temperature",
    "top_k", "top_p", "min_p", "seed", "n", "stop", "logprobs" and the other sampling settings of `run`, "ignore_eos",
    "priority" (lower runs first) and "cache_salt". With "messages" may go "tools", "tool_choice",
    "parallel_tool_calls", "enable_thinking", "continue_final_message" and "chat_template_kwargs". A line that cannot
    be served is answered with its error, and the rest go on. OUT must not exist yet, except with --resume: then the
    ids it answers are left out.
    """
    from gemwright.cli.interrupts import hold_interrupts
    from gemwright.cli.load import load_model, progress_bar
    from gemwright.cli.measuring import keep_run, measure_run
    from gemwright.cli.run import write_json
    from gemwright.cli.summary import memory_lines, note_lines
    from gemwright.engine.batch import Batch, encode_output

    is_from_variable = context.get_parameter_source("model") == ParameterSource.ENVIRONMENT
    model, source, target = choose_files(words, model=values["model"], is_from_variable=is_from_variable)
    answered = prepare_target(source, target, resume=values["resume"])
    with open_source(source) as lines:
        llm = load_model(
            model,
            revision=values["revision"],
            offline=values["offline"],
            chat_template=values["chat_template"],
            options=engine_options(values),
        )
        work = Batch(llm, answered=answered, cache_salt=values["cache_salt"])
        with open_target(target) as out, progress_bar("answering") as progress:
            total = count_lines(source) if progress is not None else 0
            for output in work.run(lines):
                # A line that is begun is finished before Ctrl-C is heard.
                with hold_interrupts():
                    out.write(encode_output(output))
                    out.flush()
                if progress is not None:
                    progress(len(answered.ids) + work.num_lines, total)
    summary = work.summary()
    if values["json"]:
        write_json({**summary, "memory": measure_run(llm).to_dict()})
    else:
        print(", ".join(f"{name.removeprefix('num_').replace('_', ' ')} {count}" for name, count in summary.items()))
    closing = [] if values["json"] else ["memory", *memory_lines(llm)]
    for line in closing + note_lines(llm, is_default_model=model is None):
        print(line, file=sys.stderr)
    keep_run(llm)


def choose_files(
    words: Sequence[str], *, model: str | None, is_from_variable: bool
) -> tuple[str | None, Path | None, Path]:
    """Return model, input (None is stdin) and output. Raises RequestError for too few or too many words."""
    from gemwright.errors import RequestError

    if len(words) not in (2, 3):
        raise RequestError("batch takes two files", value=" ".join(words) or None, limit="[MODEL] IN.jsonl OUT.jsonl")
    if len(words) == 3:
        if model is not None and not is_from_variable:
            raise RequestError("two models are named", value=f"{model} and {words[0]}", remedy="name one")
        model = words[0]
    source, target = words[-2:]
    return model, None if source == "-" else Path(source), Path(target)


def prepare_target(source: Path | None, target: Path, *, resume: bool) -> Answered:
    """Return what OUT answers already, having cut off a last line that was never finished.

    Raises RequestError where OUT exists without `resume`, is IN, or was written by something else, CheckpointError
    where it cannot be read or made.
    """
    from gemwright.engine.batch import Answered, read_answered
    from gemwright.errors import CheckpointError, RequestError

    if not target.exists():
        if not target.parent.is_dir():
            raise CheckpointError(f"{target}: its folder does not exist", remedy="make it, or name another output")
        return Answered()
    if not target.is_file() and not target.is_dir():
        return Answered()  # a device or a pipe
    if source is not None and source.exists() and source.samefile(target):
        raise RequestError("input and output are one file", value=target, remedy="name another output")
    if not resume:
        raise RequestError(
            "the output exists", value=target, remedy="--resume goes on with it; or name another, or remove it"
        )
    whole = 0

    def note_length(length: int) -> None:
        nonlocal whole
        whole = length

    try:
        with target.open("r+b") as file:
            answered = read_answered(file, note_length)
            file.truncate(whole)
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be read and written", value=error) from error
    return answered


@contextlib.contextmanager
def open_source(source: Path | None) -> Iterator[IO[bytes]]:
    """Yield the lines of IN. Raises CheckpointError where it cannot be read."""
    from gemwright.errors import CheckpointError

    if source is None:
        yield sys.stdin.buffer
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise CheckpointError(
            f"{source}: cannot be read", value=error.strerror, remedy="look at the path and its permissions"
        ) from error
    with file:
        yield file


def open_target(target: Path) -> IO[bytes]:
    """Open OUT to add lines. Raises CheckpointError where that is not allowed."""
    from gemwright.errors import CheckpointError

    try:
        return target.open("ab")
    except OSError as error:
        raise CheckpointError(
            f"{target}: cannot be written", value=error.strerror, remedy="look at the path and its permissions"
        ) from error


def count_lines(source: Path | None) -> int | None:
    """Return how many lines IN has, None for stdin."""
    if source is None:
        return None
    with source.open("rb") as file:
        return sum(1 for line in file if line.strip())
