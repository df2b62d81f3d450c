"""`gemwright verify`: our greedy tokens and logits beside transformers'."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    SectionCommand,
    backend_options,
    engine_options,
    found_model_options,
    option,
    output_options,
)

if TYPE_CHECKING:
    from gemwright.verify import Difference, PromptResult, Report


@click.command(
    cls=SectionCommand,
    short_help="Compare tokens and logits with transformers'.",
    epilog="""\b
Examples:
  gemwright verify
  gemwright verify ./gemma-3-1b-it --dtype bfloat16 --max-tokens 64""",
)
@click.argument("word", required=False, metavar="[MODEL]", shell_complete=complete_model)
@found_model_options
@option("Comparison", "--prompts", "File of prompts: text, one a line; or .jsonl, see above.", type=click.Path())
@option("Comparison", "--max-tokens", "Greedy tokens for each prompt; left out, 32.", type=int, default=32)
@option("Engine", "--dtype", "auto, float32 or bfloat16; left out, float32.", default="float32")
@backend_options
@output_options
def verify(word: str | None, **values: Any) -> None:
    """Compare greedy tokens and logits with transformers' on the same file.

    transformers loads MODEL with its own loader and computes with eager attention; it comes with the extra `verify`.
    In float32, tokens must be equal (at a near tie of the reference's own two best, within 1e-4 of the spread of its
    logits, either is right) and no logit may be further off than 1e-4 of the spread. In bfloat16 the rms difference
    may be 1.5 times the one that transformers has to itself with another attention. A difference beyond that ends
    with exit code 1.

    A .jsonl file holds one object a line with "prompt" or "prompt_token_ids", and "id" if wanted.
    """
    from gemwright.cli.asked import choose_model
    from gemwright.cli.interrupts import import_backend
    from gemwright.cli.load import fetch_model
    from gemwright.cli.run import write_json
    from gemwright.verify import verify as compare

    model = choose_model(word, click.get_current_context())
    fetch_model(model, revision=values["revision"], offline=values["offline"], options=engine_options(values))
    import_backend()
    as_json = values["json"]
    report = compare(
        model,
        prompts=None if values["prompts"] is None else read_prompts(Path(values["prompts"])),
        max_tokens=values["max_tokens"],
        revision=values["revision"],
        offline=values["offline"],
        on_prompt=None if as_json else lambda result: print(describe(result), flush=True),
        on_load=lambda what: print(f"{what} ...", file=sys.stderr, flush=True),
        **engine_options(values),
    )
    if as_json:
        write_json(dataclasses.asdict(report))
    else:
        print(verdict(report))
    if not report.passed:
        click.get_current_context().exit(1)


def describe(result: PromptResult) -> str:
    """Return one line for a prompt, and the first difference below it."""
    ties = f" and {result.num_near_ties} near ties" if result.num_near_ties else ""
    line = (
        f"{result.name}: {result.num_prompt_tokens} tokens of prompt; {result.num_equal_tokens} of {result.num_tokens} "
        f"tokens equal{ties}; largest logit difference {result.largest_error:.1e} of the spread"
    )
    if result.reference_rms is not None:
        line += f"; rms {result.rms:.4g}, transformers' own {result.reference_rms:.4g}"
    if result.difference is None:
        return line
    # In bfloat16 another token is no failure by itself.
    title = "first difference beyond the tolerance" if result.reference_rms is None else "first other token"
    return f"{line}\n  {title}, {describe_difference(result.difference)}"


def describe_difference(difference: Difference) -> str:
    """Return both tokens with both logits."""
    rows = (
        ("our best", difference.our_token, difference.our_logits[0], difference.reference_logits[0]),
        ("its best", difference.reference_token, difference.our_logits[1], difference.reference_logits[1]),
    )
    lines = [f"after position {difference.position}: logits differ by {difference.error:.1e} of the spread"]
    lines += [
        f"    {name}: token {token}, our logit {ours:.9g}, transformers' {theirs:.9g}"
        for name, token, ours, theirs in rows
    ]
    return "\n".join(lines)


def verdict(report: Report) -> str:
    """Return the last line."""
    from gemwright.verify import ROOM, TOLERANCE

    tokens = sum(result.num_tokens for result in report.prompts)
    equal = sum(result.num_equal_tokens for result in report.prompts)
    head = "agrees" if report.passed else "DIFFERS"
    begin = (
        f"{head}: {report.model} in {report.dtype} beside transformers {report.transformers}, eager: "
        f"{equal} of {tokens} tokens equal over {len(report.prompts)} prompts, "
    )
    if report.reference_rms is None:
        largest = max(result.largest_error for result in report.prompts)
        return f"{begin}largest logit difference {largest:.1e} of the spread (tolerance {TOLERANCE:.0e})"
    return (
        f"{begin}rms logit difference {report.rms:.4g}, "
        f"transformers' own {report.reference_rms:.4g} (tolerance {ROOM} times that)"
    )


def read_prompts(path: Path) -> list[tuple[str, str | list[int]]]:
    """Return (name, prompt) of each line that is not blank; RequestError for what cannot be read as prompts."""
    from gemwright.errors import CheckpointError, RequestError

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as text", value=error) from error
    found: list[tuple[str, str | list[int]]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            found.append(
                _parse_line(line, f"{path}, line {number}") if path.suffix == ".jsonl" else (f"line {number}", line)
            )
    if not found:
        raise RequestError(f"{path}: no prompts", remedy="put one a line")
    return found


def _parse_line(line: str, where: str) -> tuple[str, str | list[int]]:
    from gemwright.errors import RequestError

    try:
        fields = json.loads(line)
        prompts = [fields[name] for name in ("prompt", "prompt_token_ids") if name in fields]
        (prompt,) = prompts
    except (ValueError, TypeError) as error:
        raise RequestError(
            f"{where} is no prompt", value=line[:80], limit='an object with "prompt" or "prompt_token_ids"'
        ) from error
    is_text = isinstance(prompt, str) and prompt
    if not is_text and not (isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt)):
        raise RequestError(f"{where}: the prompt is empty or neither text nor ids", value=line[:80])
    return str(fields.get("id", where)), prompt
