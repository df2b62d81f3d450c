"""The bodies of Ollama's routes, and the objects in them."""

from __future__ import annotations

from typing import Any, Literal

from gemwright.server.errors import FieldError
from gemwright.server.fields import Body, Part, honored, ignored, refused

Number = int | float
Think = bool | Literal["low", "medium", "high", "max"]

_SEED_RANGE = 1 << 64
_LOADING = "how a model is loaded is the server's own"


class Options(Part):
    """How tokens are chosen. What Ollama has no default for here, the model's own settings decide."""

    temperature: Number | None = honored(None, "0 is greedy", ge=0)
    top_k: int | None = honored(None, "0 is off", ge=0)
    top_p: Number | None = honored(None, gt=0, le=1)
    min_p: Number | None = honored(None, ge=0, le=1)
    seed: int | None = honored(None, "-1 draws one")
    num_predict: int | None = honored(None, "0, -1 and -2: until the context ends", ge=-2)
    stop: str | list[str] | None = honored(None)
    repeat_penalty: Number | None = honored(None, "over prompt and answer", gt=0)
    presence_penalty: Number | None = honored(None, ge=-2, le=2)
    frequency_penalty: Number | None = honored(None, ge=-2, le=2)
    repeat_last_n: int | None = honored(
        None, "penalties look at everything, so with one of them only -1 (all) and 0 (no penalties) are taken", ge=-1
    )
    num_ctx: int | None = honored(None, "up to the server's own context, which is what a request gets", ge=1)
    num_keep: Any = ignored("what stays when the context is full; it is never shifted here")
    mirostat: Any = refused("there is no mirostat", 0)
    mirostat_tau: Any = ignored("mirostat is off")
    mirostat_eta: Any = ignored("mirostat is off")
    tfs_z: Any = refused("there is no tail-free sampling", 1, 1.0)
    typical_p: Any = refused("there is no typical sampling", 1, 1.0)
    penalize_newline: Any = refused("penalties spare no token", True)
    embedding_only: Any = refused("the model writes text", False)
    vocab_only: Any = refused("the model writes text", False)
    logits_all: Any = ignored(_LOADING)
    numa: Any = ignored(_LOADING)
    num_batch: Any = ignored(_LOADING)
    num_gpu: Any = ignored(_LOADING)
    main_gpu: Any = ignored(_LOADING)
    low_vram: Any = ignored(_LOADING)
    f16_kv: Any = ignored(_LOADING)
    use_mmap: Any = ignored(_LOADING)
    use_mlock: Any = ignored(_LOADING)
    num_thread: Any = ignored(_LOADING)

    def sampling_fields(self, max_context: int) -> dict[str, Any]:
        """Return the fields of SamplingParams; `max_context` is the server's. Raises FieldError for what it cannot."""
        if self.num_ctx is not None and self.num_ctx > max_context:
            raise FieldError(
                "options.num_ctx",
                "is more than this server has",
                value=self.num_ctx,
                limit=max_context,
                remedy="ask for less, or start the server with a larger --max-model-len",
            )
        penalties = {
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        is_penalized = self.repeat_penalty not in (None, 1) or bool(self.presence_penalty or self.frequency_penalty)
        if self.repeat_last_n == 0:
            penalties = {}
        elif is_penalized and self.repeat_last_n not in (None, -1):
            raise FieldError(
                "options.repeat_last_n", "penalties look at everything", value=self.repeat_last_n, limit="-1 or 0"
            )
        return {
            **penalties,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": None if self.seed in (None, -1) else self.seed % _SEED_RANGE,
            "max_tokens": self.num_predict if self.num_predict is not None and self.num_predict > 0 else None,
            "stop": self.stop,
        }


class AnswerBody(Body):
    """What /api/chat and /api/generate share."""

    model: str = honored(..., "one of /api/tags, with or without :latest")
    stream: bool | None = honored(None, "left out, it is on")
    think: Think | None = honored(None, "left out or false: no thought; all others: think, without degrees")
    format: str | dict[str, Any] | None = honored(None, '"json", or a JSON schema')
    options: Options | None = honored(None)
    logprobs: bool | None = honored(None)
    top_logprobs: int | None = honored(None, "with logprobs", ge=0, le=1000)
    keep_alive: Any = ignored("the model stays loaded as long as the server runs")
    truncate: Any = refused("a prompt is never cut", False)
    shift: Any = refused("the context is never shifted", False)
    debug_render_only: Any = refused("POST /tokenize shows prompts", False)

    def fields(self, max_context: int) -> dict[str, Any]:
        """Return the fields of SamplingParams that the client set. Raises FieldError for what cannot be done."""
        fields = (self.options or Options()).sampling_fields(max_context)
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "needs logprobs", remedy="send logprobs true")
        fields["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
        if isinstance(self.format, dict):
            return {**fields, "json_schema": self.format}
        if self.format not in (None, "", "json"):
            raise FieldError("format", "is no format", value=repr(self.format)[:80], limit="json, or a JSON schema")
        return {**fields, "json_object": True if self.format == "json" else None}

    @property
    def enable_thinking(self) -> bool | None:
        """Whether to think; None where the client does not say."""
        return None if self.think is None else self.think is not False


class MessagePart(Part):
    """A message."""

    role: Literal["system", "user", "assistant", "tool"] = honored(...)
    content: str | None = honored(None)
    thinking: str | None = honored(None, "read again until the next user turn, as the model was trained to")
    tool_calls: list[dict[str, Any]] | None = honored(None)
    tool_name: str | None = honored(None, "which tool answers; left out, the calls before it are taken in order")
    tool_call_id: str | None = honored(None)
    images: Any = refused("this version reads text alone", [])


class OllamaChatBody(AnswerBody):
    """What a client asks of /api/chat."""

    messages: list[MessagePart] | None = honored(None, "none: only asks whether the model is loaded")
    tools: list[dict[str, Any]] | None = honored(None)


class GenerateBody(AnswerBody):
    """What a client asks of /api/generate."""

    prompt: str | None = honored(None, "none: only asks whether the model is loaded")
    system: str | None = honored(None)
    raw: bool | None = honored(None, "the prompt goes to the model as it is, control words and all")
    suffix: Any = refused("Gemma was not trained to fill in between", "")
    template: Any = refused("templates of clients are not run", "")
    context: Any = refused("tokens of earlier answers are not read; send the conversation to /api/chat", [])
    images: Any = refused("this version reads text alone", [])
    width: Any = refused("answers are text", 0)
    height: Any = refused("answers are text", 0)
    steps: Any = refused("answers are text", 0)


class ShowBody(Body):
    """Which model to describe."""

    model: str | None = honored(None)
    name: str | None = honored(None, "the older name of model")
    verbose: bool | None = ignored("all there is to say is said")
    system: Any = ignored("an older way to ask")
    template: Any = ignored("an older way to ask")
    options: Any = ignored("an older way to ask")
