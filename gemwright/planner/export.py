"""The settings to start an engine with, as its users type them: a command line, a Modelfile, variables."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final

from gemwright.errors import RequestError, UnsupportedError, show_bytes
from gemwright.planner.estimate import Estimate
from gemwright.planner.settings import ENGINES, PlanSettings
from gemwright.spec.model_header import ModelHeader

_VLLM_SHARE: Final = 0.9
"""Of a device's memory, where no utilization was named (newer versions start with 0.92)."""
_ALL_LAYERS: Final = 99
"""More than any Gemma has."""
_DEFAULT_UBATCH: Final = 512
_DEFAULT_BATCH: Final = 2048
"""Of llama-server: a micro-batch is never larger."""
_OLLAMA_CACHE_TYPES: Final = ("f16", "q8_0", "q4_0")


def emit(
    engine: str, header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None
) -> list[str]:
    """Return the lines that start `engine` as it was planned; lines that begin with # say why.

    With `memory_bytes` the K/V pool is what that leaves, else what the plan holds. Raises RequestError for an engine
    that is not known, for the plan of another one, and for a model whose name no command line can hold;
    UnsupportedError for what was planned and the engine has no setting for.
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
    if not header.name.isprintable():
        # A line break would begin a line of its own in a Modelfile, or in what a terminal is given.
        raise RequestError("the model's name holds characters that cannot be typed", value=repr(header.name))
    lines = list(_WRITERS[engine](header, settings, estimate, memory_bytes))
    if settings.quantization is not None:
        lines.insert(0, f"# planned for weights in {settings.quantization}: start it with a model that is stored so")
    return lines


def pool_bytes(estimate: Estimate, memory_bytes: int | None) -> int:
    """Return the K/V pool that is left of the memory; without it, what the plan holds."""
    lines = estimate.ledger.select("K/V cache")
    pool = sum(line.size_bytes for line in lines if line.place == estimate.ledger.place)
    return pool if memory_bytes is None else max(0, pool + memory_bytes - estimate.ledger.total_bytes)


def _gemwright(
    header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None
) -> Iterator[str]:
    sequence = estimate.kv.bytes_per_sequence
    pool = min(pool_bytes(estimate, memory_bytes), sequence * estimate.max_num_seqs)
    yield from _too_small(estimate, sequence, pool)
    words: list[Any] = ["gemwright", "serve", _name(header)]
    words += ["--max-model-len", estimate.max_model_len, "--max-num-seqs", estimate.max_num_seqs]
    words += ["--kv-cache-memory-bytes", max(pool, 1)]
    if settings.device is not None and settings.device.kind == "gpu":
        words += ["--device", "cuda"]
    words += _given(settings, "dtype", "max_num_batched_tokens", "block_size", "kv_layout")
    yield shlex.join(map(str, words))


def _vllm(header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None) -> Iterator[str]:
    facts = estimate.engine_facts["vllm"]
    request = facts["request_bytes"]
    pool = settings.available_kv_bytes
    if pool is None and memory_bytes is not None:
        share = settings.gpu_memory_utilization or _VLLM_SHARE
        pool = pool_bytes(estimate, int(memory_bytes * share))
    if pool is None:
        pool = estimate.max_num_seqs * request
    yield from _too_small(estimate, request, pool)
    users = settings.max_num_seqs or max(1, pool // request)
    if users * request > pool >= request:
        yield f"# {pool // request} of {users} requests of this length fit at once; the others wait"
    words: list[Any] = ["vllm", "serve", _name(header), "--max-model-len", estimate.max_model_len]
    words += ["--max-num-seqs", users, "--max-num-batched-tokens", facts["max_num_batched_tokens"]]
    words += ["--kv-cache-memory-bytes", max(pool, 1)]
    words += _given(settings, "kv_cache_dtype", "block_size", "dtype")
    if settings.tensor_parallel_size > 1:
        words += ["--tensor-parallel-size", settings.tensor_parallel_size]
    if settings.in_flight_batches == 1:
        words.append("--no-async-scheduling")
    if settings.language_model_only:
        words.append("--language-model-only")
    yield "# sliding layers reserve for the token budget: lowering it makes room for users"
    yield shlex.join(map(str, words))


def _llama_cpp(
    header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None
) -> Iterator[str]:
    facts = estimate.engine_facts["llama_cpp"]
    words: list[Any] = ["llama-server", *_llama_model(header)]
    words += ["-c", facts["n_ctx"], "-np", facts["num_slots"], "-ub", facts["ubatch_size"]]
    if facts["ubatch_size"] > _DEFAULT_BATCH:
        words += ["-b", facts["ubatch_size"]]
    words += ["-ctk", facts["cache_type_k"], "-ctv", facts["cache_type_v"]]
    words += ["-fa", "on" if facts["flash_attention"] else "off"]
    if estimate.ledger.place == "gpu":
        words += ["-ngl", _ALL_LAYERS]
    if facts["kv_unified"] and facts["num_slots"] > 1:
        words.append("--kv-unified")
    if facts["swa_full"]:
        words.append("--swa-full")
    if header.format != "gguf":
        yield "# -m: the GGUF file of this model"
    if facts["num_slots"] > 1:
        yield "# every slot adds a window to the sliding layers: -np 1 is the largest saving"
    yield shlex.join(map(str, words))


def _ollama(header: ModelHeader, settings: PlanSettings, estimate: Estimate, memory_bytes: int | None) -> Iterator[str]:
    facts = estimate.engine_facts["ollama"]
    kind = facts["cache_type_k"]
    if facts["cache_type_v"] != kind or kind not in _OLLAMA_CACHE_TYPES:
        raise UnsupportedError(
            "Ollama keeps K and V in one type of few",
            value=f"{kind} and {facts['cache_type_v']}",
            limit=", ".join(_OLLAMA_CACHE_TYPES),
            remedy="use --cache-type-k q8_0 --cache-type-v q8_0, or leave them out",
        )
    yield "# Modelfile"
    yield f"FROM {_gguf_file(header)}"
    yield f"PARAMETER num_ctx {facts['num_ctx']}"
    if facts["ubatch_size"] != _DEFAULT_UBATCH:
        yield f"PARAMETER num_batch {facts['ubatch_size']}"
    yield "# environment of ollama serve"
    yield f"OLLAMA_NUM_PARALLEL={facts['num_slots']}"
    yield f"OLLAMA_FLASH_ATTENTION={int(facts['flash_attention'])}"
    yield f"OLLAMA_KV_CACHE_TYPE={kind}"


_WRITERS: Final[dict[str, Callable[[ModelHeader, PlanSettings, Estimate, int | None], Iterator[str]]]] = {
    "gemwright": _gemwright,
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "ollama": _ollama,
}


def _too_small(estimate: Estimate, request_bytes: int, pool: int) -> Iterator[str]:
    if pool < request_bytes:
        sizes = f"takes {show_bytes(request_bytes)} of K/V, {show_bytes(pool)} are left"
        yield f"# this will not start: a request of {estimate.max_model_len} tokens {sizes}"


def _name(header: ModelHeader) -> str:
    """Return the model's name where an option cannot be meant by it."""
    return f"./{header.name}" if header.name.startswith("-") else header.name


def _llama_model(header: ModelHeader) -> list[str]:
    """Return how llama.cpp is told which model: a file, or a repository of GGUF files that it fetches itself."""
    if header.format == "gguf" and header.origin in ("hub", "cache") and not header.name.endswith(".gguf"):
        return ["-hf", header.name.partition("@")[0]]
    return ["-m", _gguf_file(header)]


def _gguf_file(header: ModelHeader) -> str:
    """Return the model's file; for what is none, the name of one to put in its place."""
    if header.name.endswith(".gguf"):
        return _name(header)
    return header.name.rstrip("/").rpartition("/")[2].replace(":", "-").lstrip("-") + ".gguf"


def _given(settings: PlanSettings, *names: str) -> list[Any]:
    words: list[Any] = []
    for name in names:
        value = getattr(settings, name)
        if value is not None and value != "auto":
            words += [f"--{name.replace('_', '-')}", value]
    return words
