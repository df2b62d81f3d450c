"""Messages to the prompt a model was trained on: by the checkpoint's own template, or by ours where it has none.

Whoever's words they are, no text of a message or a tool becomes a control token, and BOS stands first, once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemwright.errors import CheckpointError, RequestError, UnsupportedError
from gemwright.text.messages import Message, changed, read_messages, read_tools
from gemwright.text.parser_dialects import prompt_leaves_thought_open
from gemwright.text.template_gemma import alternate, fold_system, render_gemma
from gemwright.text.template_gemma4 import one_system, render_gemma4, without_thoughts
from gemwright.text.tokenizer import Tokenizer
from gemwright.text.tool_schemas import simplified

if TYPE_CHECKING:
    from gemwright.text.template_jinja import JinjaTemplate

BUILT_IN = ("gemma2", "gemma3", "gemma4", "gemma4-large")
"""Our own templates. Gemma 4 has two: E2B and E4B, and the larger models, whose prompt closes the thought that is not
wanted."""

_MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that are no characters, and so in nobody's text but by intent."""

_NAMED_IT = re.compile(r"(^|[-_. ])(it|instruct|chat)([-_. ]|$)", re.IGNORECASE)
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A conversation as the model will read it.

    text: with control words spelled out. dialect: how the answer is to be read, `gemma2`, `gemma3` or `gemma4`.
    thinking: whether the model may think before it answers, the one value for template, parser and grammar.
    opens_thought: the prompt ends inside a thought, with which the answer goes on. tools: as the request gave them.
    media: the kinds of the media whose places stand in it, in order.
    """

    text: str
    token_ids: tuple[int, ...]
    dialect: str
    thinking: bool
    opens_thought: bool
    tools: tuple[Mapping[str, Any], ...] = ()
    media: tuple[str, ...] = ()


class ChatTemplate:
    """Renders conversations for one model.

    `own` is the checkpoint's template; without one `built_in` names ours. `name` says which it is.
    """

    def __init__(self, tokenizer: Tokenizer, built_in: str, own: JinjaTemplate | None = None) -> None:
        self._tokenizer = tokenizer
        self._built_in = built_in
        self._own = own
        self.dialect = built_in.removesuffix("-large")
        self.name = f"built in, {built_in}" if own is None else "the model's own"

    @property
    def can_think(self) -> bool:
        """Whether it has a switch for thinking."""
        return self.dialect == "gemma4" and (self._own is None or "enable_thinking" in self._own.variables)

    def render(
        self,
        messages: Any,
        *,
        tools: Any = None,
        enable_thinking: bool | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return the prompt of a request's messages and tools (see `messages.read_messages` and `read_tools`).

        enable_thinking: None is the template's default, off. continue_final_message: the last message is the
        assistant's and is gone on with; no generation prompt is added then. template_kwargs: further variables of the
        template; ours knows `enable_thinking`, the same as the argument, and `preserve_thinking`.

        Raises RequestError for what cannot be rendered, naming the field.
        """
        said, given_tools = read_messages(messages), read_tools(tools)
        variables = dict(template_kwargs or {})
        thinking = self._thinking(enable_thinking, variables)
        self._check_variables(variables)
        if continue_final_message:
            _check_continued(said)
            add_generation_prompt = False
        if self.dialect == "gemma4":
            said = without_thoughts(one_system(said))
            if continue_final_message:
                _check_continued(said)
        mark, said, marked_tools = self._marked(said, [simplified(tool) for tool in given_tools])
        if self._own is None:
            text = self._render_built_in(
                said, marked_tools, thinking, variables, add_generation_prompt, continue_final_message
            )
        else:
            text = self._render_own(
                self._own, said, marked_tools, thinking, variables, add_generation_prompt, continue_final_message
            )
        return RenderedPrompt(
            text=text.replace(mark, ""),
            token_ids=tuple(self._with_one_bos(self._tokenizer.encode_marked(text, mark))),
            dialect=self.dialect,
            thinking=thinking and not continue_final_message,
            opens_thought=self.dialect == "gemma4" and prompt_leaves_thought_open(text),
            tools=tuple(given_tools),
            media=tuple(kind for message in said for kind in message.media),
        )

    def _thinking(self, asked: bool | None, variables: dict[str, Any]) -> bool:
        """Return whether to think, taking the switch out of the variables."""
        named = variables.pop("enable_thinking", None)
        for name, value in (("enable_thinking", asked), ("chat_template_kwargs.enable_thinking", named)):
            if value is not None and not isinstance(value, bool):
                raise RequestError(name, value=repr(value)[:80], limit="true or false")
        if asked is not None and named is not None and asked != named:
            raise RequestError("enable_thinking is given twice, with two values", remedy="give it once")
        thinking = bool(asked if asked is not None else named)
        if thinking and not self.can_think:
            raise RequestError(
                "this model has no thinking switch", value="on", limit="off", remedy="use a Gemma 4 model"
            )
        return thinking

    def _check_variables(self, variables: Mapping[str, Any]) -> None:
        known = {"preserve_thinking"} if self.dialect == "gemma4" else set()
        known = (
            known if self._own is None else set(self._own.variables) - {"messages", "tools", "add_generation_prompt"}
        )
        for name in variables:
            if name not in known:
                raise RequestError(
                    "chat_template_kwargs: the template has no such variable",
                    value=repr(name)[:80],
                    limit=", ".join(sorted(known)) or "none",
                )
        if self._own is None and not isinstance(variables.get("preserve_thinking", False), bool):
            raise RequestError(
                "preserve_thinking", value=repr(variables["preserve_thinking"])[:80], limit="true or false"
            )

    def _marked(
        self, messages: list[Message], tools: list[dict[str, Any]]
    ) -> tuple[str, list[Message], list[dict[str, Any]]]:
        """Return a mark that none of the texts holds, and messages and tools with it behind each character that could
        begin a control word."""
        used: set[str] = set()

        def note(text: str) -> str:
            used.update(text)
            return text

        for message in messages:
            message.with_texts(note)
        changed(tools, note)
        mark = next((mark for mark in _MARKS if mark not in used), None)
        if mark is None:
            raise RequestError("messages: every code point from U+FDD0 to U+FDEF, none of which is a character")
        beginnings = {letter: letter + mark for letter in self._tokenizer.control_beginnings}
        table = str.maketrans(beginnings)
        told = [message.with_texts(lambda text: text.translate(table)) for message in messages]
        return mark, told, changed(tools, lambda text: text.translate(table))

    def _render_built_in(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        thinking: bool,
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        continues: bool,
    ) -> str:
        if self.dialect != "gemma4":
            turns = alternate(messages, tools)
            return render_gemma(turns, add_generation_prompt=add_generation_prompt, continues=continues)
        return render_gemma4(
            messages,
            tools,
            thinking=thinking,
            preserve_thinking=variables.get("preserve_thinking", False),
            closes_thought=self._built_in == "gemma4-large",
            add_generation_prompt=add_generation_prompt,
            continues=continues,
        )

    def _render_own(
        self,
        own: JinjaTemplate,
        messages: list[Message],
        tools: list[dict[str, Any]],
        thinking: bool,
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        continues: bool,
    ) -> str:
        takes_tools = "tools" in own.variables
        if self.dialect != "gemma4" and not (tools and takes_tools):
            messages, tools = alternate(messages, tools), []
            messages = fold_system(messages) if self.dialect == "gemma2" else messages
        if tools and not takes_tools:
            raise RequestError(
                "tools: the model's own template knows none", remedy="load it with --chat-template gemma4"
            )
        names = {"bos_token": self._tokenizer.bos_token_id, "eos_token": self._tokenizer.eos_token_id}
        named = {name: "" if i is None else self._tokenizer.id_to_token(i) or "" for name, i in names.items()}
        switch = {"enable_thinking": thinking} if self.can_think else {}
        text = own.render(
            [_as_openai(message) for message in messages],
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            variables={**named, **switch, **variables},
        )
        if not continues:
            return text
        last = "".join(part.text.strip() for part in messages[-1].parts)
        place = text.rfind(last)
        if place < 0:
            raise RequestError("continue_final_message: the model's own template changes the last message")
        return text[: place + len(last)]

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_token_id
        if bos is None:
            return ids
        begin = next((place for place, token_id in enumerate(ids) if token_id != bos), len(ids))
        return [bos, *ids[begin:]]


def _check_continued(messages: Sequence[Message]) -> None:
    last = messages[-1]
    if last.role != "assistant" or last.calls or last.media or not last.text.strip():
        raise RequestError(
            "continue_final_message: the last message cannot be gone on with",
            value=f"role {last.role}" + (", with calls" if last.calls else ""),
            limit="text of role assistant",
        )


def _as_openai(message: Message) -> dict[str, Any]:
    """Return a message as templates read it."""
    content: Any = [
        {"type": "text", "text": part.text} if part.kind == "text" else {"type": part.kind} for part in message.parts
    ]
    if not message.media:
        single = len(message.parts) == 1
        content = message.text if single else "".join(part.text.strip() for part in message.parts)
    found: dict[str, Any] = {"role": message.role, "content": content if message.result is None else message.result}
    if message.reasoning is not None:
        found |= {"reasoning": message.reasoning, "reasoning_content": message.reasoning}
    if message.calls:
        found["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.role == "tool":
        found |= {"name": message.tool_name, "tool_call_id": message.call_id}
    return found


def dialect_of(tokenizer: Tokenizer) -> str | None:
    """Return whose turns a vocabulary has: `gemma2`, `gemma3`, `gemma4`, or None (facts c.1, c.2)."""
    words = tokenizer.special_tokens
    if "<|turn>" in words:
        return "gemma4"
    start = words.get("<start_of_turn>")
    return None if start is None else "gemma2" if start == 106 else "gemma3"


def is_instruction_tuned(
    tokenizer: Tokenizer, *, name: str, stop_ids: Sequence[int], gguf_metadata: Mapping[str, Any] | None
) -> bool:
    """Whether a model without a template of its own has learned to take turns.

    Any one sign is enough: its config or its tokenizer's file ends sequences with the word that ends a turn; its GGUF
    metadata call it fine-tuned so; its name has the part `it`, `instruct` or `chat`, as published names do.

    stop_ids: those of the model's configs. name: of its folder or file, or its hub id.
    """
    ends = set(tokenizer.eos_token_ids) - {tokenizer.eos_token_id, 1}
    if tokenizer.eos_token_id not in (None, 1) or ends & set(stop_ids):
        return True
    told = [_text(gguf_metadata, f"general.{key}") for key in ("finetune", "name")] if gguf_metadata else []
    return any(_NAMED_IT.search(text) for text in (*told, name))


def load_template(
    tokenizer: Tokenizer,
    *,
    folder: Path,
    gguf_metadata: Mapping[str, Any] | None,
    name: str,
    stop_ids: Sequence[int],
    is_large: bool,
    chosen: str | None = None,
) -> ChatTemplate | None:
    """Return the template of a model, or None for a base model.

    Its own template goes first, then ours for its vocabulary if it is instruction-tuned. `chosen`, a name of BUILT_IN
    or a file, goes before both. is_large: a Gemma 4 beyond E4B. Raises CheckpointError for damaged files,
    UnsupportedError for a choice that is neither, or of another family.
    """
    from gemwright.text.template_jinja import JinjaTemplate, read_own_template

    dialect = dialect_of(tokenizer)
    if chosen is not None and chosen not in BUILT_IN:
        source = _read_file(Path(chosen).expanduser())
        return ChatTemplate(tokenizer, dialect or "gemma3", JinjaTemplate(source, name=chosen))
    if chosen is not None:
        if chosen.removesuffix("-large") != dialect:
            raise UnsupportedError(
                "this chat template is not for this model's vocabulary", value=chosen, limit=dialect or "no turns"
            )
        return ChatTemplate(tokenizer, chosen)
    source_of_model = read_own_template(folder, gguf_metadata)
    if source_of_model is not None:
        return ChatTemplate(tokenizer, dialect or "gemma3", JinjaTemplate(source_of_model))
    if dialect is None or not is_instruction_tuned(
        tokenizer, name=name, stop_ids=stop_ids, gguf_metadata=gguf_metadata
    ):
        return None
    return ChatTemplate(tokenizer, "gemma4-large" if dialect == "gemma4" and is_large else dialect)


def _read_file(path: Path) -> str:
    try:
        if path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES:
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: the chat template cannot be read", value=error) from error
    raise CheckpointError(
        f"{path}: no chat template",
        limit=f"{', '.join(BUILT_IN)}, or a file of at most {_MAX_FILE_BYTES >> 20} MiB",
        remedy="name one of them",
    )


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key, "")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
