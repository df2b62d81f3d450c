"""EngineConfig: every engine setting, validated once. Each field documents its flag."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from gemwright.errors import RequestError, UnsupportedError

KERNELS = ("auto", "reference")
"""What `--kernels` accepts: the backends that exist."""

DTYPES = ("auto", "float32", "bfloat16")
"""What `--dtype` accepts."""

REFUSED_DTYPES = {"float16": "Gemma's residual stream passes its largest number, 65504"}
"""Dtypes that are understood and refused, and why."""

DEVICES = ("cpu", "cuda")
"""What `--device` accepts; cuda:N is the Nth of several."""

KV_LAYOUTS = ("auto", "both", "v")
"""What `--kv-layout` accepts."""

MAX_BLOCK_SIZE = 1024
"""Tokens of the largest K/V block."""

MAX_THREADS = 1024
"""More than a process can start make it end without a word."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine. A field left at None is decided when the model is known, and printed."""

    dtype: str = "auto"
    """`--dtype auto|float32|bfloat16`: what is computed, held and cached in. auto: the checkpoint's own; bfloat16 for
    GGUF files and, with a line that says so, for float16 checkpoints."""
    device: str = "cpu"
    """`--device cpu|cuda|cuda:N`: where the reference backend runs."""
    kernels: str = "auto"
    """`--kernels auto|reference`: which backend computes."""
    threads: int | None = None
    """`--threads N`: CPU threads; left out, OMP_NUM_THREADS or the cores this process may run on."""
    max_model_len: int | None = None
    """`--max-model-len N`: the longest prompt and answer together, in tokens; left out, the model's own context,
    lowered to what the K/V pool holds."""
    max_num_batched_tokens: int | None = None
    """`--max-num-batched-tokens N`: tokens of one step over all requests; left out, 512 on CPU, 2048 on a GPU."""
    max_num_seqs: int = 16
    """`--max-num-seqs N`: requests running at once."""
    block_size: int = 16
    """`--block-size N`: tokens of one K/V block."""
    kv_cache_memory_bytes: int | None = None
    """`--kv-cache-memory-bytes N`: size of the K/V pool; left out, enough for `max_num_seqs` requests of
    `max_model_len` tokens, at most a quarter of free memory."""
    prefix_caching: bool = True
    """`--no-prefix-caching`: compute every prompt anew instead of finding its beginning in the cache."""
    kv_layout: str = "auto"
    """`--kv-layout auto|both|v`: what layers with K equal to V (the full layers of Gemma 4 12B, 26B-A4B and 31B) keep:
    both, or V alone, from which keys are rebuilt. auto: v."""
    allow_unknown_config_keys: bool = False
    """`--allow-unknown-config-keys`: accept config keys whose effect on the maths is unknown."""

    def __post_init__(self) -> None:
        if self.dtype in tuple(REFUSED_DTYPES):
            raise UnsupportedError(
                f"dtype {self.dtype} is refused: {REFUSED_DTYPES[self.dtype]}",
                value=self.dtype,
                limit=", ".join(DTYPES),
                remedy="use --dtype bfloat16 or float32",
            )
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kernels", self.kernels, KERNELS)
        _one_of("kv_layout", self.kv_layout, KV_LAYOUTS)
        if type(self.device) is not str or re.fullmatch(r"cpu|cuda(:\d+)?", self.device) is None:
            raise UnsupportedError(
                "unknown device",
                value=self.device,
                limit="cpu, cuda, cuda:N",
                remedy="use --device cpu, or leave it out",
            )
        if type(self.allow_unknown_config_keys) is not bool:
            raise RequestError("allow_unknown_config_keys", value=self.allow_unknown_config_keys, limit="true or false")
        for field in fields(self):
            value = getattr(self, field.name)
            if str(field.type).startswith("int") and value is not None:
                _positive(field.name, value)
        if self.block_size & (self.block_size - 1) or self.block_size > MAX_BLOCK_SIZE:
            raise UnsupportedError(
                "block_size",
                value=self.block_size,
                limit=f"a power of two up to {MAX_BLOCK_SIZE}",
                remedy="use --block-size 16, or leave it out",
            )
        if self.threads is not None and self.threads > MAX_THREADS:
            raise UnsupportedError(
                "threads",
                value=self.threads,
                limit=f"1 to {MAX_THREADS}",
                remedy="leave --threads out: as many as there are cores",
            )

    @property
    def keys_from_values(self) -> bool:
        """Whether layers with K equal to V keep V alone."""
        return self.kv_layout != "both"

    def step_tokens(self) -> int:
        """Return the token budget of one step."""
        return self.max_num_batched_tokens or (512 if self.device == "cpu" else 2048)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        flag = f"--{name.replace('_', '-')}"
        raise UnsupportedError(
            f"unknown {name}", value=value, limit=", ".join(allowed), remedy=f"use {flag} {allowed[0]}, or leave it out"
        )


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(
            name, value=value, limit="an integer of at least 1", remedy=f"change --{name.replace('_', '-')}"
        )
