"""The bodies of /tokenize and /detokenize, in vLLM's words."""

from __future__ import annotations

from typing import Any

from gemwright.server.errors import FieldError
from gemwright.server.fields import Body, honored, refused

_OF_A_CHAT = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenizeBody(Body):
    """A text or a conversation whose tokens are wanted."""

    model: str | None = honored(None, "one of /v1/models; left out, the one that is served")
    prompt: str | None = honored(None, "a text; this or messages")
    messages: list[dict[str, Any]] | None = honored(None, "a conversation; this or prompt")
    tools: list[dict[str, Any]] | None = honored(None, "goes with messages")
    add_generation_prompt: bool | None = honored(
        None, "goes with messages; true unless continue_final_message: the model's turn is opened"
    )
    continue_final_message: bool | None = honored(None, "goes with messages")
    chat_template_kwargs: dict[str, Any] | None = honored(
        None, "goes with messages; enable_thinking, and variables of the template"
    )
    add_special_tokens: bool | None = honored(
        None, "left out or true: one BOS stands before a prompt; a conversation's comes from the template"
    )
    return_token_strs: bool | None = honored(None, "the pieces too, as the vocabulary spells them")
    chat_template: Any = refused("templates of clients are not run")
    mm_processor_kwargs: Any = refused("this version reads text alone")
    media_io_kwargs: Any = refused("this version reads text alone")

    def check(self) -> None:
        """Raise FieldError unless there is one thing to tokenize, with what goes with it."""
        if self.prompt is None and self.messages is None:
            raise FieldError("prompt", "is missing, and so is messages", remedy="send one of them")
        if self.prompt is not None and self.messages is not None:
            raise FieldError("messages", "stands beside prompt", remedy="send one of them")
        if self.messages is None:
            named = next((name for name in _OF_A_CHAT if getattr(self, name) is not None), None)
            if named is not None:
                raise FieldError(named, "goes with messages, and a prompt is used as it is", remedy="leave it out")
        elif self.add_special_tokens:
            raise FieldError("add_special_tokens", "is for a prompt: the template writes them", remedy="leave it out")
        if self.add_generation_prompt and self.continue_final_message:
            raise FieldError("continue_final_message", "stands beside add_generation_prompt", remedy="send one of them")


class DetokenizeBody(Body):
    """Tokens whose text is wanted."""

    model: str | None = honored(None, "one of /v1/models; left out, the one that is served")
    tokens: list[int] = honored(..., "ids of the model's vocabulary")
