"""The settings to start an engine with, as its users type them: a command line, a Modelfile, variables."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final

from gemwright.errors import RequestError, show_bytes
from gemwright.planner.estimate import Estimate
from gemwright.planner.settings import ENGINES, PlanSettings
from gemwright.spec.model_header import ModelHeader

_MEBIBYTE: Final = 1 << 20


def emit(
    engine: str, header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None
) -> list[str]:
    """Return the lines that start `engine` as it was planned; lines that begin with # say why.

    With `memory_bytes` the K/V pool is what that leaves, else what the plan holds. Raises RequestError for an engine
    that is not known, and where the plan was made for another one.
    """
    if engine not in _WRITERS:
        raise RequestError("--emit: unknown engine", value=engine, limit=", ".join(ENGINES))
    if engine != estimate.engine:
        raise RequestError(
            "the settings of one engine do not follow from the plan of another",
            value=f"--emit {engine}",
            limit=f"--engine {estimate.engine}",
            remedy=f"add --engine {engine}",
        )
    return list(_WRITERS[engine](header, settings, estimate, memory_bytes))


def pool_bytes(estimate: Estimate, memory_bytes: int | None) -> int:
    """Return the K/V pool that is left of the memory, whole MiB; without it, what the plan holds."""
    lines = estimate.ledger.select("K/V cache")
    pool = sum(line.size_bytes for line in lines if line.place == estimate.ledger.place)
    if memory_bytes is not None:
        pool = max(0, pool + memory_bytes - estimate.ledger.total_bytes)
    return pool - pool % _MEBIBYTE


def _gemwright(
    header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None
) -> Iterator[str]:
    sequence = estimate.kv.bytes_per_sequence
    most = sequence * estimate.max_num_seqs
    pool = min(pool_bytes(estimate, memory_bytes), most + (-most % _MEBIBYTE))
    if pool < sequence:
        size = show_bytes(sequence)
        yield f"# one request of {estimate.max_model_len} tokens takes {size} of K/V, which is not there"
    words: list[Any] = ["gemwright", "serve", header.name]
    words += ["--max-model-len", estimate.max_model_len, "--max-num-seqs", estimate.max_num_seqs]
    words += ["--kv-cache-memory-bytes", max(pool, _MEBIBYTE)]
    words += _given(settings, "dtype", "max_num_batched_tokens", "block_size", "kv_layout")
    yield _join(words)


def _vllm(header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None) -> Iterator[str]:
    facts = estimate.engine_facts.get("vllm", {})
    concurrency = facts.get("max_concurrency")
    users = settings.max_num_seqs or max(1, int(concurrency or 1))
    words: list[Any] = ["vllm", "serve", header.name, "--max-model-len", estimate.max_model_len]
    words += ["--max-num-seqs", users]
    budget = settings.max_num_batched_tokens or facts.get("max_num_batched_tokens")
    if budget:
        words += ["--max-num-batched-tokens", budget]
    if memory_bytes is not None or settings.available_kv_bytes is not None:
        words += ["--kv-cache-memory-bytes", settings.available_kv_bytes or pool_bytes(estimate, memory_bytes)]
    elif settings.gpu_memory_utilization is not None:
        words += ["--gpu-memory-utilization", settings.gpu_memory_utilization]
    if settings.kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", settings.kv_cache_dtype]
    words += _given(settings, "block_size")
    if settings.tensor_parallel_size > 1:
        words += ["--tensor-parallel-size", settings.tensor_parallel_size]
    if settings.language_model_only:
        words.append("--language-model-only")
    yield "# sliding layers reserve for the token budget: lowering it makes room for users"
    yield _join(words)


def _llama_cpp(
    header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None
) -> Iterator[str]:
    slots = settings.parallel or estimate.max_num_seqs
    context = settings.ctx_size or estimate.max_model_len * (1 if settings.kv_unified else slots)
    words: list[Any] = ["llama-server", "-m", _gguf_name(header), "-c", context, "-np", slots]
    words += ["-ub", settings.ubatch_size or 512]
    if settings.cache_type_k is not None:
        words += ["-ctk", settings.cache_type_k]
    if settings.cache_type_v is not None:
        words += ["-ctv", settings.cache_type_v]
    words += ["-fa", "off" if settings.flash_attention is False else "on"]
    if settings.kv_unified:
        words.append("--kv-unified")
    if settings.swa_full:
        words.append("--swa-full")
    yield "# each slot keeps a window of its own: -np 1 is the largest saving"
    yield _join(words)


def _ollama(header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None) -> Iterator[str]:
    yield "# Modelfile"
    yield f"FROM {_gguf_name(header)}"
    yield f"PARAMETER num_ctx {settings.ctx_size or estimate.max_model_len}"
    yield "# environment of ollama serve"
    yield f"OLLAMA_NUM_PARALLEL={settings.parallel or estimate.max_num_seqs}"
    yield f"OLLAMA_FLASH_ATTENTION={0 if settings.flash_attention is False else 1}"
    if settings.cache_type_k is not None:
        yield f"OLLAMA_KV_CACHE_TYPE={settings.cache_type_k}"


_WRITERS: Final[dict[str, Callable[[ModelHeader, PlanSettings, Estimate, int | None], Iterator[str]]]] = {
    "gemwright": _gemwright,
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "ollama": _ollama,
}


def _gguf_name(header: ModelHeader) -> str:
    """Return the file, or for what is no file a name that says what to put there."""
    if header.format == "gguf" and header.origin in ("file", "folder", "cache"):
        return header.name
    return header.name.rpartition("/")[2] + ("" if header.name.endswith(".gguf") else ".gguf")


def _given(settings: PlanSettings, *names: str) -> list[Any]:
    words: list[Any] = []
    for name in names:
        value = getattr(settings, name)
        if value is not None and value != "auto":
            words += [f"--{name.replace('_', '-')}", value]
    return words


def _join(words: list[Any]) -> str:
    return shlex.join(str(word) for word in words)
