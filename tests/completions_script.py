"""A scripted model that goes on with texts, behind /v1/completions, and how tests ask it through OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
from openai.types import Completion

from gemwright.engine.request import Request
from gemwright.server.settings import ServerSettings
from gemwright.testing.scripted import ScriptedCore, answers, scripted_llm
from tests.serving import Served, serving

SCRIPT: dict[str, str | list[str]] = {
    "Once upon": " a time.",
    "Count": [" One.", " Two.", " Three."],
    "form": '{"a":1}',
    "round": "Zwölf €, 🙂.",
    "long": "x" * 3000,
    "poison": "y" * 3000,
}
FIELDS_OF_A_PROMPT = ("prompt_token_ids", "prompt_logprobs")


@contextmanager
def scripted_server(folder: Path, **options: Any) -> Iterator[Served]:
    """A server that answers by the script. It gives six answers to a request and lets five prompts wait; an answer to a
    prompt with "poison" breaks after five tokens."""
    llm = scripted_llm(folder, answers(SCRIPT), threads=1, max_model_len=4096, max_num_seqs=8, **options)
    core, tokenizer = llm.core, llm.tokenizer
    assert isinstance(core, ScriptedCore)
    assert tokenizer is not None
    write = core._logits

    def broken(request: Request) -> Any:
        logits = write(request)
        is_poisoned = "poison" in tokenizer.decode(request.prompt_token_ids)
        return np.full_like(logits, np.nan) if is_poisoned and len(request.token_ids) == 5 else logits

    core._logits = broken  # type: ignore[method-assign]
    with serving(llm, ServerSettings(max_answers=6, max_num_queued_requests=5)) as server:
        yield server


def complete(client: openai.OpenAI, prompt: Any, **fields: Any) -> Completion:
    found: Completion = client.completions.create(**{"model": "gemma", "prompt": prompt, **fields})
    return found


def stream(client: openai.OpenAI, prompt: Any, **fields: Any) -> list[Completion]:
    return list(client.completions.create(**{"model": "gemma", "prompt": prompt, **fields}, stream=True))


def joined(chunks: list[Completion]) -> list[dict[str, Any]]:
    """The choices that a stream adds up to, in their order."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk.to_dict()["choices"]:  # type: ignore[attr-defined]
            choice = found.setdefault(
                piece["index"], {"index": piece["index"], "text": "", "logprobs": None, "finish_reason": None}
            )
            assert choice["finish_reason"] is None, "nothing comes after the reason"
            choice["finish_reason"] = piece["finish_reason"]
            choice["text"] += piece["text"]
            if piece.get("logprobs"):
                before = choice["logprobs"] or {key: [] for key in piece["logprobs"]}
                choice["logprobs"] = {key: before[key] + piece["logprobs"][key] for key in before}
            if "token_ids" in piece:
                choice["token_ids"] = choice.get("token_ids", []) + piece["token_ids"]
            for name in FIELDS_OF_A_PROMPT:
                if name in piece:
                    assert name not in choice, "once an answer"
                    choice[name] = piece[name]
    return [found[index] for index in sorted(found)]


def choices_of(found: Completion) -> list[dict[str, Any]]:
    return found.to_dict()["choices"]  # type: ignore[return-value]


def ids_of(server: Served, text: str) -> list[int]:
    return server.engine.llm.encode(text)
