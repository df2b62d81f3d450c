"""From the words of the command line to a model and a prompt: lone words, `-`, and what may not be given twice."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import click
from click.core import ParameterSource

from gemwright.errors import RequestError


@dataclass(frozen=True, slots=True)
class Asked:
    """What to run: a model (None is the default model) on a text or on token ids."""

    model: str | None
    prompt: str | tuple[int, ...]


def choose_model(word: str | None, context: click.Context) -> str | None:
    """Return the model that a lone word or --model names; a variable gives way to what is typed. Raises RequestError
    for two names."""
    flag: str | None = context.params["model"]
    is_from_variable = context.get_parameter_source("model") == ParameterSource.ENVIRONMENT
    if word is None:
        return flag
    if flag is not None and not is_from_variable:
        raise RequestError("two models are named", value=f"{flag} and {word}", remedy="name one")
    return word


def choose_model_and_prompt(
    words: Sequence[str],
    *,
    model: str | None,
    prompt: str | None,
    token_ids: tuple[int, ...] | None,
    from_environment: Collection[str] = (),
) -> Asked:
    """Return what the positional `words` and the three flags ask for.

    A lone word is MODEL when token ids are given or when it looks like a model, else PROMPT; with --model it is always
    PROMPT. Of a flag named in `from_environment` the value came from a variable, and words on the command line go
    before it. Raises RequestError for what is missing, empty or said twice.
    """
    if len(words) > 2:
        raise RequestError(
            "too many words", value=" ".join(words), limit="MODEL and PROMPT", remedy="put the prompt in quotes"
        )
    model_flag = None if "model" in from_environment else model
    named, text = _split(words, has_model=model_flag is not None, has_ids=token_ids is not None)
    if named is not None and model_flag is not None:
        raise RequestError("two models are named", value=f"{model_flag} and {named}", remedy="name one")
    typed = {
        "PROMPT": text,
        "--prompt": None if "prompt" in from_environment else prompt,
        "--token-ids": None if "token_ids" in from_environment else token_ids,
    }
    asked = {name: value for name, value in typed.items() if value is not None}
    if not asked:
        asked = {name: value for name, value in (("--prompt", prompt), ("--token-ids", token_ids)) if value is not None}
    if len(asked) > 1:
        raise RequestError("two prompts are given", value=" and ".join(asked), remedy="give one")
    if not asked:
        raise RequestError(
            "no prompt" if named is None else f"no prompt: {named!r} is read as the model",
            remedy="give PROMPT, or - to read it from stdin, --prompt TEXT or --token-ids 2,651,...",
        )
    (found,) = asked.values()
    if found == "-":
        found = read_stdin()
    if len(found) == 0:
        raise RequestError("the prompt is empty", limit="at least one character", remedy="give a prompt")
    return Asked(named if named is not None else model, found)


def _split(words: Sequence[str], *, has_model: bool, has_ids: bool) -> tuple[str | None, str | None]:
    """Return the words' model and prompt."""
    if len(words) == 2:
        return words[0], words[1]
    if not words:
        return None, None
    from gemwright.loading.resolve import looks_like_model

    (word,) = words
    if not has_model and (has_ids or looks_like_model(word)):
        return word, None
    return None, word


def read_stdin() -> str:
    """Return all of stdin as text, exactly as it comes; RequestError where it is not UTF-8."""
    if sys.stdin is None:
        raise RequestError("stdin is closed", remedy="give the prompt as a word, or open stdin")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            "stdin is not UTF-8 text", value=f"byte {error.object[error.start]:#04x} at {error.start}"
        ) from None
