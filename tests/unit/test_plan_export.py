"""The settings that start an engine: read back by our own command line, and by the flags that others document."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.config import EngineConfig
from gemwright.errors import UnsupportedError, show_bytes
from gemwright.memory.engine_plan import plan_memory
from gemwright.planner.answers import make_plan
from gemwright.planner.devices import find_device
from gemwright.planner.estimate import estimate
from gemwright.planner.export import start_settings
from gemwright.planner.settings import PlanSettings
from tests.emitted_settings import LLAMA_FLAGS, PROCESSOR, VLLM_FLAGS, command, emitted, read_flags, read_ours
from tests.planned_models import GIB, MIB, header_of


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"max_model_len": 4096, "max_num_seqs": 1},
        {"max_model_len": 5000, "max_num_seqs": 3, "block_size": 32, "dtype": "float32"},
        {"max_num_batched_tokens": 256, "kv_layout": "both"},
        {"device": find_device("h100"), "max_num_seqs": 2},
    ],
)
def test_our_engine_reads_its_line_and_allocates_what_was_planned(asked: dict[str, Any]) -> None:
    header = header_of("gemma-3-270m")
    model, options = read_ours(command(emitted(header, **asked)))
    assert model == header.name
    config = EngineConfig(**options)
    started = plan_memory(header.spec, config, stored_dtype=header.spec.stored_dtype, free_bytes=0)
    found = estimate(header, PlanSettings(**asked))
    assert started.max_model_len == found.max_model_len
    assert config.max_num_seqs == found.max_num_seqs
    assert (config.device == "cuda") is ("device" in asked)
    line_bytes = sum(line.size_bytes for line in found.ledger.select("K/V cache"))
    assert started.layout.total_bytes == line_bytes == config.kv_cache_memory_bytes


def test_our_pool_is_what_memory_leaves_and_no_more_than_can_be_used() -> None:
    header = header_of("gemma-4-E4B-it")
    asked = {"max_model_len": 32_768, "max_num_seqs": 8}
    found = estimate(header, PlanSettings(**asked))
    most = 8 * found.kv.bytes_per_sequence
    _, options = read_ours(command(emitted(header, 100 * GIB, **asked)))
    assert options["kv_cache_memory_bytes"] == most
    less = found.ledger.total_bytes - GIB
    _, options = read_ours(command(emitted(header, less, **asked)))
    assert options["kv_cache_memory_bytes"] == most - GIB


@pytest.mark.parametrize("engine", ["gemwright", "vllm"])
def test_a_pool_too_small_for_one_request_is_said(engine: Any) -> None:
    header = header_of("gemma-4-31B-it")
    for memory in (4 * GIB, 62 * GIB):
        lines = emitted(header, memory, engine=engine, max_model_len=262_144)
        said = f"# it does not fit in {memory // GIB}.00 GiB: a request of 262144 tokens takes"
        assert lines[0].startswith(said)
        # The pool that would be needed, never one that the engine refuses.
        one = estimate(header, PlanSettings(engine=engine, max_model_len=262_144, max_num_seqs=1))
        words = command(lines)
        assert int(words[words.index("--kv-cache-memory-bytes") + 1]) == one.kv.bytes_per_sequence
    assert "does not fit" not in "".join(emitted(header, 200 * GIB, engine=engine, max_model_len=8192))


@pytest.mark.parametrize(("engine", "name"), [("gemwright", "kv_cache_memory_bytes"), ("vllm", "available_kv_bytes")])
def test_a_pool_that_was_asked_for_stays_as_asked(engine: Any, name: str) -> None:
    header, asked = header_of("gemma-4-31B-it"), {"max_model_len": 262_144, name: GIB}
    lines = emitted(header, 200 * GIB, engine=engine, **asked)
    assert lines[0].startswith("# this will not start: a request of 262144 tokens takes")
    words = command(lines)
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(GIB)


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
def test_a_plan_without_a_pool_that_does_not_fit_is_said(engine: Any) -> None:
    header, asked = header_of("gemma-4-31B-it"), {"engine": engine, "max_model_len": 8192}
    total = estimate(header, PlanSettings(**asked)).ledger.total_bytes
    lines = emitted(header, 4 * GIB, **asked)
    assert lines[0] == f"# it does not fit in 4.00 GiB: {show_bytes(total)} are needed"
    assert "does not fit" not in "".join(emitted(header, total, **asked))


@pytest.mark.parametrize("engine", ["gemwright", "vllm"])
def test_a_margin_of_the_cache_is_room_in_the_pool(engine: Any) -> None:
    header, asked = header_of("gemma-4-12B-it"), {"max_model_len": 8192, "max_num_seqs": 3}
    sizes = []
    for margin in ({}, {"kv": 2.0}):
        planned = make_plan(header, PlanSettings(engine=engine, margin=margin, **asked))
        found = start_settings(engine, header, planned.settings, planned.estimate, planned.memory_bytes)
        sizes.append(found.settings["--kv-cache-memory-bytes"])
    assert sizes[1] == 2 * sizes[0]


def test_a_margin_of_weights_leaves_less_for_the_pool() -> None:
    header = header_of("gemma-4-12B-it")
    asked = {"engine": "vllm", "max_model_len": 8192, "memory_bytes": 40 * GIB}
    sizes = []
    for margin in ({}, {"weights": 1.1}):
        planned = make_plan(header, PlanSettings(margin=margin, **asked))
        found = start_settings("vllm", header, planned.settings, planned.estimate, planned.memory_bytes)
        sizes.append(found.settings["--kv-cache-memory-bytes"])
    added = estimate(header, PlanSettings(**asked)).weights_bytes // 10
    assert sizes[0] - sizes[1] == pytest.approx(added, abs=MIB)


def test_vllm_line_with_memory_has_the_users_that_its_share_holds() -> None:
    header = header_of("gemma-4-12B-it")
    asked = {"engine": "vllm", "max_model_len": 8192, "memory_bytes": 40 * GIB}
    words = command(emitted(header, 40 * GIB, **asked))
    assert words[:3] == ["vllm", "serve", header.name]
    flags = read_flags(words[3:], VLLM_FLAGS)
    facts = estimate(header, PlanSettings(**asked)).engine_facts["vllm"]
    assert flags == {
        "--max-model-len": 8192,
        "--max-num-seqs": int(facts["max_concurrency"]),
        "--max-num-batched-tokens": facts["max_num_batched_tokens"],
        "--kv-cache-memory-bytes": facts["available_kv_bytes"],
    }


def test_vllm_line_says_what_was_planned_and_differs_from_the_defaults() -> None:
    asked: dict[str, Any] = {
        "engine": "vllm", "max_model_len": 16_384, "max_num_seqs": 4, "kv_cache_dtype": "fp8", "block_size": 32,
        "tensor_parallel_size": 2, "language_model_only": True, "in_flight_batches": 1, "dtype": "bfloat16",
        "max_num_batched_tokens": 1024, "available_kv_bytes": 12 * GIB,
    }  # fmt: skip
    flags = read_flags(command(emitted(header_of("gemma-4-31B-it"), **asked))[3:], VLLM_FLAGS)
    assert flags.pop("--kv-cache-memory-bytes") == 12 * GIB
    assert flags.pop("--no-async-scheduling") is True
    names = {"--" + name.replace("_", "-"): value for name, value in asked.items()}
    for name in ("--engine", "--in-flight-batches", "--available-kv-bytes"):
        del names[name]
    assert flags == names


def test_vllm_without_memory_gets_the_bytes_of_the_users_planned_for() -> None:
    asked = {"engine": "vllm", "max_model_len": 8192, "max_num_seqs": 3}
    flags = read_flags(command(emitted(header_of("gemma-4-12B-it"), **asked))[3:], VLLM_FLAGS)
    found = estimate(header_of("gemma-4-12B-it"), PlanSettings(**asked))
    assert flags["--kv-cache-memory-bytes"] == 3 * found.kv.bytes_per_sequence


def test_vllm_gets_media_drafter_and_adapters_that_were_planned() -> None:
    asked: dict[str, Any] = {
        "engine": "vllm", "max_model_len": 8192, "num_images": 2, "image_tokens": 560, "audio_seconds": 31.0,
        "draft": True, "num_speculative_tokens": 2, "lora_rank": 12, "num_loras": 3, "gpu_memory_utilization": 0.8,
    }  # fmt: skip
    lines = emitted(header_of("gemma-4-E4B-it"), 40 * GIB, **asked)
    flags = read_flags(command(lines)[3:], VLLM_FLAGS)
    assert flags["--limit-mm-per-prompt"] == {"image": 2, "audio": 2}
    assert flags["--mm-processor-kwargs"] == {"max_soft_tokens": 560}
    drafter = {"method": "mtp", "model": "google/gemma-4-E4B-it-assistant", "num_speculative_tokens": 2}
    assert flags["--speculative-config"] == drafter
    # 16 is the next rank that it has.
    assert (flags["--enable-lora"], flags["--max-lora-rank"], flags["--max-loras"]) == (True, 16, 3)
    assert any("rank 12" in line for line in lines)
    assert flags["--gpu-memory-utilization"] == 0.8


@pytest.mark.parametrize(
    ("engine", "asked", "said"),
    [
        ("gemwright", {"draft": True}, "--draft"),
        ("gemwright", {"lora_rank": 8}, "--lora-rank 8"),
        ("gemwright", {"num_images": 1}, "--images 1"),
        ("gemwright", {"audio_seconds": 5.0}, "--audio-seconds 5"),
        ("vllm", {"num_speculative_tokens": 3}, "--num-speculative-tokens 3"),
        ("vllm", {"draft": True, "engine_version": "0.20.1"}, "0.20.1"),
        ("vllm", {"lora_rank": 513}, "--lora-rank 513"),
        ("ollama", {"draft": True}, "--draft"),
        ("ollama", {"lora_rank": 8, "num_loras": 2}, "--num-loras 2"),
        ("ollama", {"num_images": 1, "image_tokens": 560}, "--image-tokens 560"),
    ],
)
def test_what_an_engine_has_no_setting_for_is_refused(engine: Any, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        emitted(header_of("gemma-4-E4B-it"), engine=engine, max_model_len=8192, **asked)
    assert said in caught.value.describe()


def test_users_beyond_the_pool_are_said_to_wait() -> None:
    asked = {"engine": "vllm", "max_model_len": 8192, "max_num_seqs": 50, "available_kv_bytes": 8 * GIB}
    assert any("requests of this length fit at once" in line for line in emitted(header_of("gemma-4-12B-it"), **asked))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"max_model_len": 8192}, {"-c": 8192, "-np": 4, "--kv-unified": True}),
        ({"max_model_len": 8192, "max_num_seqs": 2}, {"-c": 16_384, "-np": 2}),
        ({"ctx_size": 30_000, "parallel": 1, "ubatch_size": 256}, {"-c": 30_000, "-np": 1, "-ub": 256}),
        ({"ctx_size": 8192, "parallel": 2, "kv_unified": True}, {"-c": 8192, "-np": 2, "--kv-unified": True}),
        ({"max_model_len": 512, "parallel": 1, "swa_full": True}, {"-c": 512, "-np": 1, "--swa-full": True}),
        (
            {"max_model_len": 512, "parallel": 1, "kv_cache_dtype": "q8_0"},
            {"-c": 512, "-np": 1, "-ctk": "q8_0", "-ctv": "q8_0"},
        ),
        ({"max_model_len": 512, "parallel": 1, "flash_attention": False}, {"-c": 512, "-np": 1, "-fa": "off"}),
    ],
)
def test_llama_server_line_has_the_cells_that_were_planned(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    words = command(emitted(header_of("gemma-3-4b-it"), engine="llama.cpp", **asked))
    assert words[0] == "llama-server"
    plain = {"-m": "gemma-3-4b-it.gguf", "-ub": 512, "-ctk": "f16", "-ctv": "f16", "-fa": "on", "-ngl": 99}
    assert read_flags(words[1:], LLAMA_FLAGS) == plain | expected


def test_llama_server_gets_projector_drafter_adapters_and_split_that_were_planned() -> None:
    asked: dict[str, Any] = {"num_images": 1, "image_tokens": 560, "draft": True, "lora_rank": 8, "num_loras": 2}
    lines = emitted(
        header_of("gemma-4-E4B-it"), engine="llama.cpp", parallel=1, max_model_len=8192, tensor_parallel_size=2, **asked
    )
    flags = read_flags(command(lines)[1:], LLAMA_FLAGS)
    expected = {
        "--mmproj": "mmproj-gemma-4-E4B-it.gguf", "--image-max-tokens": 560, "--spec-type": "draft-mtp",
        "-md": "gemma-4-E4B-it-assistant.gguf", "--spec-draft-n-max": 4, "-ngld": 99, "-sm": "layer", "-ts": "1,1",
        "--lora": "adapter-1.gguf,adapter-2.gguf",
    }  # fmt: skip
    assert flags.items() >= expected.items()
    for flag in ("-m", "-md", "--lora", "--mmproj"):
        assert any(line.startswith(f"# {flag}: ") for line in lines)


def test_without_a_device_layers_stay_where_they_were_planned() -> None:
    words = command(emitted(header_of("gemma-3-4b-it"), engine="llama.cpp", device=PROCESSOR, max_model_len=512))
    assert read_flags(words[1:], LLAMA_FLAGS)["-ngl"] == 0
    lines = emitted(header_of("gemma-3-4b-it"), engine="ollama", device=PROCESSOR, max_model_len=512)
    assert "PARAMETER num_gpu 0" in lines


def test_llama_server_line_reads_back_to_the_same_plan() -> None:
    header = header_of("gemma-3-4b-it")
    for asked in ({"max_model_len": 8192}, {"max_model_len": 8000, "max_num_seqs": 3, "kv_cache_dtype": "q4_0"}):
        settings = PlanSettings(engine="llama.cpp", **asked)
        flags = read_flags(command(emitted(header, engine="llama.cpp", **asked))[1:], LLAMA_FLAGS)
        again = PlanSettings(
            engine="llama.cpp", ctx_size=flags["-c"], parallel=flags["-np"], ubatch_size=flags["-ub"],
            cache_type_k=flags["-ctk"], cache_type_v=flags["-ctv"], kv_unified=flags.get("--kv-unified", False),
        )  # fmt: skip
        assert estimate(header, again).needed_bytes == estimate(header, settings).needed_bytes


def test_ollama_gets_a_modelfile_and_an_environment() -> None:
    lines = emitted(
        header_of("gemma-3-4b-it"), engine="ollama", max_model_len=8192, max_num_seqs=2, kv_cache_dtype="q8_0"
    )
    assert lines == [
        "# Modelfile",
        "FROM gemma-3-4b-it.gguf",
        "PARAMETER num_ctx 8192",
        "# environment of ollama serve",
        "OLLAMA_NUM_PARALLEL=2",
        "OLLAMA_FLASH_ATTENTION=1",
        "OLLAMA_KV_CACHE_TYPE=q8_0",
    ]
    assert "PARAMETER num_batch 256" in emitted(header_of("gemma-3-4b-it"), engine="ollama", ubatch_size=256)


def test_a_modelfile_names_projector_and_adapter_that_were_planned() -> None:
    lines = emitted(header_of("gemma-4-E4B-it"), engine="ollama", max_model_len=8192, num_images=1, lora_rank=8)
    first = lines.index("# Modelfile") + 1
    files = ["FROM gemma-4-E4B-it.gguf", "FROM mmproj-gemma-4-E4B-it.gguf", "ADAPTER adapter-1.gguf"]
    assert lines[first : first + 3] == files


@pytest.mark.parametrize(("key", "value"), [("q8_0", "f16"), ("q5_1", "q5_1")])
def test_cache_types_that_ollama_cannot_have_are_refused(key: str, value: str) -> None:
    with pytest.raises(UnsupportedError, match="Ollama"):
        emitted(header_of("gemma-3-4b-it"), engine="ollama", cache_type_k=key, cache_type_v=value)
