"""A conversation as data: who said what, kept in a file and read back. Knows neither a terminal nor a model."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemwright.errors import CheckpointError, RequestError

FORMAT = "gemwright chat 1"
"""What a saved conversation calls itself."""

_MAX_FILE_BYTES = 64 << 20
_ROLES = ("user", "assistant")
_FIELDS = {"role", "content", "reasoning_content"}


@dataclass(slots=True)
class Conversation:
    """What was said so far. `messages` are those of the OpenAI interface, the system message left out."""

    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)

    def with_system(self) -> list[dict[str, Any]]:
        """Return all messages, the system message first."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, *self.messages]

    def ask(self, text: str) -> None:
        """Add what the user says."""
        self.messages.append({"role": "user", "content": text})

    def answer(self, content: str, reasoning: str | None) -> None:
        """Add what the model said, as far as it came."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        self.messages.append(message)

    def take_back(self) -> str | None:
        """Remove the last question and what answered it; return the question, None where there is none."""
        while self.messages:
            message = self.messages.pop()
            if message["role"] == "user":
                return str(message["content"])
        return None

    def last_thought(self) -> str | None:
        """Return the thought before the last answer, None where it had none."""
        thought = self.messages[-1].get("reasoning_content") if self.messages else None
        return None if thought is None else str(thought)

    def clear(self) -> None:
        """Forget what was said; the system message stays."""
        self.messages.clear()

    def save(self, path: Path, model: str) -> None:
        """Write the conversation as JSON, whole or not at all.

        Raises RequestError for a file that is there and is no saved conversation.
        """
        if path.is_dir():
            raise RequestError("this is a folder", value=path, remedy="name a file")
        if path.exists() and not _is_saved_conversation(path):
            raise RequestError(
                "this file is there and is no saved conversation", value=path, remedy="name another file, or remove it"
            )
        content = {"format": FORMAT, "model": model, "messages": self.with_system()}
        # Beside it and then in its place, so that a full disk costs nothing that was saved before.
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def load_conversation(path: Path) -> Conversation:
    """Read what `save` wrote. Raises CheckpointError for a file that cannot be read or is something else."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a device or a pipe may never end
            raise CheckpointError(f"{path}: not a regular file", remedy="name a file that /save wrote")
        if status.st_size > _MAX_FILE_BYTES:
            raise CheckpointError(
                f"{path}: too large", limit=f"{_MAX_FILE_BYTES >> 20} MiB", remedy="name another file"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON text"
        raise CheckpointError(
            f"{path}: cannot be read as a conversation", value=reason, remedy="name a file that /save wrote"
        ) from None
    messages = content.get("messages") if isinstance(content, dict) and content.get("format") == FORMAT else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise CheckpointError(
            f"{path}: no saved conversation", limit=f'"format": "{FORMAT}"', remedy="name a file that /save wrote"
        )
    system = None
    if messages and messages[0].get("role") == "system" and isinstance(messages[0].get("content"), str):
        system, messages = messages[0]["content"], messages[1:]
    for place, message in enumerate(messages):
        texts = [value for key, value in message.items() if key != "role"]
        is_fine = message.get("role") in _ROLES and "content" in message and set(message) <= _FIELDS
        if not is_fine or not all(isinstance(value, str) for value in texts):
            raise CheckpointError(
                f"{path}: message {place + 1} cannot be used",
                value=json.dumps(message)[:100],
                limit="role user or assistant, and texts",
                remedy="mend the file, or name another",
            )
    return Conversation(system, messages)


def _is_saved_conversation(path: Path) -> bool:
    try:
        load_conversation(path)
    except CheckpointError:
        return False
    return True
