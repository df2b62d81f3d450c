"""Our tokens and logits beside transformers', on the same file, each loaded by its own loader.

The reference computes with eager attention. In float32 the rule is: greedy tokens equal, except where the reference
itself has a near tie, and no logit further off than TOLERANCE of its row's spread (maximum minus minimum). bfloat16
rounds so coarsely that two ways of computing the same model differ; there the rule is that we differ from the reference
by at most ROOM times what it differs from itself with another attention (rms over all logits).
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemwright.engine.llm import LLM
from gemwright.engine.request import SamplingParams
from gemwright.errors import RequestError, UnsupportedError
from gemwright.loading.resolve import resolve_model
from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec
from gemwright.testing.logits import logit_rows
from gemwright.testing.prompts import builtin_prompts

Logits = NDArray[np.float32]
Prompt = str | Sequence[int]

TOLERANCE = 1e-4
"""Of the spread of the reference's row: the largest logit difference in float32, and what counts as a near tie."""
ROOM = 1.5
"""In bfloat16: our rms difference over the reference's own."""
_PLACEHOLDER_KEYS = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id")
_SLICE_BYTES = 256 << 20
"""Logits of the reference held at once."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where we and the reference part: the token each finds best, and both logits of both."""

    position: int
    """Of the token whose row of logits it is, in prompt and answer together."""
    our_token: int
    reference_token: int
    our_logits: tuple[float, float]
    """Ours, of our token and of the reference's."""
    reference_logits: tuple[float, float]
    """The reference's, of our token and of its own."""
    error: float
    """The largest difference in the row, as a part of the reference row's spread."""


@dataclass(frozen=True, slots=True)
class PromptResult:
    """What came out for one prompt. Errors are parts of the spread; rms values are in logits."""

    name: str
    num_prompt_tokens: int
    num_tokens: int
    num_equal_tokens: int
    num_near_ties: int
    """Tokens that differ where the reference's own best two are nearly equal."""
    largest_error: float
    rms: float
    reference_rms: float | None
    """How far the reference is from itself; None in float32."""
    difference: Difference | None
    """The first beyond the tolerance; in bfloat16 the first other token, which is no failure by itself."""


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict over all prompts."""

    model: str
    dtype: str
    transformers: str
    prompts: tuple[PromptResult, ...]
    passed: bool
    rms: float
    """Pooled over all prompts' logits."""
    reference_rms: float | None


def verify(
    model: str | None = None,
    *,
    prompts: Sequence[tuple[str, Prompt]] | None = None,
    max_tokens: int = 32,
    dtype: str = "float32",
    revision: str | None = None,
    offline: bool = False,
    on_prompt: Callable[[PromptResult], None] | None = None,
    on_load: Callable[[str], None] | None = None,
    **engine_options: Any,
) -> Report:
    """Compare `max_tokens` greedy tokens and all logits of every (name, prompt); left out, of built-in prompts.

    Both get the ids of our tokenizer. `on_prompt` sees each result as it comes, `on_load` what is being loaded.
    Raises UnsupportedError where transformers is missing, too old, or reads the file as another model."""
    SamplingParams(max_tokens=max_tokens)
    version = _check_transformers()
    say = on_load or (lambda _: None)
    say("loading the model in Gemwright")
    # Logits are computed in the cache beside the engine's own accounts of it, so it may not look for prefixes there.
    engine_options |= {"dtype": dtype, "max_num_seqs": 1, "prefix_caching": False}
    llm = LLM(model, revision=revision, offline=offline, **engine_options)
    path = resolve_model(model, revision=revision, offline=offline)
    encoded = [
        (name, llm.encode(prompt) if isinstance(prompt, str) else list(prompt)) for name, prompt in prompts or ()
    ]
    for name, ids in encoded:
        _check_room(llm, name, ids, max_tokens)
    slowly = ", which takes long for GGUF" if path.suffix == ".gguf" else ""
    say(f"loading it in transformers, by its own loader{slowly}")
    reference = Reference(path, llm.engine.dtype)
    reference.check_settings(llm.spec)
    if prompts is None:
        encode = None if llm.tokenizer is None else llm.encode
        longest = llm.engine.max_model_len - max_tokens
        encoded = builtin_prompts(llm.spec, encode, longest=longest, excluded=reference.placeholder_ids)
    if not encoded:
        raise RequestError("no built-in prompt fits", value=f"{max_tokens} tokens", remedy="lower --max-tokens")
    for name, ids in encoded:
        if reference.placeholder_ids & set(ids):
            raise RequestError(
                f"prompt {name!r} holds the placeholder of an image, a sound or a video, and verify compares text",
                value=sorted(reference.placeholder_ids & set(ids)),
                remedy="leave it out",
            )
    # transformers' sdpa ignores the attention softcap, so there its own difference is that of bfloat16 and float32.
    yardstick = None
    if llm.engine.dtype == "bfloat16":
        has_softcap = any(layer.attention_softcap is not None for layer in llm.spec.layers)
        yardstick = Reference(path, "float32") if has_softcap else reference.with_sdpa()
    results = []
    for name, ids in encoded:
        results.append(_compare(llm, reference, yardstick, name, ids, max_tokens))
        if on_prompt is not None:
            on_prompt(results[-1])
    rms = _pooled(results, [result.rms for result in results])
    reference_rms = None
    if yardstick is None:
        passed = all(result.difference is None for result in results)
    else:
        reference_rms = _pooled(results, [result.reference_rms or 0.0 for result in results])
        passed = rms <= ROOM * reference_rms
    return Report(llm.model, llm.engine.dtype, version, tuple(results), passed, rms, reference_rms)


class Reference:
    """A model in the hands of transformers."""

    def __init__(self, path: Path, dtype: str) -> None:
        try:
            self.model, loaded = _load_in_transformers(path, dtype)
        except Exception as error:
            raise UnsupportedError(
                "transformers cannot load this model, so there is nothing to compare with",
                value=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
                remedy="verify the safetensors checkpoint" if path.suffix == ".gguf" else None,
            ) from error
        for problem in ("missing_keys", "mismatched_keys"):
            if loaded[problem]:
                raise UnsupportedError(
                    "transformers did not find all of this model's tensors, so it is no reference for it",
                    value=f"{problem}: {', '.join(map(str, sorted(loaded[problem])[:3]))}",
                )
        self.model.eval()
        self.attention = "eager"
        self.placeholder_ids = frozenset(
            value
            for name, value in self.model.config.to_dict().items()
            if name in _PLACEHOLDER_KEYS and isinstance(value, int)
        )
        """Ids that stand for an image, a sound or a video: its Gemma 4 gives them no embedding of their own."""

    def with_sdpa(self) -> Reference:
        """Return the same model computing with torch's own attention."""
        other = object.__new__(Reference)
        other.model, other.attention, other.placeholder_ids = self.model, "sdpa", self.placeholder_ids
        return other

    def check_settings(self, spec: ModelSpec) -> None:
        """Raise UnsupportedError where transformers read other settings from a GGUF file than we did.

        It knows few of GGUF's keys: the RoPE scaling of Gemma 3, for one, is lost on it, and then it runs another
        model. For config.json it defines what is right, and there is nothing to check.
        """
        settings = self.model.config.to_dict()
        if settings.pop("quantization_config", {}).get("quant_method") != "gguf":
            return
        theirs = read_config(settings, source="transformers' settings", allow_unknown_keys=True)
        names = ("hidden_size", "vocab_size", "embedding_scale", "final_softcap", "tied_head", "per_layer_inputs")
        pairs = [(name, getattr(spec, name), getattr(theirs, name)) for name in names]
        pairs += [
            (f"layer {ours.index}: {name}", getattr(ours, name), getattr(their, name))
            for ours, their in zip(spec.layers, theirs.layers, strict=False)
            for name in ours.__dataclass_fields__
        ]
        for name, ours, their in pairs:
            if ours != their:
                raise UnsupportedError(
                    f"transformers reads another model from this GGUF file ({name}), so it is no reference for it",
                    value=f"transformers: {their}",
                    limit=f"the file: {ours}",
                    remedy="verify the safetensors checkpoint",
                )

    def greedy_tokens(self, ids: Sequence[int], count: int) -> list[int]:
        """Return `count` greedy tokens after `ids`, past stop ids but not past a placeholder, with its own cache."""
        import torch

        tokens: list[int] = []
        new, cache = list(ids), None
        with torch.inference_mode():
            while len(tokens) < count:
                output = self.model(torch.tensor([new]), cache=cache, use_cache=True, logits_to_keep=1)
                cache = output.cache
                new = [int(output.logits[0, -1].argmax())]
                tokens += new
                if new[0] in self.placeholder_ids:
                    break
        return tokens

    def logits(self, ids: Sequence[int], begin: int, end: int) -> Logits:
        """Return float32 logits [end - begin, V] of these positions, all of `ids` computed in one pass."""
        import torch

        self.model.set_attn_implementation(self.attention)
        with torch.inference_mode():
            output = self.model(torch.tensor([list(ids)]), use_cache=False, logits_to_keep=torch.arange(begin, end))
        logits: Logits = output.logits[0].float().numpy()
        return logits


def _load_in_transformers(path: Path, dtype: str) -> tuple[Any, dict[str, Any]]:
    """Return the model and what transformers says about keys that were missing or did not fit."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True}
    if path.suffix == ".gguf":
        options["gguf_file"] = path.name
        path = path.parent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Given beforehand, since reading a GGUF file's settings takes ten seconds and would be done twice.
        config = transformers.AutoConfig.from_pretrained(path, **options)
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=getattr(torch, dtype),
            attn_implementation="eager",
            # The grouped products that transformers prefers for experts refuse odd widths in bfloat16.
            experts_implementation="eager",
            output_loading_info=True,
            **options,
        )
    return model, loaded


def _compare(
    llm: LLM, reference: Reference, yardstick: Reference | None, name: str, ids: Sequence[int], max_tokens: int
) -> PromptResult:
    expected = reference.greedy_tokens(ids, max_tokens)
    known = [*ids, *expected[:-1]]
    ours = logit_rows(llm, known)
    step = max(1, _SLICE_BYTES // (4 * llm.spec.vocab_size))
    largest_error, squares, reference_squares = 0.0, 0.0, 0.0
    first: Difference | None = None
    answer: list[tuple[Logits, Logits]] = []
    for begin in range(0, len(known), step):
        end = min(begin + step, len(known))
        rows = reference.logits(known, begin, end)
        if yardstick is not None:
            reference_squares += _sum_of_squares(yardstick.logits(known, begin, end), rows)
        for position, theirs in enumerate(rows, start=begin):
            row = next(ours)
            error = _error(row, theirs)
            largest_error = max(largest_error, error)
            squares += _sum_of_squares(row, theirs)
            if first is None and yardstick is None and not error < TOLERANCE:
                first = _difference(position, row, theirs)
            if position >= len(ids) - 1:
                answer.append((row.copy(), theirs.copy()))
    num_equal, num_ties, other = _compare_tokens(llm, ids, expected, answer)
    if first is None or (other is not None and other.position < first.position):
        first = other
    size = len(known) * llm.spec.vocab_size
    return PromptResult(
        name,
        len(ids),
        len(expected),
        num_equal,
        num_ties,
        largest_error,
        math.sqrt(squares / size),
        None if yardstick is None else math.sqrt(reference_squares / size),
        first,
    )


def _compare_tokens(
    llm: LLM, ids: Sequence[int], expected: Sequence[int], answer: Sequence[tuple[Logits, Logits]]
) -> tuple[int, int, Difference | None]:
    """Generate freely, and after a token that differs go on from the reference's.

    Returns the number of equal tokens, of near ties, and the first difference that is none.
    """
    first = None
    num_equal = num_ties = done = 0
    while done < len(expected):
        params = SamplingParams(max_tokens=len(expected) - done, temperature=0.0, ignore_eos=True)
        (completion,) = llm.generate([[*ids, *expected[:done]]], params)
        for token in completion.token_ids:
            done += 1
            if token == expected[done - 1]:
                num_equal += 1
                continue
            ours, theirs = answer[done - 1]
            if theirs.max() - theirs[token] <= TOLERANCE * _spread(theirs):
                num_ties += 1
            elif first is None:
                first = _difference(len(ids) + done - 2, ours, theirs, token, expected[done - 1])
            break
    return num_equal, num_ties, first


def _difference(
    position: int, ours: Logits, theirs: Logits, our_token: int | None = None, reference_token: int | None = None
) -> Difference:
    our_token = int(ours.argmax()) if our_token is None else our_token
    reference_token = int(theirs.argmax()) if reference_token is None else reference_token
    return Difference(
        position,
        our_token,
        reference_token,
        (float(ours[our_token]), float(ours[reference_token])),
        (float(theirs[our_token]), float(theirs[reference_token])),
        _error(ours, theirs),
    )


def _error(ours: Logits, theirs: Logits) -> float:
    return float(np.abs(ours - theirs).max() / _spread(theirs))


def _spread(row: Logits) -> float:
    return float(row.max() - row.min())


def _sum_of_squares(ours: Logits, theirs: Logits) -> float:
    return float(np.square((ours - theirs).astype(np.float64)).sum())


def _pooled(results: Sequence[PromptResult], rms: Sequence[float]) -> float:
    """Return the rms over all prompts from that of each."""
    rows = [result.num_prompt_tokens + max(result.num_tokens, 1) - 1 for result in results]
    return math.sqrt(sum(value * value * count for value, count in zip(rms, rows, strict=True)) / sum(rows))


def _check_room(llm: LLM, name: str, ids: Sequence[int], max_tokens: int) -> None:
    llm.core.check(ids, SamplingParams(max_tokens=max_tokens, temperature=0.0))
    if len(ids) + max_tokens > llm.engine.max_model_len:
        raise RequestError(
            f"prompt {name!r} and its answer are too long",
            value=f"{len(ids)} and {max_tokens} tokens",
            limit=f"{llm.engine.max_model_len} tokens",
            remedy="shorten the prompt or lower --max-tokens",
        )


def _check_transformers() -> str:
    """Return the version of transformers; UnsupportedError where it cannot serve."""
    remedy = "pip install 'gemwright[verify]'"
    if not sys.stderr.isatty():
        # Some of its progress bars ask nothing but this, once, when they are imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        import torch  # noqa: F401  # transformers without torch holds no model
        import transformers
    except ImportError as error:
        raise UnsupportedError("verify needs transformers and torch", value=str(error), remedy=remedy) from error
    version: str = transformers.__version__
    # As in pyproject.toml: from here on the model's cache argument has its present name.
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < (5, 24):
        raise UnsupportedError("transformers is too old", value=version, limit="5.24 or newer", remedy=remedy)
    return version
