"""What a plan may be asked: one frozen record of settings, checked once, whatever the engine.

A field left at None is decided by the engine's own rule and shown with the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.devices import Device

Engine = Literal["gemwright", "vllm", "llama.cpp", "ollama"]
ENGINES: Final[tuple[Engine, ...]] = ("gemwright", "vllm", "llama.cpp", "ollama")

IMAGE_TOKENS: Final = (70, 140, 280, 560, 1120)
"""Soft tokens that an image of Gemma 4 may have."""
MOST_AUDIO_SECONDS: Final = 100_000
"""Beyond any context: a second of sound takes 25 tokens."""
VLLM_BLOCK_STEP: Final = 16
"""vLLM takes any number of tokens for a block, and its attention kernels multiples of this one."""
MOST_MARGIN: Final = 100
"""More room than that is a slip of the keyboard."""

UNKNOWN_ENGINES: Final[Mapping[str, str]] = {
    "tgi": "its memory for K/V comes from a warm-up run on the device, by rules that no published record confirms",
    "sglang": "its pools for sliding layers are a fraction that it tunes at start-up",
    "tensorrt-llm": "its engine files decide buffers when they are built",
    "lm studio": "its own estimate and what its runtimes take differ by 40 to 67 % in published reports",
    "mlx": "its caches grow in steps that depend on the version, and wired memory on the system",
    "transformers": "its caches grow with every token and its peak depends on the attention implementation",
    "exllama": "no published record of its cache for Gemma could be reproduced",
    "ktransformers": "no published record of its cache for Gemma could be reproduced",
}
"""Engines that people ask for and for which there is no formula: the answer is UNKNOWN, and why."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a process of the engine took beside its ledger's lines on one machine, measured before."""

    fingerprint: str
    """Of the machine and the versions of what runs on it."""
    runtime_bytes: int
    error_bytes: int
    num_runs: int


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Everything that can change a plan. Which engine reads which field stands in `ENGINE_FIELDS`."""

    engine: Engine = "gemwright"
    engine_version: str | None = None
    """Such as "0.33.0" for vLLM; None: the newest known."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    dtype: str = "auto"
    quantization: str | None = None
    embedding_quantization: str | None = None
    kv_cache_dtype: str = "auto"
    memory_bytes: int | None = None
    """What may be taken in all, on each device."""
    device: Device | None = None
    tensor_parallel_size: int = 1
    num_images: int = 0
    """Images of one request."""
    image_tokens: int | None = None
    """Soft tokens of one image, of IMAGE_TOKENS; None: the model's own number."""
    audio_seconds: float = 0.0
    draft: bool = False
    """Whether the model's drafter runs beside it."""
    lora_rank: int | None = None
    num_loras: int | None = None
    """None: one, where `lora_rank` is given."""
    language_model_only: bool = False
    margin: Mapping[str, float] = field(default_factory=dict)
    # gemwright
    kv_layout: str = "auto"
    kernels: str = "auto"
    kv_cache_memory_bytes: int | None = None
    calibration: Calibration | None = None
    # vllm
    available_kv_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    in_flight_batches: int | None = None
    num_speculative_tokens: int | None = None
    # llama.cpp and ollama
    ctx_size: int | None = None
    parallel: int | None = None
    ubatch_size: int | None = None
    kv_unified: bool | None = None
    swa_full: bool | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    flash_attention: bool | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise RequestError(name, value=value, limit="an integer of at least 1", remedy=f"change {flag(name)}")
        if type(self.num_images) is not int or self.num_images < 0:
            raise RequestError("num_images", value=self.num_images, limit="0 or more", remedy="change --images")
        if self.image_tokens is not None and self.image_tokens not in IMAGE_TOKENS:
            limit = ", ".join(map(str, IMAGE_TOKENS))
            raise RequestError("image_tokens", value=self.image_tokens, limit=limit, remedy="change --image-tokens")
        if not 0 <= self.audio_seconds <= MOST_AUDIO_SECONDS:
            raise RequestError(
                "audio_seconds",
                value=self.audio_seconds,
                limit=f"0 to {MOST_AUDIO_SECONDS} seconds",
                remedy="change --audio-seconds",
            )
        if self.num_loras is not None and self.lora_rank is None:
            raise RequestError(
                "--num-loras counts adapters of --lora-rank, and there is none",
                value=self.num_loras,
                remedy="add --lora-rank 16, or leave --num-loras out",
            )
        if self.engine == "vllm" and self.block_size is not None and self.block_size % VLLM_BLOCK_STEP:
            raise RequestError(
                "block_size",
                value=self.block_size,
                limit=f"multiples of {VLLM_BLOCK_STEP}, as vLLM's attention has them",
                remedy="use --block-size 16, or leave it out",
            )
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise RequestError(
                "gpu_memory_utilization",
                value=share,
                limit="above 0, at most 1",
                remedy="write --gpu-memory-utilization 0.9 for 90 %",
            )
        for name, factor in self.margin.items():
            if not 1 <= factor <= MOST_MARGIN:
                raise RequestError(
                    "a margin is room beside what is planned",
                    value=f"--margin {name}={factor:g}",
                    limit=f"a factor from 1 to {MOST_MARGIN}",
                    remedy=f"write such as --margin {name}=1.1",
                )
        self._refuse_fields_of_other_engines()

    def _refuse_fields_of_other_engines(self) -> None:
        for entry in fields(self):
            readers = ENGINE_FIELDS.get(entry.name)
            if readers is None or self.engine in readers or getattr(self, entry.name) == entry.default:
                continue
            value = getattr(self, entry.name)
            is_switched_off = value is False and entry.name not in _FLAGS
            spelled = flag(f"no_{entry.name}" if is_switched_off else entry.name)
            raise UnsupportedError(
                f"{spelled} is not a setting of {self.engine}",
                value=None if isinstance(value, bool) else value,
                limit=f"it is one of {', '.join(readers)}",
                remedy=f"leave it out, or plan for --engine {readers[0]}",
            )


_COUNTS: Final = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "memory_bytes", "tensor_parallel_size",
    "lora_rank", "num_loras", "kv_cache_memory_bytes", "available_kv_bytes", "in_flight_batches",
    "num_speculative_tokens", "ctx_size", "parallel", "ubatch_size",
)  # fmt: skip

_LLAMA: Final[tuple[Engine, ...]] = ("llama.cpp", "ollama")
ENGINE_FIELDS: Final[Mapping[str, tuple[Engine, ...]]] = {
    "engine_version": ("vllm", "llama.cpp", "ollama"),
    "max_num_batched_tokens": ("gemwright", "vllm"),
    "block_size": ("gemwright", "vllm"),
    "tensor_parallel_size": ("vllm", "llama.cpp"),
    "language_model_only": ("gemwright", "vllm"),
    "kv_layout": ("gemwright",),
    "kernels": ("gemwright",),
    "kv_cache_memory_bytes": ("gemwright",),
    "available_kv_bytes": ("vllm",),
    "gpu_memory_utilization": ("vllm",),
    "in_flight_batches": ("vllm",),
    "num_speculative_tokens": ("vllm",),
    "ctx_size": _LLAMA,
    "parallel": _LLAMA,
    "ubatch_size": _LLAMA,
    "kv_unified": _LLAMA,
    "swa_full": _LLAMA,
    "cache_type_k": _LLAMA,
    "cache_type_v": _LLAMA,
    "flash_attention": _LLAMA,
}
"""Fields that not every engine reads, with those that do; with another engine they are refused."""

_FLAGS: Final = {
    "num_images": "--images",
    "memory_bytes": "--memory",
    "device": "--device-name",
    "flash_attention": "--no-flash-attn",
}


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")
