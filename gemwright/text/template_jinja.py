"""Chat templates that checkpoints bring: found, compiled and rendered. Knows nothing of models or tokens.

A template is a program from a stranger: template_sandbox closes it in, template_limits bounds its work. Compiling is
bounded by the size of the source alone: the worst found, a full MAX_SOURCE of operators, took 16 seconds and 1.8 GiB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from gemwright.errors import CheckpointError, GemwrightError, RequestError, show_bytes
from gemwright.text.template_limits import MAX_WIDTH, Budget, LimitError, active, fit
from gemwright.text.template_sandbox import RefusalError, environment

MAX_SOURCE = 1 << 20
"""Largest template, bytes."""
MAX_OUTPUT = 16 << 20
"""Longest rendered text, characters."""
MAX_CONFIG = 64 << 20
"""Largest JSON file that is looked into for a template, bytes."""

_ANOTHER = "change the messages, or name another template with --chat-template"
_REASONING = ("reasoning_content", "thinking", "reasoning")


class JinjaTemplate:
    """A compiled chat template. `variables` are the names it reads and does not set itself, thinking switches too.

    `name` stands for it in messages. Raises CheckpointError for what cannot be compiled. May be used by several threads
    at a time.
    """

    def __init__(self, source: str, *, name: str = "chat_template") -> None:
        self.source, self.name = source, name
        if (size := len(source.encode("utf-8", "surrogatepass"))) > MAX_SOURCE:
            raise CheckpointError(f"{name} is too large", value=show_bytes(size), limit=show_bytes(MAX_SOURCE))
        room = environment()
        try:
            tree = room.parse(source, name)
            self.variables = frozenset(meta.find_undeclared_variables(tree) - room.globals.keys())
            self._template = room.from_string(tree)
        except TemplateSyntaxError as error:
            raise CheckpointError(f"{name}, line {error.lineno}: no valid template", value=error.message) from error
        except Exception as error:
            # Such as too deep for Python's own parser, or a number that it will not read.
            raise CheckpointError(
                f"{name}: the template cannot be compiled", value=f"{type(error).__name__}: {error}"[:MAX_WIDTH]
            ) from error

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the text of a conversation.

        As transformers does, it leaves out fields of messages that are None, and gives reasoning all its names.
        `variables` are bos_token and the like. Raises RequestError where the template refuses the messages, cannot
        handle them, or exceeds a limit, CheckpointError where it reaches for what is closed to it.
        """
        budget = Budget()
        before = active.set(budget)
        try:
            given = {"documents": None, **variables, "messages": [_message(message) for message in messages]}
            given |= {"tools": tools, "add_generation_prompt": add_generation_prompt}
            context = self._template.new_context(budget.admit(given)[0])
            pieces, size = [], 0
            for piece in self._template.root_render_func(context):
                pieces.append(piece)
                size += len(piece)
                fit(size, MAX_OUTPUT, "gives too long a text")
            return "".join(pieces)
        except Exception as error:
            raise self._explained(error) from error
        finally:
            active.reset(before)

    def _explained(self, error: Exception) -> GemwrightError:
        where, place = self.name, error.__traceback__
        while place is not None:
            if place.tb_frame.f_globals.get("__jinja_template__") is self._template:
                where = f"{self.name}, line {self._template.get_corresponding_lineno(place.tb_lineno)}"
            place = place.tb_next
        if isinstance(error, RefusalError):
            return RequestError("the chat template refuses these messages", value=error, remedy="change the messages")
        if isinstance(error, LimitError):
            what, limit = error.args
            return RequestError(f"{where}: the chat template {what}", limit=limit, remedy=_ANOTHER)
        value = f"{type(error).__name__}: {error}"[:MAX_WIDTH]
        if isinstance(error, SecurityError):
            return CheckpointError(f"{where}: the chat template does what is not allowed", value=value)
        return RequestError(f"{where}: the chat template cannot handle these messages", value=value, remedy=_ANOTHER)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[key] for key in _REASONING if key in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def read_own_template(folder: Path, gguf_metadata: Mapping[str, Any] | None) -> str | None:
    """Return the source of a checkpoint's own chat template, or None where it has none.

    For a GGUF (metadata given) its metadata alone count; else chat_template.jinja, tokenizer_config.json and
    chat_template.json of the folder, the first that has one. Where a template named "tool_use" stands beside the
    default, the two become one that takes "tool_use" when tools are given, by transformers' rule. Templates of other
    names are left alone. Raises CheckpointError for files that are damaged or too large.
    """
    if gguf_metadata is not None:
        key = "tokenizer.chat_template"
        found = {"default": gguf_metadata.get(key), "tool_use": gguf_metadata.get(f"{key}.tool_use")}
        return _chosen({name: source for name, source in found.items() if source is not None}, key)
    path = folder / "chat_template.jinja"
    if (default := _read(path, MAX_SOURCE)) is not None:
        tool_use = _read(folder / "additional_chat_templates" / "tool_use.jinja", MAX_SOURCE)
        return _chosen({"default": default, **({} if tool_use is None else {"tool_use": tool_use})}, str(path))
    for path in (folder / "tokenizer_config.json", folder / "chat_template.json"):
        if (text := _read(path, MAX_CONFIG)) is None:
            continue
        try:
            held = json.loads(text)["chat_template"] if '"chat_template"' in text else None
            if isinstance(held, list):
                held = {entry["name"]: entry["template"] for entry in held}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"{path}: no chat template can be read from it", value=repr(error)) from error
        if held is not None:
            return _chosen(held if isinstance(held, dict) else {"default": held}, str(path))
    return None


def _chosen(sources: dict[str, Any], where: str) -> str | None:
    """Return the default of the named sources, joined with "tool_use"; None where there are none."""
    texts = {}
    for name, source in sources.items():
        if isinstance(source, bytes):
            source = _decoded(source, where)
        if not isinstance(source, str):
            raise CheckpointError(f"{where}: the chat template is no text", value=type(source).__name__)
        if len(source) > MAX_SOURCE:
            raise CheckpointError(f"{where}: the chat template is too large", limit=show_bytes(MAX_SOURCE))
        texts[name] = source.removesuffix("\n")
    if "default" not in texts:
        if not texts:
            return None
        raise CheckpointError(f"{where}: no chat template is the default", value=", ".join(map(str, texts)))
    if "tool_use" not in texts:
        return str(sources["default"]) if isinstance(sources["default"], str) else texts["default"]
    # The empty outputs keep the newline and blanks beside our own blocks from being trimmed.
    between = "{{ '' }}{% else %}{{ '' }}"
    return (
        "{% if tools is not none %}{{ '' }}"
        + between.join((texts["tool_use"], texts["default"]))
        + "{{ '' }}{% endif %}"
    )


def _read(path: Path, limit: int) -> str | None:
    try:
        if not path.exists() and not path.is_symlink():
            return None
        if (size := path.stat().st_size) > limit:
            raise CheckpointError(f"{path} is too large", value=show_bytes(size), limit=show_bytes(limit))
        return _decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read", value=error.strerror) from error


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{where}: the chat template is not UTF-8", value=f"byte {error.start}") from error
