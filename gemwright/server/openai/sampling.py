"""Fields of sampling and structured output that OpenAI's routes share, and the SamplingParams they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from gemwright.errors import RequestError, UnsupportedError
from gemwright.server.errors import FieldError
from gemwright.server.fields import Body, Part, honored, ignored, refused

SEED_RANGE = 1 << 64

_NAME = re.compile(r"(\w*)[: ]*(.*)", re.DOTALL)


class StreamOptions(Part):
    """How a stream ends."""

    include_usage: bool | None = honored(None, "a last chunk with the token counts")
    continuous_usage_stats: bool | None = honored(None, "token counts with every chunk")
    include_obfuscation: bool | None = ignored("padding against eavesdroppers; there is none")


class JsonSchemaFormat(Part):
    """The schema of a response_format."""

    name: str | None = ignored("a label")
    description: str | None = ignored("a label")
    schema_: dict[str, Any] | bool | None = honored(None, "the schema of the answer", alias="schema")
    strict: bool | None = ignored("a schema is always kept to")


class ResponseFormat(Part):
    """What an answer must look like, in OpenAI's words."""

    type: Literal["text", "json_object", "json_schema"] = honored(...)
    json_schema: JsonSchemaFormat | None = honored(None)


class StructuredOutputs(Part):
    """What an answer must look like, in vLLM's words: one of these."""

    json_: dict[str, Any] | str | None = honored(None, "a JSON schema", alias="json")
    regex: str | None = honored(None)
    choice: list[str] | None = honored(None)
    grammar: str | None = honored(None, "Lark or GBNF")
    json_object: bool | None = honored(None)
    structural_tag: Any = refused("structural tags are not supported")
    disable_any_whitespace: Any = refused("whitespace is the model's choice", False)
    disable_additional_properties: Any = refused("write additionalProperties into the schema", False)
    whitespace_pattern: Any = refused("whitespace is the model's choice")


Number = int | float


class SamplingBody(Body):
    """The fields that chat and text completions share."""

    model: str | None = honored(None, "one of /v1/models; left out, the one that is served")
    temperature: Number | None = honored(None, "left out: the model's own; 0 is greedy", ge=0)
    top_p: Number | None = honored(None, gt=0, le=1)
    top_k: int | None = honored(None, "0 or -1 is off", ge=-1)
    min_p: Number | None = honored(None, ge=0, le=1)
    n: int | None = honored(None, "answers", ge=1)
    seed: int | None = honored(None, "any integer; repeats an answer whatever shares the batch")
    stop: str | list[str] | None = honored(None)
    stop_token_ids: list[int] | None = honored(None)
    stream: bool | None = honored(None)
    stream_options: StreamOptions | None = honored(None)
    frequency_penalty: Number | None = honored(None, ge=-2, le=2)
    presence_penalty: Number | None = honored(None, ge=-2, le=2)
    repetition_penalty: Number | None = honored(None, gt=0)
    logit_bias: dict[str, Number] | None = honored(None)
    min_tokens: int | None = honored(None, ge=0)
    ignore_eos: bool | None = honored(None)
    bad_words: list[str] | None = honored(None)
    allowed_token_ids: list[int] | None = honored(None)
    prompt_logprobs: int | None = honored(None, "not in streams", ge=0)
    response_format: ResponseFormat | None = honored(None)
    structured_outputs: StructuredOutputs | None = honored(None)
    priority: int | None = honored(None, "lower runs first")
    request_id: str | None = honored(None, "goes into the answer's id and the log", max_length=200)
    cache_salt: str | None = honored(None, "prompts are shared within one salt alone")
    return_token_ids: bool | None = honored(None)
    user: str | None = ignored("a label")
    safety_identifier: Any = ignored("a label")
    metadata: Any = ignored("a label")
    service_tier: Any = ignored("there is one")
    prompt_cache_key: Any = ignored("prefixes are found by content")
    prompt_cache_retention: Any = ignored("prefixes stay until their place is needed")
    prompt_cache_options: Any = ignored("prefixes are found by content")
    skip_special_tokens: Any = refused("special tokens are never put into text", True)
    spaces_between_special_tokens: Any = refused("special tokens are never put into text", True)
    include_stop_str_in_output: Any = refused("a stop string is never part of the answer", False)
    truncate_prompt_tokens: Any = refused("a prompt is never cut")
    logprob_token_ids: Any = refused("logprobs of chosen ids are not offered")
    use_beam_search: Any = refused("there is no beam search", False)
    length_penalty: Any = refused("there is no beam search", 1, 1.0)
    logits_processors: Any = refused("code of a client is not run")
    kv_transfer_params: Any = refused("caches are not transferred")
    vllm_xargs: Any = refused("not known here")

    def sampling_fields(self) -> dict[str, Any]:
        """Return the fields of SamplingParams that the client set. Raises FieldError for two constraints at once."""
        fields: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("temperature", "top_p", "min_p", "n", "stop", "stop_token_ids", "frequency_penalty"),
                *("presence_penalty", "repetition_penalty", "logit_bias", "min_tokens", "ignore_eos", "bad_words"),
                *("allowed_token_ids", "prompt_logprobs"),
            )
        }
        fields["top_k"] = 0 if self.top_k == -1 else self.top_k
        # OpenAI takes any integer; the same one always means the same.
        fields["seed"] = None if self.seed is None else self.seed % SEED_RANGE
        if self.stream and self.prompt_logprobs is not None:
            raise FieldError("prompt_logprobs", "are not given in streams", value=self.prompt_logprobs)
        wanted = {**_of_format(self.response_format), **_of_outputs(self.structured_outputs)}
        if self.response_format is not None and self.structured_outputs is not None and wanted:
            raise FieldError("structured_outputs", "stands beside response_format", remedy="leave one of them out")
        return {**fields, **wanted}

    @contextmanager
    def naming_constraints(self) -> Iterator[None]:
        """Raise what the engine says against a constraint under the name of the field that it came in."""
        try:
            yield
        except (RequestError, UnsupportedError) as error:
            name, what = _NAME.match(error.what).groups()  # type: ignore[union-attr]  # it matches everything
            field = self._constraint_fields().get(name)
            if error.what.startswith("two constraints"):
                field = "structured_outputs" if self.response_format is None else "response_format"
                what = "stands beside tools that must be called or are strict"
            if field is None:
                raise
            facts = {"value": error.value, "limit": error.limit, "remedy": error.remedy}
            raise FieldError(field, what or "cannot be used", **facts) from error

    def _constraint_fields(self) -> dict[str, str]:
        """Return the fields of constraints by what the engine calls them."""
        if self.response_format is not None and self.response_format.type != "text":
            return {"json_schema": "response_format.json_schema.schema", "json_object": "response_format"}
        names = {"json_schema": "json", **{name: name for name in ("regex", "choice", "grammar", "json_object")}}
        return {name: f"structured_outputs.{field}" for name, field in names.items()}


def _of_format(asked: ResponseFormat | None) -> dict[str, Any]:
    if asked is None:
        return {}
    if asked.json_schema is not None and asked.type != "json_schema":
        raise FieldError(
            "response_format.json_schema", f"goes not with type {asked.type}", remedy="send type json_schema"
        )
    if asked.type == "text":
        return {}
    if asked.type == "json_object":
        return {"json_object": True}
    if asked.json_schema is None or asked.json_schema.schema_ is None:
        raise FieldError("response_format.json_schema.schema", "is missing", remedy="send the schema")
    return {"json_schema": _schema(asked.json_schema.schema_, "response_format.json_schema.schema")}


def _schema(schema: dict[str, Any] | bool | str, field: str) -> dict[str, Any] | str:
    if isinstance(schema, bool):
        raise FieldError(field, "is no object", value=schema)
    return schema


def _of_outputs(asked: StructuredOutputs | None) -> dict[str, Any]:
    if asked is None:
        return {}
    found = {
        "json_schema": asked.json_,
        "regex": asked.regex,
        "choice": asked.choice,
        "grammar": asked.grammar,
        "json_object": asked.json_object or None,
    }
    named = {name: value for name, value in found.items() if value is not None}
    if len(named) > 1:
        raise FieldError("structured_outputs", "asks for several things", value=", ".join(named), limit="one of them")
    return named
