"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Literal

from gemwright.engine.chat_request import ChatRequest
from gemwright.server.errors import FieldError
from gemwright.server.fields import honored, ignored, refused
from gemwright.server.openai.sampling import SamplingBody

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatBody(SamplingBody):
    """What a client asks of a chat."""

    messages: list[dict[str, Any]] = honored(...)
    max_tokens: int | None = honored(None, "left out, what the context has room for", ge=1)
    max_completion_tokens: int | None = honored(None, "the newer name of max_tokens", ge=1)
    logprobs: bool | None = honored(None)
    top_logprobs: int | None = honored(None, ge=0, le=1000)
    tools: list[dict[str, Any]] | None = honored(None)
    tool_choice: str | dict[str, Any] | None = honored(None, "none, auto, required, or a tool")
    parallel_tool_calls: bool | None = honored(None)
    reasoning_effort: Effort | None = honored(
        None, "none: do not think; all others: think; enable_thinking goes before it"
    )
    chat_template_kwargs: dict[str, Any] | None = honored(None, "enable_thinking, and variables of the template")
    include_reasoning: bool | None = honored(None, "false: the thought is not sent")
    continue_final_message: bool | None = honored(None)
    add_generation_prompt: bool | None = honored(None, "false only with continue_final_message")
    store: Any = ignored("nothing is stored")
    prediction: Any = ignored("a hint for speed")
    verbosity: Any = refused("how long an answer is cannot be set so", "medium")
    modalities: Any = refused("answers are text", ["text"])
    audio: Any = refused("answers are text")
    web_search_options: Any = refused("there is no web search")
    moderation: Any = refused("there is no moderation")
    functions: Any = refused("is the old name of tools; send tools")
    function_call: Any = refused("is the old name of tool_choice; send tool_choice")
    echo: Any = refused("a chat's prompt is not repeated", False)
    chat_template: Any = refused("templates of clients are not run")
    documents: Any = refused("put documents into a message")
    add_special_tokens: Any = refused("the template writes them", False)
    mm_processor_kwargs: Any = refused("this version reads text alone")
    thinking_token_budget: Any = refused("a thought cannot be cut")
    repetition_detection: Any = refused("not offered")
    best_of: Any = refused("use n", 1)

    def chat_request(self) -> ChatRequest:
        """Return the conversation. Raises FieldError where fields contradict each other."""
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise FieldError(
                "add_generation_prompt", "false leaves nobody's turn open", remedy="send continue_final_message true"
            )
        if self.add_generation_prompt and self.continue_final_message:
            raise FieldError("continue_final_message", "stands beside add_generation_prompt", remedy="send one of them")
        variables = dict(self.chat_template_kwargs or {})
        thinking = variables.pop("enable_thinking", None)
        if thinking is not None and not isinstance(thinking, bool):
            raise FieldError("chat_template_kwargs.enable_thinking", "is no bool", value=repr(thinking)[:80])
        if thinking is None and self.reasoning_effort is not None:
            thinking = self.reasoning_effort != "none"
        return ChatRequest(
            messages=self.messages,
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            enable_thinking=thinking,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=variables or None,
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields of SamplingParams that the client set."""
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "needs logprobs", remedy="send logprobs true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise FieldError("max_tokens", "differs from max_completion_tokens", remedy="send one of them")
        fields = self.sampling_fields()
        fields["max_tokens"] = self.max_completion_tokens or self.max_tokens
        fields["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
        return fields
