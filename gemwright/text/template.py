"""Messages to the prompt a model was trained on: by the checkpoint's own template, or by ours where it has none.

Whoever's words they are, no text of a message or a tool becomes a control token, and BOS stands first, once.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gemwright.errors import CheckpointError, RequestError
from gemwright.text.messages import SYSTEM_ROLES, Message, Part, changed, read_messages, read_tools, read_variables
from gemwright.text.parser_dialects import prompt_leaves_thought_open
from gemwright.text.template_gemma import alternate, fold_system, render_gemma
from gemwright.text.template_gemma4 import answers_a_call, render_gemma4, text_before_calls, without_thoughts
from gemwright.text.tokenizer import Tokenizer
from gemwright.text.tool_schemas import simplified

if TYPE_CHECKING:
    from gemwright.text.template_jinja import JinjaTemplate

BUILT_IN = ("gemma2", "gemma3", "gemma4", "gemma4-large")
"""Our own templates. Gemma 4 has two: E2B and E4B, and the larger models, whose prompt closes the thought that is not
wanted."""

_MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that are no characters, and so in nobody's text but by intent."""

_OURS = frozenset(("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"))
"""Variables of a template that the request does not set."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A conversation as the model will read it.

    text: with control words spelled out. dialect: how the answer is to be read, `gemma2`, `gemma3` or `gemma4`.
    thinking: whether the model may think before it answers, the one value for template, parser and grammar.
    opens_thought: the prompt ends inside a thought, with which the answer goes on. tools: as the request gave them;
    without any, no call may come. forbids_calls: the mark that opens a call must not be chosen either.
    media: the kinds of the media whose places stand in it, in order.
    """

    text: str
    token_ids: tuple[int, ...]
    dialect: str
    thinking: bool
    opens_thought: bool
    tools: tuple[Mapping[str, Any], ...] = ()
    media: tuple[str, ...] = ()
    forbids_calls: bool = False


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
        variables = read_variables(template_kwargs)
        _check_switch("continue_final_message", continue_final_message)
        thinking = self._thinking(enable_thinking, variables)
        self._check_variables(variables)
        if continue_final_message:
            _check_continued(said)
            add_generation_prompt = False
        if self.dialect == "gemma4":
            said = without_thoughts(said)
            # Thoughts that are kept in older turns are kept with calls alone, so text and calls stay together.
            said = said if variables.get("preserve_thinking") else text_before_calls(said)
            if continue_final_message:
                _check_continued(said)
        marked = self._marked(said, [simplified(tool) for tool in given_tools], variables)
        mark, said = marked.mark, marked.messages
        if self._own is None:
            text = self._render_built_in(marked, thinking, add_generation_prompt, continue_final_message)
        else:
            text = self._render_own(self._own, marked, thinking, add_generation_prompt, continue_final_message)
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
            if value is not None:
                _check_switch(name, value)
        if asked is not None and named is not None and asked != named:
            raise RequestError("enable_thinking is given twice, with two values", remedy="give it once")
        thinking = bool(asked if asked is not None else named)
        if thinking and not self.can_think:
            raise RequestError(
                "this model has no thinking switch", value="on", limit="off", remedy="use a Gemma 4 model"
            )
        return thinking

    def _check_variables(self, variables: Mapping[str, Any]) -> None:
        if self._own is not None:
            known = self._own.variables - _OURS
        else:
            known = frozenset(("preserve_thinking",) if self.dialect == "gemma4" else ())
        for name in variables:
            if name not in known:
                raise RequestError(
                    "chat_template_kwargs: the template has no such variable",
                    value=repr(name)[:80],
                    limit=", ".join(sorted(known)) or "none",
                )
        if self._own is None:
            _check_switch("chat_template_kwargs.preserve_thinking", variables.get("preserve_thinking", False))

    def _marked(self, messages: list[Message], tools: list[dict[str, Any]], variables: dict[str, Any]) -> _Marked:
        """Return the same with a mark that none of the texts holds behind each character that could begin a control
        word."""
        used: set[str] = set()

        def note(text: str) -> str:
            used.update(text)
            return text

        for message in messages:
            message.with_texts(note)
        changed([tools, variables], note)
        free = [mark for mark in _MARKS if mark not in used]
        if len(free) < 2:
            raise RequestError("messages: code points from U+FDD0 to U+FDEF, none of which is a character")
        mark, end = free[:2]
        table = str.maketrans({letter: letter + mark for letter in self._tokenizer.control_beginnings})

        def change(text: str) -> str:
            return text.translate(table)

        told = [message.with_texts(change) for message in messages]
        return _Marked(mark, end, told, changed(tools, change), changed(variables, change))

    def _render_built_in(self, marked: _Marked, thinking: bool, add_generation_prompt: bool, continues: bool) -> str:
        if self.dialect != "gemma4":
            turns = alternate(marked.messages, marked.tools)
            return render_gemma(turns, add_generation_prompt=add_generation_prompt, continues=continues)
        return render_gemma4(
            marked.messages,
            marked.tools,
            thinking=thinking,
            preserve_thinking=marked.variables.get("preserve_thinking", False),
            closes_thought=self._built_in == "gemma4-large",
            add_generation_prompt=add_generation_prompt,
            continues=continues,
        )

    def _render_own(
        self, own: JinjaTemplate, marked: _Marked, thinking: bool, add_generation_prompt: bool, continues: bool
    ) -> str:
        messages, tools = marked.messages, marked.tools
        takes_tools = "tools" in own.variables
        if self.dialect != "gemma4" and not (tools and takes_tools):
            messages, tools = alternate(messages, tools), []
            messages = fold_system(messages) if self.dialect == "gemma2" else messages
        if tools and not takes_tools:
            raise RequestError(
                "tools: the model's own template knows none", remedy="load it with --chat-template gemma4"
            )
        if self.dialect == "gemma4":
            _refuse_lone_answers(messages)
        if continues:
            messages = [*messages[:-1], _ended(messages[-1], marked.end)]
        names = {"bos_token": self._tokenizer.bos_token_id, "eos_token": self._tokenizer.eos_token_id}
        named = {name: "" if i is None else self._tokenizer.id_to_token(i) or "" for name, i in names.items()}
        switch = {"enable_thinking": thinking} if self.can_think else {}
        text = own.render(
            _as_openai(messages, takes_mappings="tool_responses" in own.source),
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            variables={**marked.variables, **named, **switch},
        )
        for letter in (marked.mark, marked.end):  # a template may write JSON in ASCII
            text = text.replace(json.dumps(letter)[1:-1], letter)
        _check_said(messages, text)
        if not continues:
            return text.replace(marked.end, "")
        text, found, _ = text.rpartition(marked.end)
        if not found:
            raise RequestError("continue_final_message: the model's own template leaves out the last message")
        return text

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_token_id
        if bos is None:
            return ids
        begin = next((place for place, token_id in enumerate(ids) if token_id != bos), len(ids))
        return [bos, *ids[begin:]]


@dataclass(frozen=True, slots=True)
class _Marked:
    """What a template is given, with `mark` in it. `end` is another character that is in none of it."""

    mark: str
    end: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]


def _check_switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise RequestError(name, value=repr(value)[:80], limit="true or false")


def _ended(message: Message, end: str) -> Message:
    """Return a message whose text ends with `end`, so that its place is found again in what a template makes of it."""
    *before, last = message.parts
    return replace(message, parts=(*before, Part("text", last.text.rstrip() + end)))


def _check_continued(messages: Sequence[Message]) -> None:
    last = messages[-1]
    if last.role != "assistant" or last.calls or last.media or not last.text.strip():
        raise RequestError(
            "continue_final_message: the last message cannot be gone on with",
            value=f"role {last.role}" + (", with calls" if last.calls else ""),
            limit="text of role assistant",
        )


def _check_said(messages: Sequence[Message], text: str) -> None:
    """Raise CheckpointError for a template that leaves out what the user said last."""
    last = next((message for message in reversed(messages) if message.role == "user"), None)
    words = [] if last is None else re.findall(r"\w+", last.text)
    if words and not any(word in text for word in words):
        raise CheckpointError(
            "the chat template leaves out what the user said",
            value=repr(text[:80]),
            remedy="mend the template, or name another with --chat-template",
        )


def _refuse_lone_answers(messages: Sequence[Message]) -> None:
    """Raise RequestError for a tool's message that is not right behind a call, which templates leave out."""
    for place, message in enumerate(messages):
        if message.role == "tool" and not answers_a_call(messages, place):
            raise RequestError(
                "messages: what a tool gave does not stand behind a call, and the template would leave it out",
                value=f"tool {message.tool_name}",
                remedy="put it right behind the assistant message with the call",
            )


def _as_openai(messages: Sequence[Message], *, takes_mappings: bool) -> list[dict[str, Any]]:
    """Return messages as templates read them.

    takes_mappings: the template has a place of its own for what tools gave, the assistant message with the calls; there
    a mapping is printed as one. In a tool message the published template takes it for a list, and fails.
    """
    found: list[dict[str, Any]] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        found.append(_as_one(message))
        given = list(itertools.takewhile(lambda follower: follower.role == "tool", messages[place:]))
        has_mapping = message.calls and any(follower.result is not None for follower in given)
        if has_mapping and takes_mappings and not any(follower.media for follower in given):
            responses = [{"name": follower.tool_name, "response": follower.given} for follower in given]
            found[-1]["tool_responses"] = responses
            place += len(given)
    return found


def _as_one(message: Message) -> dict[str, Any]:
    content: Any = [
        {"type": "text", "text": part.text} if part.kind == "text" else {"type": part.kind} for part in message.parts
    ]
    if message.role == "tool" and not message.media:
        content = message.given if message.result is None else json.dumps(message.result, ensure_ascii=False)
    elif not message.media and not (message.in_parts and message.role in SYSTEM_ROLES):
        single = len(message.parts) == 1
        content = message.text if single else "".join(part.text.strip() for part in message.parts)
    found: dict[str, Any] = {"role": message.role, "content": content}
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
