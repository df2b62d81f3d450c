"""A chat as it is asked for: conversation, tools and choices, made into a prompt and sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from gemwright.engine.request import SamplingParams
from gemwright.errors import RequestError, UnsupportedError
from gemwright.text.constraint import tool_constraint
from gemwright.text.messages import read_tools
from gemwright.text.template import RenderedPrompt

if TYPE_CHECKING:
    from gemwright.text.template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation of OpenAI-style messages to answer; None leaves a choice to its default.

    tools, tool_choice, parallel_tool_calls: as in the OpenAI interface; tool_choice "none" leaves the tools out of the
    prompt, and the mark that opens a call is never chosen. Without tools nothing is forbidden, but what the model
    writes as a call is content. The other choices are those of ChatTemplate.render, `chat_template_kwargs` being its
    `template_kwargs`.
    """

    messages: Any
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    enable_thinking: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None

    def prepared(
        self, template: ChatTemplate | None, model: str, params: SamplingParams
    ) -> tuple[RenderedPrompt, SamplingParams]:
        """Return the prompt, and the parameters with what the tools ask of the answer.

        Raises UnsupportedError for a base model (`template` is None) and for media, RequestError for what cannot be
        rendered, for a choice that names no tool, and where the parameters ask for another constraint already.
        """
        if not isinstance(self.parallel_tool_calls, bool | None):
            raise RequestError("parallel_tool_calls", value=repr(self.parallel_tool_calls)[:80], limit="true or false")
        tools = read_tools(self.tools)
        constraint = tool_constraint(tools, self.tool_choice, parallel_tool_calls=self.parallel_tool_calls is not False)
        prompt = render_chat(
            template,
            model,
            self.messages,
            tools=None if self.tool_choice == "none" else tools,
            enable_thinking=self.enable_thinking,
            continue_final_message=False if self.continue_final_message is None else self.continue_final_message,
            template_kwargs=self.chat_template_kwargs,
        )
        if self.tool_choice == "none":
            prompt = replace(prompt, forbids_calls=True)
        return prompt, params if constraint is None else replace(params, constraint=constraint)


CHAT_FIELDS = frozenset(field.name for field in fields(ChatRequest))


def render_chat(template: ChatTemplate | None, model: str, messages: Any, **choices: Any) -> RenderedPrompt:
    """Return the prompt of a conversation; `choices` and RequestErrors are those of ChatTemplate.render.

    Raises UnsupportedError for a base model, and for media, which this version cannot read.
    """
    if template is None:
        raise base_model(model)
    prompt = template.render(messages, **choices)
    if prompt.media:
        raise UnsupportedError(
            f"{prompt.media[0]} in a message", limit="text", remedy="leave it out: this version reads text only"
        )
    return prompt


def base_model(model: str) -> UnsupportedError:
    """Return the error of asking a base model for a chat."""
    return UnsupportedError(
        "this is a base model: it continues texts and knows no turns",
        value=model,
        remedy="use an instruction-tuned model, or name a template with --chat-template",
    )
