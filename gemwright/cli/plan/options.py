"""The flags of `gemwright plan`, and how they become settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from gemwright.cli.options import (
    debug_option,
    given,
    offline_option,
    option,
    revision_option,
    unknown_keys_option,
)

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)
_UNITS: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_LEAST_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 1 << 50
_MOST_DIGITS: Final = 30


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """An amount of memory with its unit: 24GiB and 24GB differ by 7 %, so that one of them must be said."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes, or fail as a usage error."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is no amount of memory: give 24GiB (1024^3) or 24GB (1000^3)", param, ctx)
        number, unit = match[1], match[2].lower()
        if unit in ("k", "m", "g", "t"):
            self.fail(f"{value!r} is ambiguous: {number}{unit.upper()}iB or {number}{unit.upper()}B?", param, ctx)
        if unit not in _UNITS:
            self.fail(f"{value!r} has an unknown unit: use MiB, GiB, TiB, or MB, GB, TB", param, ctx)
        if len(number) > _MOST_DIGITS:
            self.fail("more digits than any amount of memory has: give 24GiB (1024^3) or 24GB (1000^3)", param, ctx)
        size = int(float(number) * _UNITS[unit]) if "." in number else int(number) * _UNITS[unit]
        if size > _MOST_BYTES:
            self.fail(f"{value!r} is more than any machine has: give at most 1024TiB", param, ctx)
        if not float(number):
            self.fail(f"{value!r} is no memory at all: give 24GiB (1024^3) or 24GB (1000^3)", param, ctx)
        if size < _LEAST_BYTES:
            self.fail(f"{value!r} is {size} bytes, less than 1 MiB: did you mean {number}GiB?", param, ctx)
        return size


class Margins(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """Factors by section: weights=1.1,kv=1.5."""

    name = "margins"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        """Return the mapping, or fail as a usage error."""
        if isinstance(value, dict):
            return value
        try:
            pairs = [(name.strip(), float(factor)) for name, factor in (part.split("=") for part in value.split(","))]
        except ValueError:
            self.fail(f"{value!r} is no list of margins such as weights=1.1,kv=1.5", param, ctx)
        if len(dict(pairs)) < len(pairs):
            self.fail(f"{value!r} names a section twice", param, ctx)
        return dict(pairs)


_OPTIONS = (
    revision_option,
    offline_option,
    unknown_keys_option,
    option("Question", "--engine", "gemwright, vllm, llama.cpp or ollama; left out, gemwright.", default="gemwright"),
    option("Question", "--memory", "What may be taken on each device: 24GiB, or 24GB, which is less.", type=Size()),
    option("Question", "--device-name", 'A known accelerator or processor, such as H100 or "RTX 4090".'),
    option(
        "Question", "--here", "Plan for this machine as it is: its free memory, its GPU if it has one.", is_flag=True
    ),
    option(
        "Question", "--max-model-len", "Longest prompt and answer together; left out, as the engine decides.", type=int
    ),
    option("Question", "--max-num-seqs", "Users at once; left out, as the engine decides.", type=int),
    option("Question", "--prompt-tokens", "Prompt and context that times are told for; left out, 2048.", type=int),
    option("Question", "--mix", "Lengths of requests by quantile, such as p50=2000,p95=8000,max=32000."),
    option("Question", "--shared-prefix", "Tokens at the start that all requests of --mix have in common.", type=int),
    option(
        "Question",
        "--versus",
        'Flags or a model to compare with, such as "--quantization q4_0"; may be given several '
        "times (the variable holds one).",
        multiple=True,
    ),
    option("Question", "--margin", "Factors for those who want room: weights=1.1,kv=1.5.", type=Margins()),
    option("Model", "--dtype", "What is computed in; left out, auto."),
    option("Model", "--quantization", "Weights as if stored so: bf16, q8_0, q4_0, q4_k_m, w4a16, fp8, nvfp4..."),
    option("Model", "--embedding-quantization", "The same for the embedding and per-layer tables alone, such as q6_k."),
    option("Model", "--kv-cache-dtype", "What the cache is kept in (vLLM: fp8, nvfp4...)."),
    option("Model", "--images", "Images of one request; left out, none.", type=int),
    option("Model", "--image-tokens", "Soft tokens of one image: 70, 140, 280, 560 or 1120; left out, 280.", type=int),
    option("Model", "--audio-seconds", "Sound of one request, in seconds.", type=float),
    option("Model", "--draft", "Run the model's drafter beside it.", is_flag=True),
    option("Model", "--language-model-only", "Leave the towers for images and sound out.", is_flag=True),
    option("Model", "--lora-rank", "LoRA adapters of this rank beside the model.", type=int),
    option("Model", "--num-loras", "How many of them; left out, 1.", type=int),
    option("Engine", "--max-num-batched-tokens", "Tokens of one step.", type=int),
    option("Engine", "--block-size", "Tokens of one K/V block.", type=int),
    option("Engine", "--kv-layout", "gemwright: auto, both or v."),
    option("Engine", "--kernels", "gemwright: which backend computes, as `run` takes it."),
    option("Engine", "--kv-cache-memory-bytes", "gemwright, vLLM: size of the K/V pool.", type=Size()),
    option("Engine", "--engine-version", "The version to plan for, such as 0.33.0; left out, the newest known."),
    option("Engine", "--tensor-parallel-size", "Devices that the model is split over.", type=int),
    option("Engine", "--available-kv-bytes", "vLLM: what its log calls available K/V cache memory.", type=Size()),
    option("Engine", "--gpu-memory-utilization", "vLLM: the share of memory it takes.", type=float),
    option("Engine", "--in-flight-batches", "vLLM: batches in flight; left out, by version.", type=int),
    option("Engine", "--num-speculative-tokens", "vLLM: tokens a drafter proposes.", type=int),
    option("Engine", "--ctx-size", "llama.cpp: -c.", type=int),
    option("Engine", "--parallel", "llama.cpp: -np, slots.", type=int),
    option("Engine", "--ubatch-size", "llama.cpp: -ub.", type=int),
    option("Engine", "--kv-unified/--no-kv-unified", "llama.cpp: one buffer for all slots.", default=None),
    option("Engine", "--swa-full", "llama.cpp: sliding layers at full length.", is_flag=True),
    option("Engine", "--cache-type-k", "llama.cpp: -ctk."),
    option("Engine", "--cache-type-v", "llama.cpp: -ctv."),
    option("Engine", "--no-flash-attn", "llama.cpp: without flash attention.", is_flag=True),
    option("Output", "--assert-fits", "Exit with 4 unless it fits in this much, such as 24GiB.", type=Size()),
    option("Output", "--emit", "Print the settings to start an engine with: vllm, llama.cpp, ollama or gemwright."),
    option("Output", "--advise", "Write a report, and add a row to a table of plans.", is_flag=True),
    option("Output", "--report", "The folder of --advise; left out, plan-report.", type=click.Path()),
    option("Output", "--load-test", "With --advise: measure the knee on this machine too.", is_flag=True),
    option(
        "Output",
        "--load-test-result",
        "With --advise: take the knee from a saved result of `bench serve --find-knee` or `bench offline --find-knee`.",
        type=click.Path(),
    ),
    option("Output", "--json", "Print one JSON object and nothing else on stdout.", is_flag=True),
    debug_option,
)


def plan_options(function: Decorated) -> Decorated:
    """Add the flags of `plan`."""
    for decorator in reversed(_OPTIONS):
        function = decorator(function)
    return function


_SAME_NAMES = (
    *("engine_version", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "dtype"),
    "quantization",
    *("embedding_quantization", "kv_cache_dtype", "tensor_parallel_size", "image_tokens", "audio_seconds", "draft"),
    *("language_model_only", "lora_rank", "num_loras", "margin", "kv_layout", "kv_cache_memory_bytes"),
    "kernels",
    *("available_kv_bytes", "gpu_memory_utilization", "in_flight_batches", "num_speculative_tokens", "ctx_size"),
    *("parallel", "ubatch_size", "swa_full", "cache_type_k", "cache_type_v"),
)


def plan_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of PlanSettings that the user set, device and memory of this machine apart.

    Raises RequestError for two flags that say one thing.
    """
    from gemwright.errors import RequestError

    fields = given(values, _SAME_NAMES)
    if values["engine"] == "vllm" and "kv_cache_memory_bytes" in fields:
        if "available_kv_bytes" in fields:
            raise RequestError(
                "--kv-cache-memory-bytes and --available-kv-bytes are two names of one number",
                value=f"{fields['kv_cache_memory_bytes']} and {fields['available_kv_bytes']} bytes",
                remedy="leave one of them out",
            )
        fields["available_kv_bytes"] = fields.pop("kv_cache_memory_bytes")  # as vLLM names it
    if values["images"] is not None:
        fields["num_images"] = values["images"]
    if values["kv_unified"] is not None:
        fields["kv_unified"] = values["kv_unified"]
    if values["no_flash_attn"]:
        fields["flash_attention"] = False
    return fields
