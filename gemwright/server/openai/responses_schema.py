"""The body of /v1/responses, and the objects in it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices

from gemwright.server.fields import Body, Part, honored, ignored, refused
from gemwright.server.openai.chat_schema import Effort
from gemwright.server.openai.sampling import Number

Summary = Literal["auto", "concise", "detailed"]
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_THOUGHTS = "reasoning.encrypted_content"

_CACHE_NOTE = "prefixes are found by content; a mark changes nothing"
_ID_NOTE = "items are not looked up; their content counts"
_CALLER_NOTE = "the model is the only caller"
_WAITS_NOTE = "a call waits for what it gives"
_STORED_NOTE = "nothing is stored"


class TextContent(Part):
    """Text of a message, or of what a tool gave."""

    type: Literal["input_text", "output_text"] = honored(...)
    text: str = honored(...)
    annotations: Any = ignored("where the text was found; the model reads the text")
    logprobs: Any = ignored("how likely the text was; the model reads the text")
    parsed: Any = ignored("what the client made of the text; the model reads the text")
    prompt_cache_breakpoint: Any = ignored(_CACHE_NOTE)


class RefusalContent(Part):
    """Words in which an assistant refused; the model reads them as the text they are."""

    type: Literal["refusal"] = honored(...)
    refusal: str = honored(...)


class ReasoningText(Part):
    """A thought, or a summary of one."""

    type: Literal["reasoning_text", "summary_text"] = honored(...)
    text: str = honored(...)


class MessageItem(Part):
    """A message, of an input or of an answer before."""

    type: Literal["message"] | None = honored(None)
    role: Literal["user", "assistant", "system", "developer"] = honored(...)
    content: str | list[Any] = honored(
        ...,
        "text, or parts: input_text, output_text, refusal; media are refused by name: this version reads text alone",
    )
    id: Any = ignored(_ID_NOTE)
    status: Any = ignored("a message that was cut is read as far as it goes")
    phase: Any = ignored("the model knows no phases")


class FunctionCallItem(Part):
    """A call that the model made."""

    type: Literal["function_call"] = honored(...)
    call_id: str = honored(...)
    name: str = honored(...)
    arguments: str = honored(..., "the JSON text of an object")
    id: Any = ignored(_ID_NOTE)
    status: Any = ignored("the arguments must be whole")
    parsed_arguments: Any = ignored("what the client made of the arguments; the model reads them")
    caller: Any = refused(_CALLER_NOTE, {"type": "direct"})
    namespace: Any = refused("there are no namespaces")
    # Under the second name it comes back from who dumps the package's own class.
    async_: Any = refused(_WAITS_NOTE, False, alias="async", validation_alias=AliasChoices("async", "async_"))


class FunctionCallOutputItem(Part):
    """What a call gave."""

    type: Literal["function_call_output"] = honored(...)
    call_id: str | None = honored(None, "the id of a function_call before it; without one, send name")
    name: str | None = honored(None, "the tool, where no call_id says it")
    output: str | list[Any] = honored(..., "text, or input_text parts")
    id: Any = ignored(_ID_NOTE)
    status: Any = ignored("what came is read")
    caller: Any = refused(_CALLER_NOTE, {"type": "direct"})
    namespace: Any = refused("there are no namespaces")


class ReasoningItem(Part):
    """A thought of the model. It reads those since the last user message again, as it was trained to."""

    type: Literal["reasoning"] = honored(...)
    content: list[Any] | None = honored(None, "reasoning_text parts")
    summary: list[Any] | None = honored(None, "summary_text parts; read where there is no content")
    encrypted_content: Any = ignored("nobody here can read it; thoughts of this server are sent as content")
    id: Any = ignored(_ID_NOTE)
    status: Any = ignored("a thought that was cut is read as far as it goes")


class FunctionTool(Part):
    """A tool of the client."""

    type: Literal["function"] = honored(...)
    name: str = honored(...)
    description: str | None = honored(None)
    parameters: dict[str, Any] | None = honored(None, "the schema of the arguments")
    strict: bool | None = honored(None, "true: arguments keep to the schema; left out, they need not")
    output_schema: Any = refused("put it into the description")
    allowed_callers: Any = refused(_CALLER_NOTE, ["direct"], [])
    defer_loading: Any = refused("every tool is told to the model", False)
    async_: Any = refused(_WAITS_NOTE, False, alias="async")


class FunctionChoice(Part):
    """The tool that must be called."""

    type: Literal["function"] = honored(...)
    name: str = honored(...)


class AllowedTools(Part):
    """The tools that may be called; the model is told of no others."""

    type: Literal["allowed_tools"] = honored(...)
    mode: Literal["auto", "required"] = honored(...)
    tools: list[Any] = honored(..., 'tools by name, {"type": "function", "name"}', min_length=1)


class ReasoningPart(Part):
    """Whether the model thinks before it answers."""

    effort: Effort | None = honored(None, "none: do not think, the default; all others: think")
    summary: Summary | None = honored(
        None,
        "any of them: the thought is sent as the item's summary too, whole, as it is in the item's content; "
        "no shorter one is made",
    )
    generate_summary: Summary | None = honored(None, "the older name of summary")
    context: Any = refused("thoughts of older turns are never read again", "auto", "current_turn")
    mode: Any = refused("there is one", "standard")

    @property
    def wanted_summary(self) -> Summary | None:
        """The summary that is asked for under either name."""
        return self.summary or self.generate_summary


class FormatPart(Part):
    """What an answer must look like."""

    type: Literal["text", "json_object", "json_schema"] = honored(...)
    schema_: dict[str, Any] | None = honored(None, "the schema of the answer, with type json_schema", alias="schema")
    name: str | None = ignored("a label; it comes back")
    description: str | None = ignored("a label; it comes back")
    strict: bool | None = ignored("a schema is always kept to")


class TextPart(Part):
    """How the answer is written."""

    format: FormatPart | None = honored(None)
    verbosity: Any = refused("how long an answer is cannot be set so", "medium")


class StreamPart(Part):
    """How a stream is sent."""

    include_obfuscation: Any = ignored("padding against eavesdroppers; there is none")


class ResponsesBody(Body):
    """What a client asks of a response. Nothing is stored: each request brings the whole conversation along."""

    model: str | None = honored(None, "one of /v1/models; left out, the one that is served")
    input: str | list[Any] = honored(
        ...,
        "text, or items: message, function_call, function_call_output, reasoning; others are refused by name. "
        "The output of an answer before is taken as it came",
    )
    instructions: str | None = honored(None, "a system message before all others")
    tools: list[Any] | None = honored(None, "function tools; those that OpenAI runs are refused by name")
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = honored(
        None, "none, auto, required, a function, or allowed_tools"
    )
    parallel_tool_calls: bool | None = honored(None, "false: one call at most")
    text: TextPart | None = honored(None)
    reasoning: ReasoningPart | None = honored(None)
    max_output_tokens: int | None = honored(None, "thoughts count; left out, what the context has room for", ge=1)
    temperature: Number | None = honored(None, "left out: the model's own; 0 is greedy", ge=0)
    top_p: Number | None = honored(None, gt=0, le=1)
    include: list[str] | None = honored(
        None, f"{LOGPROBS}; {ENCRYPTED_THOUGHTS} changes nothing, as thoughts are sent in plain; no others"
    )
    top_logprobs: int | None = honored(None, f"goes with {LOGPROBS}", ge=0, le=1000)
    stream: bool | None = honored(None)
    stream_options: StreamPart | None = honored(None)
    metadata: dict[str, str] | None = honored(None, "comes back in the answer")
    store: bool | None = ignored("nothing is stored, and answers say so: OpenAI's default is true, so true is no error")
    user: Any = ignored("a label")
    safety_identifier: Any = ignored("a label")
    service_tier: Any = ignored("there is one")
    prompt_cache_key: Any = ignored("prefixes are found by content")
    prompt_cache_retention: Any = ignored("prefixes stay until their place is needed")
    prompt_cache_options: Any = ignored("prefixes are found by content")
    max_tool_calls: Any = ignored("counts calls of tools that OpenAI runs; there are none")
    previous_response_id: Any = refused(f"{_STORED_NOTE}; send the conversation's items as input")
    conversation: Any = refused(f"{_STORED_NOTE}; send the conversation's items as input")
    prompt: Any = refused(f"{_STORED_NOTE}; send the prompt's text")
    background: Any = refused(f"{_STORED_NOTE}, so nobody could ask for the answer later", False)
    background_options: Any = refused("nothing runs in the background")
    truncation: Any = refused("a prompt is never cut", "disabled")
    context_management: Any = refused("a prompt is never shortened", [])
    moderation: Any = refused("there is no moderation")
    access_programs: Any = refused("there are none")
    image: Any = refused("this version reads text alone")
