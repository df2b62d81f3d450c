"""What settings ask for that a model, a device or an engine cannot have: refused once, before a plan is made.

Apart from `PlanSettings`, which knows no model, and from the engines' rules, which are asked again and again with other
lengths and numbers of requests.
"""

from __future__ import annotations

from typing import Final

from gemwright.errors import RequestError, show_both_bytes
from gemwright.planner.media import audio_tokens, hears_sound, image_tokens
from gemwright.planner.settings import PlanSettings, flag
from gemwright.spec.model_spec import ModelSpec

MOST_AT_ONCE: Final = 1_000_000
"""Requests, slots, adapters, tokens of a step: where the inverse questions stop counting, too."""
_COUNTED: Final = (
    "max_num_seqs", "parallel", "num_loras", "max_num_batched_tokens", "ubatch_size", "num_speculative_tokens",
)  # fmt: skip
_MOST_VLLM_RANK: Final = 512
"""Of --max-lora-rank."""


def check_against_model(spec: ModelSpec, settings: PlanSettings) -> None:
    """Raise RequestError for what has no effect on this model, and for what cannot be.

    Memory below the device's is a share of it and fine; above it there is none.
    """
    _check_memory(settings)
    _check_media(spec, settings)
    _check_numbers(spec, settings)
    if settings.engine == "vllm":
        _check_vllm(spec, settings)


def _check_memory(settings: PlanSettings) -> None:
    device, memory = settings.device, settings.memory_bytes
    if device is None or device.memory_bytes is None or memory is None or memory <= device.memory_bytes:
        return
    asked, there = show_both_bytes(memory, device.memory_bytes)
    raise RequestError(
        f"{device.name} has less memory than may be taken",
        value=asked,
        limit=there,
        remedy="lower --memory or --assert-fits, or leave the memory out: that of the device is meant",
    )


def _check_media(spec: ModelSpec, settings: PlanSettings) -> None:
    asked = (
        ("images", "--images", settings.num_images, image_tokens(spec, settings) is not None),
        ("sound", "--audio-seconds", settings.audio_seconds, hears_sound(spec)),
    )
    for what, name, value, is_taken in asked:
        if value and not is_taken:
            raise RequestError(
                f"this model takes no {what}",
                value=f"{name} {value:g}",
                remedy=f"leave {name} out, or name a model that takes {what}",
            )
        if value and settings.language_model_only:
            raise RequestError(
                f"--language-model-only leaves out the tower that {name} needs",
                value=f"{name} {value:g}",
                remedy=f"leave {name} or --language-model-only out",
            )
    _check_image_tokens(spec, settings)
    each, sound = image_tokens(spec, settings) or 0, audio_tokens(spec, settings)
    needed, length = settings.num_images * each + sound, settings.max_model_len or spec.max_context
    if needed > length:
        raise RequestError(
            "the images and the sound of one request are longer than a request may be",
            value=f"{needed:,} tokens: {settings.num_images:,} x {each:,} of images, {sound:,} of sound",
            limit=f"{length:,} tokens",
            remedy="lower --images, --image-tokens or --audio-seconds"
            + ("" if length == spec.max_context else ", or raise --max-model-len"),
        )


def _check_image_tokens(spec: ModelSpec, settings: PlanSettings) -> None:
    if settings.image_tokens is None:
        return
    fixed = image_tokens(spec, PlanSettings())
    if spec.family != "gemma4" and fixed not in (None, settings.image_tokens):
        raise RequestError(
            "every image of this model has the same number of tokens",
            value=f"--image-tokens {settings.image_tokens}",
            limit=str(fixed),
            remedy="leave --image-tokens out",
        )
    # vLLM's profile run encodes images whether or not a request brings any.
    is_profiled = settings.engine == "vllm" and fixed is not None and not settings.language_model_only
    if not settings.num_images and not is_profiled:
        raise RequestError(
            "--image-tokens is the size of images, and none is planned for",
            value=f"--image-tokens {settings.image_tokens}",
            remedy="add --images 1, or leave --image-tokens out",
        )


def _check_numbers(spec: ModelSpec, settings: PlanSettings) -> None:
    for name in _COUNTED:
        count = getattr(settings, name)
        if count is not None and count > MOST_AT_ONCE:
            raise RequestError(
                "more than can be planned",
                value=f"{flag(name)} {count}",
                limit=MOST_AT_ONCE,
                remedy=f"lower {flag(name)}",
            )
    both = settings.parallel, settings.max_num_seqs
    if None not in both and both[0] != both[1]:
        raise RequestError(
            "--parallel and --max-num-seqs are two names of one number",
            value=f"{both[0]} and {both[1]}",
            remedy="leave one of them out",
        )
    if settings.lora_rank is not None:
        limit = min(spec.hidden_size, _MOST_VLLM_RANK if settings.engine == "vllm" else spec.hidden_size)
        if settings.lora_rank > limit:
            why = "--max-lora-rank of vLLM" if limit == _MOST_VLLM_RANK else "the width of the model"
            raise RequestError(
                "no adapter has such a rank",
                value=f"--lora-rank {settings.lora_rank}",
                limit=f"{limit}, {why}",
                remedy="lower --lora-rank",
            )


def _check_vllm(spec: ModelSpec, settings: PlanSettings) -> None:
    from gemwright.planner.engines.vllm_overheads import token_budget

    if settings.block_size is not None and settings.block_size > spec.max_context:
        raise RequestError(
            "a block is longer than any request",
            value=f"--block-size {settings.block_size}",
            limit=f"{spec.max_context} tokens",
            remedy="use --block-size 16, or leave it out",
        )
    batches, most = settings.in_flight_batches, max(2, spec.num_layers)
    if batches is not None and batches > most:
        raise RequestError(
            "more batches in flight than a pipeline has stages",
            value=f"--in-flight-batches {batches}",
            limit=f"{most}: no more stages than layers",
            remedy="lower --in-flight-batches, or leave it out: 1 before 0.26, else 2",
        )
    budget, source = token_budget(spec, settings)
    if settings.max_num_seqs is not None and settings.max_num_seqs > budget:
        raise RequestError(
            "vLLM does not start with fewer tokens in a step than requests at once",
            value=f"--max-num-seqs {settings.max_num_seqs}",
            limit=f"{budget} tokens ({source})",
            remedy=f"lower --max-num-seqs, or add --max-num-batched-tokens {settings.max_num_seqs}",
        )
