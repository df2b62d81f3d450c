"""The bodies of /v1/messages and /v1/messages/count_tokens, and the objects in them."""

from __future__ import annotations

from typing import Any, Literal

from gemwright.server.fields import Body, Part, honored, ignored, refused

Number = int | float

_CACHE_NOTE = "prefixes are found by content; a mark changes nothing"


class TextBlock(Part):
    """Text."""

    type: Literal["text"] = honored(...)
    text: str = honored(...)
    cache_control: Any = ignored(_CACHE_NOTE)
    citations: Any = ignored("where the text was found; the model reads the text")


class ToolUseBlock(Part):
    """A call that the model made."""

    type: Literal["tool_use"] = honored(...)
    id: str = honored(...)
    name: str = honored(...)
    input: dict[str, Any] = honored(...)
    cache_control: Any = ignored(_CACHE_NOTE)
    caller: Any = ignored("the model is the only caller")
    toolset_name: Any = refused("there are no toolsets")


class ToolResultBlock(Part):
    """What a call gave."""

    type: Literal["tool_result"] = honored(...)
    tool_use_id: str = honored(...)
    content: str | list[dict[str, Any]] | None = honored(None, "text, or a list of text blocks")
    is_error: bool | None = honored(None, "the model reads the content as an error")
    cache_control: Any = ignored(_CACHE_NOTE)
    toolset_name: Any = refused("there are no toolsets")


class ThinkingBlock(Part):
    """A thought of the model. It reads those since the last user turn again, as it was trained to."""

    type: Literal["thinking"] = honored(...)
    thinking: str = honored(...)
    signature: Any = ignored("thoughts are not signed here")
    cache_control: Any = ignored(_CACHE_NOTE)


class RedactedThinkingBlock(Part):
    """A thought that only its server can read."""

    type: Literal["redacted_thinking"] = honored(...)
    data: Any = ignored("nobody here can read it")
    cache_control: Any = ignored(_CACHE_NOTE)


class MessagePart(Part):
    """A message."""

    role: Literal["user", "assistant", "system"] = honored(...)
    content: str | list[dict[str, Any]] = honored(
        ...,
        "text, or blocks: text, tool_use, tool_result, thinking, redacted_thinking; others are refused by name. Blocks "
        "of text stand with a blank line between",
    )


class CustomTool(Part):
    """A tool of the client."""

    type: Literal["custom"] | None = honored(None)
    name: str = honored(...)
    description: str | None = honored(None)
    input_schema: dict[str, Any] = honored(...)
    strict: bool | None = honored(None, "inputs keep to the schema")
    cache_control: Any = ignored(_CACHE_NOTE)
    eager_input_streaming: Any = ignored("inputs are sent as soon as they are certain")
    defer_loading: Any = refused("every tool is told to the model", False)
    allowed_callers: Any = refused("the model is the only caller", ["direct"], [])
    input_examples: Any = refused("put examples into the description", [])


class ToolChoicePart(Part):
    """Which tools the model may or must use."""

    type: Literal["auto", "any", "tool", "none"] = honored(...)
    name: str | None = honored(None, "with type tool")
    disable_parallel_tool_use: bool | None = honored(None, "one call at most")


class ThinkingPart(Part):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"] = honored(
        ..., "adaptive: the model thinks if it has learned to; left out, it does not"
    )
    budget_tokens: int | None = ignored(
        "a thought ends by itself: no budget cuts it, but max_tokens counts it with the answer", ge=1
    )
    display: Literal["summarized", "omitted"] | None = honored(
        None, "omitted: the thought's text is left out; otherwise all of it is sent, no summary"
    )


class OutputFormatPart(Part):
    """What an answer must look like."""

    type: Literal["json_schema"] = honored(...)
    schema_: dict[str, Any] = honored(..., alias="schema")


class OutputConfigPart(Part):
    """How the model answers."""

    format: OutputFormatPart | None = honored(None, "a JSON schema that the answer keeps to")
    effort: Any = ignored("the model has no degrees of effort")
    task_budget: Any = ignored("the model is not told of budgets")


class ConversationBody(Body):
    """What both routes take."""

    model: str = honored(..., "one of /v1/models")
    messages: list[MessagePart] = honored(..., "ending with the assistant's, the answer goes on with it")
    system: str | list[dict[str, Any]] | None = honored(
        None, "without marks that change with each request, such as Claude Code's billing header"
    )
    tools: list[dict[str, Any]] | None = honored(None, "custom tools; those that Anthropic runs are refused by name")
    tool_choice: ToolChoicePart | None = honored(None)
    thinking: ThinkingPart | None = honored(None)
    output_config: OutputConfigPart | None = honored(None)
    output_format: OutputFormatPart | None = honored(None, "the older name of output_config.format")
    context_management: dict[str, Any] | None = honored(
        None, "clear_thinking edits: thoughts of older turns are never read again; other edits are refused by name"
    )
    cache_control: Any = ignored(_CACHE_NOTE)
    speed: Any = ignored("there is one")
    user_profile_id: Any = ignored("a label")
    workspace_id: Any = ignored("a label")
    mcp_servers: Any = refused("the server calls no other servers", [])


class MessagesBody(ConversationBody):
    """What a client asks of a message."""

    max_tokens: int = honored(..., "0 reads the prompt into the prefix cache and answers nothing", ge=0)
    stream: bool | None = honored(None)
    stop_sequences: list[str] | None = honored(None)
    temperature: Number | None = honored(None, "left out: the model's own; 0 is greedy", ge=0)
    top_p: Number | None = honored(None, gt=0, le=1)
    top_k: int | None = honored(None, "0 is off", ge=0)
    metadata: Any = ignored("a label")
    service_tier: Any = ignored("there is one")
    inference_geo: Any = ignored("answers are made where the server is")
    billing_policy: Any = ignored("there are no bills")
    fallbacks: Any = ignored("other models to try; there is one")
    fallback_credit_token: Any = ignored("there are no bills")
    diagnostics: Any = ignored("usage tells what came from the cache")
    container: Any = refused("there are no containers")
    compaction: Any = refused("a prompt is never shortened")
    thread: Any = refused("nothing is stored")

    def fields(self) -> dict[str, Any]:
        """Return the fields of SamplingParams that the client set."""
        config = self.output_config
        form = self.output_format if config is None or config.format is None else config.format
        return {
            "max_tokens": max(1, self.max_tokens),
            "stop": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "json_schema": None if form is None else form.schema_,
        }


class CountTokensBody(ConversationBody):
    """A conversation whose tokens are counted."""
