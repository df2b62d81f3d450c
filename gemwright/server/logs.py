"""Structured logs: one JSON object a line on stderr, without the text of prompts and answers unless asked for."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from gemwright.engine.pieces import Piece
from gemwright.engine.result import Completion
from gemwright.server.service import Answering, Service
from gemwright.text.template import RenderedPrompt

LOG = logging.getLogger("gemwright.requests")


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


def set_up_logs(level: str = "INFO") -> None:
    """Send the logs of the server, of the engine and of uvicorn to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("gemwright", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
    # Every request is in our own access log.
    logging.getLogger("uvicorn.access").handlers[:] = [logging.NullHandler()]
    logging.getLogger("uvicorn.access").propagate = False


def log_answers(service: Service) -> None:
    """Log every answer's counts when it ends, and its text where the settings say so."""

    def watch(answering: Answering, piece: Piece | None) -> None:
        if piece is None:
            LOG.info("answer", extra={"facts": _facts(answering, with_text=service.settings.log_prompts)})

    service.watchers.append(watch)


def _facts(answering: Answering, *, with_text: bool) -> dict[str, Any]:
    completion, asked = answering.completion, answering.asked
    facts: dict[str, Any] = {
        "request_id": answering.request_id,
        "prompt_tokens": asked.num_prompt_tokens,
        "completion_tokens": answering.num_tokens,
        "cached_tokens": None if completion is None else completion.usage.cached_tokens,
        "finish_reasons": [] if completion is None else [str(choice.finish_reason) for choice in completion.choices],
        "ttft_s": _between(answering.arrived_at, answering.first_token_at),
        "error": None if answering.error is None else str(answering.error)[:200],
    }
    if with_text:
        prompt = asked.prompt
        facts["prompt"] = prompt.text if isinstance(prompt, RenderedPrompt) else asked.prompt_token_ids
        facts["answers"] = _texts(completion)
    return facts


def _texts(completion: Completion | None) -> list[str | None]:
    return [] if completion is None else [choice.text for choice in completion.choices]


def _between(begin: float, end: float | None) -> float | None:
    return None if end is None else round(end - begin, 4)
