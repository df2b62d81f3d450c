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
    chat_options,
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


@click.command(
    cls=SectionCommand,
    epilog="""\b
Examples:
  gemwright run "The capital of France is" --max-tokens 16
  gemwright run ./gemma-3-1b-it "Once upon a time" --dtype float32
  gemwright run model.gguf --token-ids 2,818,5279 --logprobs 5 --json
  gemwright run ./gemma-4-E2B-it "Why is the sky blue?" --chat --think""",
)
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]", shell_complete=complete_model)
@option("Prompt", "--prompt", "The prompt; - reads stdin.")
@option("Prompt", "--token-ids", "The prompt as ids, used as given: no BOS is added.", type=TokenIds())
@option("Chat", "--chat", "Ask an instruction-tuned model: PROMPT is what a user says.", is_flag=True)
@chat_options
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
    .gguf file, or looks like owner/name; otherwise it is PROMPT. PROMPT - reads stdin. Text is put into the model's
    chat template with --chat alone.

    The answer goes to stdout, all else to stderr, a thought too.
    """
    from gemwright.cli.answers import show_answer, show_answers
    from gemwright.cli.asked import choose_model_and_prompt
    from gemwright.cli.load import load_model
    from gemwright.cli.measuring import keep_run, measure_run
    from gemwright.cli.summary import note_lines, summary_lines
    from gemwright.engine.request import SamplingParams

    asked = choose_model_and_prompt(
        words,
        model=values["model"],
        prompt=values["prompt"],
        token_ids=values["token_ids"],
        from_environment=_from_environment(context),
    )
    _check_chat(values, asked.prompt, _from_environment(context))
    chosen = given(values, SAMPLING_NAMES)
    # Numbers out of range are refused before a model is read.
    SamplingParams(**chosen)
    _refuse_unseen_logprobs(chosen, values["json"])
    llm = load_model(
        asked.model,
        revision=values["revision"],
        offline=values["offline"],
        chat_template=values["chat_template"] if values["chat"] else None,
        must_chat=values["chat"],
        options=engine_options(values),
    )
    prompt: Prompt = asked.prompt
    params = llm.sampling_params(**chosen)
    if values["chat"]:
        prompt, params = _chat(llm, prompt, params, system=values["system"], thinking=values["think"])
    if values["json"]:
        (completion,) = llm.generate([prompt], params, cache_salt=values["cache_salt"])
        content = completion.to_dict()
        content["memory"].update(measure_run(llm).to_dict())
        write_json(content)
    else:
        show = show_answer if params.n == 1 else show_answers
        completion = show(llm, prompt, params, values["cache_salt"])
    closing = [] if values["json"] else summary_lines(llm, completion)
    for line in closing + note_lines(llm, is_default_model=asked.model is None):
        print(line, file=sys.stderr)
    keep_run(llm)


def write_json(content: dict[str, Any]) -> None:
    """Print one JSON object on stdout; its floats read back with the same bits."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(content, ensure_ascii=not is_utf8, allow_nan=False))


def _check_chat(values: dict[str, Any], prompt: Prompt, from_environment: set[str]) -> None:
    """Refuse flags of chats without --chat, unless they come from variables, and token ids with it."""
    from gemwright.errors import RequestError

    if values["chat"]:
        if not isinstance(prompt, str):
            raise RequestError("--chat is for text", value="--token-ids", remedy="give PROMPT, or leave --chat out")
        return
    for name in ("system", "think", "chat_template"):
        if values[name] is not None and name not in from_environment:
            flag = "--no-think" if values[name] is False else f"--{name.replace('_', '-')}"
            raise RequestError(f"{flag} is for chats", remedy="add --chat")


def _chat(
    llm: LLM, prompt: Prompt, params: SamplingParams, *, system: str | None, thinking: bool | None
) -> tuple[Prompt, SamplingParams]:
    """Return the prompt as what a user says to the model, and the parameters for it."""
    from gemwright.engine.chat_request import ChatRequest

    first = [] if system is None else [{"role": "system", "content": system}]
    messages = [*first, {"role": "user", "content": prompt}]
    return llm.prepare_chat(ChatRequest(messages=messages, enable_thinking=thinking), params)


def _from_environment(context: click.Context) -> set[str]:
    return {name for name in context.params if context.get_parameter_source(name) == ParameterSource.ENVIRONMENT}


def _refuse_unseen_logprobs(chosen: dict[str, Any], as_json: bool) -> None:
    from gemwright.errors import RequestError

    for name in ("logprobs", "prompt_logprobs"):
        if name in chosen and not as_json:
            raise RequestError(
                f"--{name.replace('_', '-')} is shown in JSON only", value=chosen[name], remedy="add --json"
            )
