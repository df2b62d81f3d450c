"""What tests of running a server share: bodies, the errors of each client's shape, metrics, and two scripted models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from gemwright import LLM
from gemwright.engine.pieces import Piece
from gemwright.server.service import Answering, Service
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm

REPLIES = {"greet": "Hello there.", "long": "x" * 3000}
CHAT, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"


def body(text: str = "greet", **fields: Any) -> dict[str, Any]:
    """A body that all three interfaces understand."""
    return {"model": "gemma", "messages": [{"role": "user", "content": text}], "stream": False, **fields}


def asked(path: str, text: str = "greet", **fields: Any) -> dict[str, Any]:
    if path == OLLAMA:
        fields.pop("max_tokens", None)
        return body(text, **fields)
    return body(text, **{"max_tokens": 2000, **fields})


def error_of(path: str, response: httpx2.Response) -> str:
    """The message of an error, out of the shape that clients of the path read."""
    content = response.json()
    if path == MESSAGES:
        assert content["type"] == "error"
        return str(content["error"]["message"])
    return str(content["error"] if path == OLLAMA else content["error"]["message"])


def write_folder(path: Path) -> Path:
    return write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})


def quick_model(folder: Path) -> LLM:
    return scripted_llm(folder, answers(REPLIES), threads=1, max_model_len=4096, chat_template="gemma4")


def slow_model(folder: Path) -> LLM:
    """One request at a time, 5 ms a token."""
    options: dict[str, Any] = {"threads": 1, "max_model_len": 4096, "chat_template": "gemma4", "max_num_seqs": 1}
    return scripted_llm(folder, answers(REPLIES), seconds_per_step=0.005, **options)


@contextmanager
def endings(service: Service) -> Iterator[list[Answering]]:
    """Answers that end meanwhile: one that was left has neither an error nor a completion."""
    ended: list[Answering] = []

    def watch(answering: Answering, piece: Piece | None) -> None:
        if piece is None:
            ended.append(answering)

    service.watchers.append(watch)
    try:
        yield ended
    finally:
        service.watchers.remove(watch)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def samples(client: httpx2.Client) -> dict[Any, float]:
    """Values by name, or by name and reason where there is one."""
    text = client.get("/metrics").text
    found: dict[Any, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason") or sample.labels.get("reason")
            if "le" not in sample.labels:
                found[(sample.name, reason) if reason else sample.name] = sample.value
    return found
