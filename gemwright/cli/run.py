"""`gemwright run`: one prompt, one completion (or --n of them)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    SAMPLING_NAMES,
    SectionCommand,
    TokenIds,
    backend_options,
    batch_options,
    dtype_option,
    engine_options,
    given,
    model_options,
    option,
    output_options,
    sampling_options,
)

if TYPE_CHECKING:
    from gemwright.engine.llm import LLM, Prompt
    from gemwright.engine.request import SamplingParams
    from gemwright.engine.result import Completion


@click.command(
    cls=SectionCommand,
    epilog="""\b
Examples:
  gemwright run "The capital of France is" --max-tokens 16
  gemwright run ./gemma-3-1b-it "Once upon a time" --dtype float32
  gemwright run model.gguf --token-ids 2,818,5279 --logprobs 5 --json""",
)
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]", shell_complete=complete_model)
@option("Prompt", "--prompt", "The prompt; - reads stdin.")
@option("Prompt", "--token-ids", "The prompt as ids, used as given: no BOS is added.", type=TokenIds())
@model_options
@sampling_options
@dtype_option
@backend_options
@batch_options
@output_options
@click.pass_context
def run(context: click.Context, /, words: tuple[str, ...], **values: Any) -> None:
    """Complete a prompt.

    MODEL is a hub id, a folder with config.json and safetensors, or a .gguf file; left out, it is Gemma 3 270M. A hub
    id is owner/name; owner/name:Q4_K_M picks one of several GGUF files, @REVISION at the end a revision. What is not
    in the local cache is fetched. A lone word is MODEL when --token-ids is given, when it is an existing folder or a
    .gguf file, or looks like owner/name; otherwise it is PROMPT. PROMPT - reads stdin. Text is not put into a chat
    template.

    The answer goes to stdout, all else to stderr.
    """
    from gemwright.cli.asked import choose_model_and_prompt
    from gemwright.cli.load import load_model
    from gemwright.cli.summary import note_lines, summary_lines
    from gemwright.engine.request import SamplingParams

    asked = choose_model_and_prompt(
        words,
        model=values["model"],
        prompt=values["prompt"],
        token_ids=values["token_ids"],
        from_environment=_from_environment(context),
    )
    chosen = given(values, SAMPLING_NAMES)
    # Numbers out of range are refused before a model is read.
    SamplingParams(**chosen)
    _refuse_unseen_logprobs(chosen, values["json"])
    llm = load_model(
        asked.model, revision=values["revision"], offline=values["offline"], options=engine_options(values)
    )
    params = llm.sampling_params(**chosen)
    if values["json"]:
        (completion,) = llm.generate([asked.prompt], params, cache_salt=values["cache_salt"])
        write_json(completion.to_dict())
    else:
        answer = _stream if params.n == 1 else _several
        completion = answer(llm, asked.prompt, params, values["cache_salt"])
    closing = [] if values["json"] else summary_lines(llm, completion)
    for line in closing + note_lines(llm, is_default_model=asked.model is None):
        print(line, file=sys.stderr)


def write_json(content: dict[str, Any]) -> None:
    """Print one JSON object on stdout; its floats read back with the same bits."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(content, ensure_ascii=not is_utf8, allow_nan=False))


def _from_environment(context: click.Context) -> set[str]:
    return {name for name in context.params if context.get_parameter_source(name) == ParameterSource.ENVIRONMENT}


def _refuse_unseen_logprobs(chosen: dict[str, Any], as_json: bool) -> None:
    from gemwright.errors import RequestError

    for name in ("logprobs", "prompt_logprobs"):
        if name in chosen and not as_json:
            raise RequestError(
                f"--{name.replace('_', '-')} is shown in JSON only", value=chosen[name], remedy="add --json"
            )


def _stream(llm: LLM, prompt: Prompt, params: SamplingParams, cache_salt: str | None) -> Completion:
    """Write the answer's text as it comes and return the completion; without a tokenizer write its ids."""
    is_line_open = False
    try:
        for piece in llm.stream(prompt, params, cache_salt=cache_salt):
            if isinstance(piece, str):
                is_line_open = True
                sys.stdout.write(piece)
                sys.stdout.flush()
            else:
                print("" if piece.text is not None else _ids(piece.token_ids), flush=True)
                return piece
    except KeyboardInterrupt:
        if is_line_open:
            print(flush=True)
        raise
    raise AssertionError("a stream ends with its completion")


def _several(llm: LLM, prompt: Prompt, params: SamplingParams, cache_salt: str | None) -> Completion:
    (completion,) = llm.generate([prompt], params, cache_salt=cache_salt)
    for number, choice in enumerate(completion.choices, start=1):
        print(f"--- {number} of {len(completion.choices)}")
        print(_ids(choice.token_ids) if choice.text is None else choice.text, flush=True)
    return completion


def _ids(token_ids: tuple[int, ...]) -> str:
    return ",".join(map(str, token_ids))
