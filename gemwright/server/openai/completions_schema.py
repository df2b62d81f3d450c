"""The body of /v1/completions."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from gemwright.engine.llm import Prompt
from gemwright.server.errors import FieldError
from gemwright.server.fields import honored, ignored, refused
from gemwright.server.openai.sampling import SamplingBody

USUAL_MAX_TOKENS = 16
"""What OpenAI and vLLM take where max_tokens is left out."""

_KINDS = {str: "a text", int: "an id", list: "a list of ids"}


class CompletionBody(SamplingBody):
    """What a client asks of plain text."""

    prompt: str | list[str] | list[int] | list[list[int]] = honored(
        ..., "text or ids, or a list of either; ids are used as given, and text gets its one BOS"
    )
    max_tokens: int | None = honored(None, f"left out, {USUAL_MAX_TOKENS}", ge=1)
    echo: bool | None = honored(None, "the prompt goes before each answer")
    logprobs: int | None = honored(None, "of so many tokens at each place, and of the one that came", ge=0, le=1000)
    best_of: int | None = honored(
        None, "so many answers are written, and the n that are likeliest per token sent; not in streams", ge=1
    )
    store: Any = ignored("nothing is stored")
    suffix: Any = refused("Gemma has no way to fill in the middle of a text", "")
    add_special_tokens: Any = refused("text always gets its one BOS; send ids for a prompt without", True)
    return_tokens_as_token_ids: Any = refused("send return_token_ids", False)
    prompt_embeds: Any = refused("a prompt is text or ids")
    mm_processor_kwargs: Any = refused("this version reads text alone")
    repetition_detection: Any = refused("not offered")

    @field_validator("prompt", mode="before")
    @classmethod
    def _require_one_kind(cls, prompt: Any) -> Any:
        """Name the first prompt of a list that is of another kind than those before it."""
        kinds = [_KINDS.get(type(item)) for item in prompt] if isinstance(prompt, list) else []
        odd = next((place for place, kind in enumerate(kinds) if kind != kinds[0]), None)
        if odd is None or None in kinds:  # what is no prompt at all is named by its place already
            return prompt
        raise FieldError(
            f"prompt[{odd}]",
            f"is {kinds[odd]}, after {kinds[0]}",
            value=repr(prompt[odd])[:80],
            limit="a list of texts, a list of ids, or a list of lists of ids",
            remedy="send all prompts in one form",
        )

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, however many were sent."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [item for item in self.prompt if isinstance(item, int)]
        return [ids] if ids else [item for item in self.prompt if not isinstance(item, int)]

    def field_of_prompt(self, index: int) -> str:
        """Return what errors call one of the prompts."""
        return "prompt" if len(self.prompts) == 1 else f"prompt[{index}]"

    @property
    def num_answers(self) -> int:
        """Answers to each prompt that are sent."""
        return self.n or 1

    @property
    def num_written(self) -> int:
        """Answers to each prompt that are written."""
        return self.best_of or self.num_answers

    @property
    def num_prompt_logprobs(self) -> int | None:
        """At each place of the prompt the most of what its `prompt_logprobs` and an echo's `logprobs` show."""
        counts = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((count for count in counts if count is not None), default=None)

    def fields(self) -> dict[str, Any]:
        """Return the fields of SamplingParams that the client set. Raises FieldError where fields contradict."""
        if not self.prompts:
            raise FieldError("prompt", "is empty", limit="at least one prompt")
        for index, prompt in enumerate(self.prompts):
            if not prompt:
                raise FieldError(self.field_of_prompt(index), "is empty", limit="at least one character or id")
        if self.num_written < self.num_answers:
            raise FieldError("best_of", "is less than n", value=self.best_of, limit=f"n, {self.n}, or more")
        if self.num_written > self.num_answers and self.stream:
            raise FieldError("best_of", "chooses among whole answers, which streams are not", value=self.best_of)
        fields = self.sampling_fields()
        fields["n"] = self.num_written
        fields["max_tokens"] = self.max_tokens or USUAL_MAX_TOKENS
        fields["prompt_logprobs"] = self.num_prompt_logprobs
        # The best are found by their logprobs.
        fields["logprobs"] = 0 if self.logprobs is None and self.num_written > self.num_answers else self.logprobs
        return fields
