"""The settings to start an engine with, as its users type them: a command line, a Modelfile, variables.

What was planned for and the engine has a setting for is written, with the names that its own documents give it; what it
has none for is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from gemwright.errors import RequestError, UnsupportedError, show_bytes
from gemwright.planner.drafters import find_drafter
from gemwright.planner.engines.vllm_flags import (
    DRAFTED_TOKENS,
    adapter_flags,
    drafter_flags,
    media_flags,
    vllm_dtype,
)
from gemwright.planner.estimate import Estimate
from gemwright.planner.ledger import Ledger
from gemwright.planner.settings import ENGINES, PlanSettings, flag
from gemwright.planner.start import Start, gguf_file, is_config, served_name, shielded, split_revision, stem
from gemwright.spec.model_header import ModelHeader

_ALL_LAYERS: Final = 99
"""More than any Gemma has."""
_DEFAULT_UBATCH: Final = 512
_DEFAULT_BATCH: Final = 2048
"""Of llama-server: a micro-batch is never larger."""
_OLLAMA_CACHE_TYPES: Final = ("f16", "q8_0", "q4_0")


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a command line is written from."""

    header: ModelHeader
    settings: PlanSettings
    estimate: Estimate
    memory_bytes: int | None

    @property
    def ledger(self) -> Ledger:
        """What is held, margins included."""
        return self.estimate.ledger

    @property
    def kv_factor(self) -> float:
        """The margin of K/V: a request is given that much more room."""
        return self.settings.margin.get("kv", 1.0)

    @property
    def planned_pool_bytes(self) -> int:
        """The K/V pool that the plan holds."""
        lines = self.ledger.select("K/V cache")
        return sum(line.size_bytes for line in lines if line.place == self.ledger.place)

    def pool_bytes(self, share: float = 1.0) -> int:
        """Return the K/V pool that a share of the memory leaves; without memory, what the plan holds."""
        pool = self.planned_pool_bytes
        if self.memory_bytes is None:
            return pool
        return max(0, pool + int(self.memory_bytes * share) - self.ledger.total_bytes)


def emit(
    engine: str,
    header: ModelHeader,
    settings: PlanSettings,
    estimate: Estimate,
    memory_bytes: int | None,
) -> list[str]:
    """Return the lines of `start_settings` for people; those that begin with # say why."""
    return start_settings(engine, header, settings, estimate, memory_bytes).lines()


def start_settings(
    engine: str,
    header: ModelHeader,
    settings: PlanSettings,
    estimate: Estimate,
    memory_bytes: int | None,
) -> Start:
    """Return what starts `engine` as it was planned.

    `estimate` is a plan's, with its margins. With `memory_bytes` the K/V pool is what that leaves, else what the plan
    holds. Where the plan does not fit, a note says so and the settings are those planned. Raises RequestError for an
    engine that is not known, for the plan of another one, and for a model that no command line can name;
    UnsupportedError for what was planned and the engine has no setting for.
    """
    check_engine(engine, estimate.engine)
    if not header.name.isprintable():
        # A line break would begin a line of its own in a Modelfile, or in what a terminal is given.
        raise RequestError(
            "the model's name holds characters that cannot be typed",
            value=repr(header.name),
            remedy="give its file or folder another name",
        )
    found = _WRITERS[engine](_Planned(header, settings, estimate, memory_bytes))
    notes = []
    stored = settings.quantization
    if stored is not None:
        notes.append(f"planned for weights in {stored}: start it with a model that is stored so")
    if settings.embedding_quantization not in (None, stored, header.embedding_quantization):
        notes.append(f"planned for embedding tables in {settings.embedding_quantization}")
    if settings.engine_version is not None:
        notes.append(f"planned by the rules of version {settings.engine_version}")
    return replace(found, notes=(*notes, *found.notes))


def check_engine(engine: str, planned_for: str) -> None:
    """Raise RequestError for an engine whose settings cannot be written, or not from the plan of `planned_for`."""
    if engine not in _WRITERS:
        names = ", ".join(ENGINES)
        raise RequestError("--emit: unknown engine", value=engine, limit=names, remedy=f"name one of them: {names}")
    if engine != planned_for:
        raise RequestError(
            "the settings of one engine do not follow from the plan of another",
            value=f"--emit {engine}",
            limit=f"--engine {planned_for}",
            remedy=f"add --engine {engine}",
        )


def _gemwright(planned: _Planned) -> Start:
    settings, estimate = planned.settings, planned.estimate
    _refuse_settings("gemwright", settings, "draft", "lora_rank", "num_images", "audio_seconds")
    request = math.ceil(estimate.kv.bytes_per_sequence * planned.kv_factor)
    given, most = settings.kv_cache_memory_bytes, request * estimate.max_num_seqs
    pool, notes = _pool(planned, request, estimate.max_num_seqs, given, min(planned.pool_bytes(), most))
    name = () if planned.header.is_default else (_of_hub_or_path(planned.header),)
    words: dict[str, Any] = {"--max-model-len": estimate.max_model_len, "--max-num-seqs": estimate.max_num_seqs}
    words["--kv-cache-memory-bytes"] = pool
    if settings.device is not None and settings.device.kind == "gpu":
        words["--device"] = "cuda"
    words |= _given(settings, "dtype", "max_num_batched_tokens", "block_size", "kv_layout", "kernels")
    return Start("gemwright", ("gemwright", "serve", *name), words, (*notes, *_from_config(planned.header)))


def _vllm(planned: _Planned) -> Start:
    from gemwright.planner.engines.vllm import utilization

    header, settings, facts = planned.header, planned.settings, planned.estimate.engine_facts["vllm"]
    if header.is_default:
        raise UnsupportedError(
            "the default model lies in Gemwright's own packages, where vLLM does not find it",
            value=header.name,
            remedy="plan google/gemma-3-270m, or leave --emit out",
        )
    request = math.ceil(facts["request_bytes"] * planned.kv_factor)
    asked = settings.max_num_seqs
    left = planned.pool_bytes(utilization(settings)) if planned.memory_bytes is not None else request * (asked or 1)
    given = settings.available_kv_bytes
    users = asked or max(1, (left if given is None else given) // request)
    pool, notes = _pool(planned, request, users, given, left)
    name, revision = served_name(header)
    words: dict[str, Any] = {} if revision is None else {"--revision": revision}
    words |= {"--max-model-len": planned.estimate.max_model_len, "--max-num-seqs": users}
    words |= {"--max-num-batched-tokens": facts["max_num_batched_tokens"], "--kv-cache-memory-bytes": pool}
    words |= _given(settings, "gpu_memory_utilization", "kv_cache_dtype", "block_size", "dtype")
    if "--dtype" in words:
        words["--dtype"] = vllm_dtype(settings.dtype)
    if settings.tensor_parallel_size > 1:
        words["--tensor-parallel-size"] = settings.tensor_parallel_size
    if settings.in_flight_batches == 1:
        words["--no-async-scheduling"] = True
    if settings.language_model_only:
        words["--language-model-only"] = True
    words |= media_flags(settings) | drafter_flags(header, settings) | adapter_flags(settings)
    if settings.lora_rank is not None:
        notes.append("--lora-modules NAME=PATH names each adapter")
        if words["--max-lora-rank"] != settings.lora_rank:
            notes.append(f"vLLM has no room of rank {settings.lora_rank} alone: plan --lora-rank as the line has it")
    notes += _from_config(header)
    notes.append("sliding layers reserve for the token budget: lowering it makes room for users")
    return Start("vllm", ("vllm", "serve", name), words, tuple(notes))


def _llama_cpp(planned: _Planned) -> Start:
    header, settings, facts = planned.header, planned.settings, planned.estimate.engine_facts["llama_cpp"]
    notes = _does_not_fit(planned)
    fetched = _fetched_name(header)
    words: dict[str, Any] = {"-m": gguf_file(header)} if fetched is None else {"-hf": fetched}
    words |= {"-c": facts["n_ctx"], "-np": facts["num_slots"], "-ub": facts["ubatch_size"]}
    if facts["ubatch_size"] > _DEFAULT_BATCH:
        words["-b"] = facts["ubatch_size"]
    words |= {"-ctk": facts["cache_type_k"], "-ctv": facts["cache_type_v"]}
    words["-fa"] = "on" if facts["flash_attention"] else "off"
    num_on_device = _ALL_LAYERS if planned.ledger.place == "gpu" else 0
    words["-ngl"] = num_on_device
    if settings.tensor_parallel_size > 1:
        words |= {"-sm": "layer", "-ts": ",".join(["1"] * settings.tensor_parallel_size)}
    if facts["kv_unified"] and facts["num_slots"] > 1:
        words["--kv-unified"] = True
    if facts["swa_full"]:
        words["--swa-full"] = True
    if settings.num_images or settings.audio_seconds:
        words["--mmproj"] = f"mmproj-{stem(header)}.gguf"
        notes.append("--mmproj: the file of its towers and projector")
    elif fetched is not None:
        words["--no-mmproj"] = True  # -hf fetches a projector unasked, and none was planned
    if settings.num_images and settings.image_tokens is not None:
        words["--image-max-tokens"] = settings.image_tokens
    if settings.draft:
        drafter = find_drafter(header.spec)[0].rpartition("/")[2]
        words |= {"--spec-type": "draft-mtp", "-md": f"{drafter}.gguf", "--spec-draft-n-max": DRAFTED_TOKENS}
        words["-ngld"] = num_on_device
        notes.append("-md: the GGUF file of its drafter")
    if settings.lora_rank is not None:
        words["--lora"] = _adapter_files(settings)
        notes.append(f"--lora: GGUF files of adapters of rank {settings.lora_rank}")
    if header.format != "gguf" or header.is_default:
        notes.append("-m: the GGUF file of this model")
    elif fetched is None and split_revision(header)[1] is not None:
        notes.append(f"-m: the GGUF file of revision {split_revision(header)[1]}, as -hf fetches the main one alone")
    if facts["num_slots"] > 1:
        notes.append("every slot adds a window to the sliding layers: -np 1 is the largest saving")
    return Start("llama.cpp", ("llama-server",), words, tuple(notes))


def _ollama(planned: _Planned) -> Start:
    header, settings, facts = planned.header, planned.settings, planned.estimate.engine_facts["ollama"]
    _refuse_settings("Ollama", settings, "draft", "image_tokens")
    if (settings.num_loras or 1) > 1:
        _refuse_settings("Ollama", settings, "num_loras")
    kind = facts["cache_type_k"]
    if facts["cache_type_v"] != kind or kind not in _OLLAMA_CACHE_TYPES:
        raise UnsupportedError(
            "Ollama keeps K and V in one type of few",
            value=f"{kind} and {facts['cache_type_v']}",
            limit=", ".join(_OLLAMA_CACHE_TYPES),
            remedy="use --cache-type-k q8_0 --cache-type-v q8_0, or leave them out",
        )
    notes = _does_not_fit(planned)
    modelfile = [f"FROM {gguf_file(header)}"]
    if settings.num_images or settings.audio_seconds:
        modelfile.append(f"FROM mmproj-{stem(header)}.gguf")
        notes.append("the second FROM: the file of its towers and projector")
    if settings.lora_rank is not None:
        modelfile.append(f"ADAPTER {_adapter_files(settings)}")
        notes.append(f"ADAPTER: the GGUF file of an adapter of rank {settings.lora_rank}")
    words: dict[str, Any] = {"num_ctx": facts["num_ctx"]}
    if facts["ubatch_size"] != _DEFAULT_UBATCH:
        words["num_batch"] = facts["ubatch_size"]
    if planned.ledger.place != "gpu":
        words["num_gpu"] = 0
    environment = {
        "OLLAMA_NUM_PARALLEL": str(facts["num_slots"]),
        "OLLAMA_FLASH_ATTENTION": str(int(facts["flash_attention"])),
        "OLLAMA_KV_CACHE_TYPE": kind,
    }
    return Start("ollama", ("ollama", "serve"), words, tuple(notes), tuple(modelfile), environment)


_WRITERS: Final[dict[str, Callable[[_Planned], Start]]] = {
    "gemwright": _gemwright,
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "ollama": _ollama,
}


def _pool(planned: _Planned, request_bytes: int, num_seqs: int, given: int | None, left: int) -> tuple[int, list[str]]:
    """Return the K/V pool to start with and what is to be said of it: the one asked for, else `left`, but never less
    than one request needs, since the engine would refuse that."""
    pool = left if given is None else given
    length = f"{planned.estimate.max_model_len} tokens"
    if pool >= request_bytes:
        num_held = pool // request_bytes
        if num_held >= num_seqs:
            return pool, []
        return pool, [f"{num_held} of {num_seqs} requests of this length fit at once; the others wait"]
    sizes = f"a request of {length} takes {show_bytes(request_bytes)} of K/V, {show_bytes(pool)} are left"
    if given is not None or planned.memory_bytes is None:
        return pool, [f"this will not start: {sizes}"]
    taken = planned.ledger.total_bytes - planned.planned_pool_bytes + request_bytes
    what = f"it does not fit in {show_bytes(planned.memory_bytes)}: {sizes}"
    return request_bytes, [f"{what}; with this line {show_bytes(taken)} are taken"]


def _does_not_fit(planned: _Planned) -> list[str]:
    held, memory = planned.ledger.total_bytes, planned.memory_bytes
    if memory is None or held <= memory:
        return []
    return [f"it does not fit in {show_bytes(memory)}: {show_bytes(held)} are needed"]


def _refuse_settings(engine: str, settings: PlanSettings, *names: str) -> None:
    """Raise UnsupportedError for the first of these settings that was planned for."""
    for name in names:
        value = getattr(settings, name)
        if value:
            raise UnsupportedError(
                f"{engine} has no setting for what was planned",
                value=flag(name) if value is True else f"{flag(name)} {value:g}",
                remedy=f"plan without {flag(name)}, or leave --emit out",
            )


def _of_hub_or_path(header: ModelHeader) -> str:
    """Return the model as our own command line takes it: with its revision."""
    return served_name(header)[0] if is_config(header) else shielded(header.name)


def _from_config(header: ModelHeader) -> list[str]:
    return ["planned from a config alone: its folder must hold the weights too"] if is_config(header) else []


def _fetched_name(header: ModelHeader) -> str | None:
    """Return what llama.cpp fetches itself: the main revision of a repository of GGUF files; None for all else."""
    name, revision = split_revision(header)
    is_of_hub = header.format == "gguf" and header.origin in ("hub", "cache")
    return name if is_of_hub and revision is None and not name.endswith(".gguf") else None


def _adapter_files(settings: PlanSettings) -> str:
    return ",".join(f"adapter-{index + 1}.gguf" for index in range(settings.num_loras or 1))


def _given(settings: PlanSettings, *names: str) -> dict[str, Any]:
    words: dict[str, Any] = {}
    for name in names:
        value = getattr(settings, name)
        if value is not None and value != "auto":
            words[flag(name)] = value
    return words
