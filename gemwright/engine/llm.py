"""LLM: load a model and generate, in one process and one thread. What `gemwright run` is made of."""

from __future__ import annotations

import functools
import itertools
import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from gemwright.config import EngineConfig
from gemwright.engine.chat_answer import ChatAnswer
from gemwright.engine.chat_request import ChatRequest, base_model, render_chat
from gemwright.engine.core import EngineCore, EngineLimits
from gemwright.engine.measured import EngineMeasurement, measure
from gemwright.engine.model_defaults import sampling_defaults, stop_ids, suppressed_ids
from gemwright.engine.pieces import Piece, PieceCutter
from gemwright.engine.request import Request, SamplingParams
from gemwright.engine.result import Choice, Completion, Memory, Timing, Usage
from gemwright.engine.start import start_engine
from gemwright.errors import RequestError, UnsupportedError
from gemwright.loading.checkpoint import open_checkpoint
from gemwright.loading.default_model import cache_folder
from gemwright.loading.resolve import resolve_model
from gemwright.memory.machine import process_bytes
from gemwright.models.weights import Progress
from gemwright.text.detokenizer import Detokenizer
from gemwright.text.grammar import ConstraintCompiler
from gemwright.text.template import ChatTemplate, RenderedPrompt
from gemwright.text.template_choice import TemplateChoice, names_of
from gemwright.text.tokenizer import load_tokenizer
from gemwright.text.tool_syntax import CALL_OPEN

Prompt = str | Sequence[int] | RenderedPrompt
"""Text, token ids used as given, or a rendered chat."""


class LLM:
    """A loaded model.

    `model` is a model of the hub, a folder with config.json and safetensors, or a .gguf file; None is the default
    model. What is not in the hub's local cache is fetched, unless `offline`. `chat_template` goes before the model's
    own: a name of text.template.BUILT_IN, or a file. `must_chat` refuses a base model before its weights are read.
    Engine options are the fields of EngineConfig.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        revision: str | None = None,
        offline: bool = False,
        chat_template: str | None = None,
        must_chat: bool = False,
        progress: Progress | None = None,
        **engine_options: Any,
    ) -> None:
        started_at = time.perf_counter()
        config = EngineConfig(**engine_options)
        path = resolve_model(
            None if model is None else str(model),
            revision=revision,
            offline=offline,
            allow_unknown_config_keys=config.allow_unknown_config_keys,
        )
        checkpoint = open_checkpoint(path, allow_unknown_config_keys=config.allow_unknown_config_keys, must_answer=True)
        self.model = path.name if model is None else str(model)
        self.spec = checkpoint.spec
        self.generation_config = checkpoint.generation_config
        eos_token_ids = stop_ids(self.generation_config, self.spec.eos_token_ids)
        suppressed = suppressed_ids(self.generation_config)
        self._sampling_defaults = sampling_defaults(self.generation_config)
        tokenizer = load_tokenizer(
            checkpoint.folder, gguf_metadata=checkpoint.gguf_metadata, cache_dir=cache_folder() / "tokenizers"
        )
        self.tokenizer = tokenizer
        self._templates = None
        if tokenizer is not None:
            self._templates = TemplateChoice(
                tokenizer=tokenizer,
                folder=checkpoint.folder,
                gguf_metadata=checkpoint.gguf_metadata,
                names=names_of(path),
                stop_ids=eos_token_ids,
                is_large=self.spec.per_layer_inputs is None,
                chosen=chat_template,
            )
            eos_token_ids = self._templates.all_stop_ids()
        elif chat_template is not None or must_chat:
            raise UnsupportedError("a chat needs a tokenizer, and this checkpoint has none", value=self.model)
        if (chat_template is not None or must_chat) and self.chat_template is None:
            raise base_model(self.model)
        self.engine = start_engine(checkpoint, config, progress)
        self.core = EngineCore(
            self.engine.runner,
            EngineLimits(
                self.engine.max_model_len,
                self.spec.vocab_size,
                self.engine.step_tokens,
                config.max_num_seqs,
                config.prefix_caching,
            ),
            eos_token_ids,
            None if tokenizer is None else lambda: Detokenizer(tokenizer),
            None if tokenizer is None else tokenizer.encode,
            None if tokenizer is None else ConstraintCompiler(tokenizer, self.spec.vocab_size, eos_token_ids),
            suppressed,
        )
        self.load_seconds = time.perf_counter() - started_at

    @functools.cached_property
    def chat_template(self) -> ChatTemplate | None:
        """What renders chats; None for a base model and where there is no tokenizer. Raises as TemplateChoice.load."""
        return None if self._templates is None else self._templates.load()

    def render_chat(self, messages: Any, **choices: Any) -> RenderedPrompt:
        """Return the prompt of a conversation; arguments and errors are those of ChatTemplate.render.

        Raises UnsupportedError for a base model, and for media, which this version cannot read.
        """
        return render_chat(self.chat_template, self.model, messages, **choices)

    def chat(
        self,
        messages: Any,
        params: SamplingParams | None = None,
        *,
        tools: Any = None,
        tool_choice: Any = None,
        parallel_tool_calls: bool | None = None,
        enable_thinking: bool | None = None,
        continue_final_message: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
    ) -> Completion:
        """Answer a conversation; the completion's `message` has thought, content and calls.

        The arguments are the fields of ChatRequest, and its errors may be raised besides those of `generate`.
        """
        request = ChatRequest(
            messages=messages,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            enable_thinking=enable_thinking,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )
        prompt, params = self.prepare_chat(request, params or self.sampling_params())
        (completion,) = self.generate(prompt, params, cache_salt=cache_salt)
        return completion

    def prepare_chat(self, request: ChatRequest, params: SamplingParams) -> tuple[RenderedPrompt, SamplingParams]:
        """Return the prompt and the parameters that answer a chat, for `generate`, `pieces` and `add`. Raises as
        ChatRequest.prepared."""
        return request.prepared(self.chat_template, self.model, params)

    def sampling_params(self, **overrides: Any) -> SamplingParams:
        """Return the model's own sampling defaults with `overrides`; greedy where the model names none.

        Raises RequestError for a choice that greedy decoding would ignore.
        """
        defaults = self.sampling_defaults()
        greedy = overrides.get("temperature", defaults["temperature"]) == 0
        ignored = [name for name in ("top_k", "top_p", "min_p", "seed") if greedy and overrides.get(name) is not None]
        if ignored:
            raise RequestError(
                f"{ignored[0]} has no effect at temperature 0",
                value=overrides[ignored[0]],
                remedy=f"give --temperature above 0, or leave --{ignored[0].replace('_', '-')} out",
            )
        return SamplingParams(**{**defaults, **overrides})

    def measure(self, *, runtime_bytes: int | None = None) -> EngineMeasurement:
        """Return the plan beside what the engine and its process hold now. `runtime_bytes` is what the process is known
        to take beside it; None: as seen elsewhere."""
        vocab_size = 0 if self.tokenizer is None else self.spec.vocab_size
        return measure(self.engine, self.core, vocab_size=vocab_size, runtime_bytes=runtime_bytes)

    def sampling_defaults(self) -> dict[str, Any]:
        """Return the sampling fields that the model's generation config sets; temperature 0 where it names none."""
        return dict(self._sampling_defaults)

    def encode(self, text: str) -> list[int]:
        """Return a prompt's ids with exactly one BOS first, whether or not the text spells it (field case 040)."""
        if self.tokenizer is None:
            raise RequestError(
                "this checkpoint has no tokenizer files, so it takes no text", remedy="give token ids (--token-ids)"
            )
        ids = self.tokenizer.encode(text)
        bos = self.tokenizer.bos_token_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
    ) -> list[Completion]:
        """Answer one or more prompts together and return their completions in order.

        A prompt is text or token ids, ids being used as given. All prompts are checked before any is run. What the
        prefix cache holds is shared within one `cache_salt` only. Raises the first error of a prompt that failed
        (logits that are not finite), after the others are done.
        """
        params = params or self.sampling_params()
        asked = [
            prompt if isinstance(prompt, RenderedPrompt) else self.prompt_ids(prompt) for prompt in _as_list(prompts)
        ]
        for prompt in asked:
            self.core.check(self.prompt_ids(prompt), params)
        started_at = time.perf_counter()
        groups: list[list[Request]] = []
        try:
            for prompt in asked:
                groups.append(self.add(prompt, params, cache_salt=cache_salt))
            while any(not request.is_done for group in groups for request in group):
                self.core.step()
            _raise_errors(groups)
            return [self.completion(group, started_at) for group in groups]
        finally:
            for request in itertools.chain.from_iterable(groups):
                self.core.forget(request)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, cache_salt: str | None = None
    ) -> Iterator[str | Completion]:
        """Answer one prompt: yield its text in pieces as it comes, then the completion.

        Text that a stop string might still cut is held back, so the pieces join to the completion's text. Takes one
        answer (n = 1); closing the iterator aborts the request. Several streams may be read in turns: each step serves
        all of them.
        """
        params = params or self.sampling_params()
        pieces = self.pieces(prompt, params, cache_salt=cache_salt)
        try:
            for piece in pieces:
                if piece.text:
                    yield piece.text
                if piece.completion is not None:
                    yield piece.completion
        finally:
            pieces.close()

    def pieces(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
    ) -> Generator[Piece, None, None]:
        """Answer one prompt and yield what each step adds, an empty piece for a step that read more of the prompt.

        Takes one answer (n = 1); closing the generator aborts the request.
        """
        params = params or self.sampling_params()
        if params.n != 1:
            raise RequestError("a stream is one answer", value=params.n, limit="n = 1", remedy="use generate")
        started_at = time.perf_counter()
        (request,) = self.add(prompt, params, cache_salt=cache_salt)
        cutter = PieceCutter(self.core, [request], lambda: self.completion([request], started_at))
        try:
            while not cutter.is_finished:
                self.core.step()
                _raise_errors([[request]])
                # Cut before it is given out: while the caller has it, other streams' steps may finish this one.
                yield cutter.cut(request)
        finally:
            self.core.forget(request)

    def add(
        self, prompt: Prompt, params: SamplingParams, *, priority: int = 0, cache_salt: str | None = None
    ) -> list[Request]:
        """Queue a prompt in the step loop and return its requests, one an answer. Raises as EngineCore.add does.

        A rendered chat is answered with events, and a constraint of `params` lets it think first if it may.
        """
        make_answer = None
        suppressed: Sequence[int] = ()
        if isinstance(prompt, RenderedPrompt):
            suppressed = self._call_marks if prompt.forbids_calls else ()
            params = params.with_thinking(prompt.thinking, prompt.opens_thought)
            make_answer = functools.partial(self._chat_answer, prompt, params.stop)
        return self.core.add(
            self.prompt_ids(prompt),
            params,
            draw_seed(params),
            priority=priority,
            cache_salt=cache_salt,
            suppressed_token_ids=suppressed,
            make_answer=make_answer,
        )

    @property
    def _call_marks(self) -> tuple[int, ...]:
        """The token that opens a call, where the vocabulary has one: other families write calls as text."""
        mark = None if self.tokenizer is None else self.tokenizer.special_tokens.get(CALL_OPEN)
        return () if mark is None or mark >= self.spec.vocab_size else (mark,)

    def _chat_answer(self, prompt: RenderedPrompt, stop: Sequence[str]) -> ChatAnswer:
        assert self.tokenizer is not None  # it rendered the prompt
        return ChatAnswer(
            self.tokenizer, prompt.dialect, tools=prompt.tools, opens_thought=prompt.opens_thought, stop=stop
        )

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return a prompt's ids: text is encoded, ids are used as given."""
        if isinstance(prompt, RenderedPrompt):
            return list(prompt.token_ids)
        if isinstance(prompt, str):
            if not prompt:
                raise RequestError("the prompt is empty", limit="at least one character", remedy="give a prompt")
            return self.encode(prompt)
        if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Iterable):
            raise RequestError("a prompt is text or a list of token ids", value=repr(prompt)[:80])
        return list(prompt)

    def completion(self, group: Sequence[Request], started_at: float) -> Completion:
        """Return the completion of a prompt's finished requests; `started_at` is in seconds of time.perf_counter."""
        first = group[0]
        num_tokens = sum(len(request.token_ids) for request in group)
        begin = min(request.first_token_at or started_at for request in group)
        seconds = max(request.last_token_at or started_at for request in group) - begin
        later = num_tokens - len(group)
        return Completion(
            model=self.model,
            prompt_token_ids=first.prompt_token_ids,
            choices=tuple(
                Choice(
                    tuple(request.token_ids),
                    self.core.text(request),
                    request.finish_reason,  # type: ignore[arg-type]  # finished: the loop ran to its end
                    None if request.params.logprobs is None else tuple(request.logprobs),
                    self.core.message(request),
                    self.core.stop_string(request),
                )
                for request in group
            ),
            prompt_logprobs=None if first.params.prompt_logprobs is None else tuple(first.prompt_logprobs),
            usage=Usage(len(first.prompt_token_ids), num_tokens, first.num_cached or 0),
            timing=Timing(self.load_seconds, begin - started_at, later / seconds if later and seconds > 0 else None),
            memory=Memory(self.engine.planned_bytes, self.engine.measured_bytes, process_bytes()),
        )


def _raise_errors(groups: Iterable[Iterable[Request]]) -> None:
    for request in itertools.chain.from_iterable(groups):
        if request.error is not None:
            raise request.error


def draw_seed(params: SamplingParams) -> int:
    """Return the seed of the parameters, or a random one."""
    return secrets.randbits(63) if params.seed is None else params.seed


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts; text and a list of ids are one prompt."""
    if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
        return [prompts]
    items = list(prompts)
    return [items] if items and isinstance(items[0], Integral) else items  # type: ignore[list-item,return-value]
