"""What has no effect on a plan, and what cannot be, is refused with the flag and the limit."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.errors import GemwrightError, RequestError, UnsupportedError
from gemwright.planner.answers import make_plan
from gemwright.planner.checks import check_against_model
from gemwright.planner.devices import find_device
from gemwright.planner.load import parse_mix
from gemwright.planner.settings import PlanSettings
from tests.planned_models import GIB, header_of, spec_of

E4B, LARGE, TEXT = "gemma-4-E4B-it", "gemma-4-31B-it", "gemma-3-1b-it"
VLLM, LLAMA = {"engine": "vllm"}, {"engine": "llama.cpp"}
H100 = find_device("H100")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"num_loras": 3}, ("--num-loras", "add --lora-rank")),
        ({"num_loras": 1}, ("--num-loras", "add --lora-rank")),
        ({"image_tokens": 281, "num_images": 1}, ("281", "70, 140, 280, 560, 1120", "--image-tokens")),
        ({"audio_seconds": 1e300}, ("0 to 100000 seconds", "--audio-seconds")),
        ({"audio_seconds": float("nan")}, ("0 to 100000 seconds", "--audio-seconds")),
        ({"margin": {"weights": 0.5}}, ("--margin weights=0.5", "from 1 to 100")),
        ({"margin": {"kv": 1e308}}, ("--margin kv=1e+308", "from 1 to 100")),
        ({"margin": {"kv": float("nan")}}, ("--margin kv=nan", "from 1 to 100")),
        *(({**VLLM, "block_size": size}, (str(size), "multiples of 16", "--block-size 16")) for size in (1, 17, 24)),
    ],
)
def test_numbers_that_no_model_takes(asked: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as error:
        PlanSettings(**asked)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kv_unified": False}, "--no-kv-unified is not a setting of gemwright"),
        ({"kv_unified": True}, "--kv-unified is not a setting of gemwright"),
        ({"flash_attention": False}, "--no-flash-attn is not a setting of gemwright"),
        ({"swa_full": True}, "--swa-full is not a setting of gemwright"),
    ],
)
def test_a_switch_of_another_engine_is_named_as_it_was_typed(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as error:
        PlanSettings(**asked)
    assert "value" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        (E4B, {"image_tokens": 70}, ("--image-tokens 70", "add --images 1")),
        (TEXT, {"image_tokens": 280, **VLLM}, ("--image-tokens 280", "leave --image-tokens out")),
        (E4B, {"image_tokens": 70, **VLLM, "language_model_only": True}, ("--image-tokens 70",)),
        ("gemma-3-4b-it", {"image_tokens": 280, "num_images": 1}, ("--image-tokens 280", "limit: 256")),
        (TEXT, {"num_images": 2}, ("takes no images", "leave --images out")),
        (TEXT, {"num_images": 2, **LLAMA}, ("takes no images", "leave --images out")),
        (TEXT, {"num_images": 2, **VLLM}, ("takes no images", "leave --images out")),
        (LARGE, {"audio_seconds": 3.0}, ("takes no sound", "leave --audio-seconds out")),
        (E4B, {"num_images": 1, "language_model_only": True, **VLLM}, ("--language-model-only", "--images")),
        (E4B, {"num_images": 3000, "max_model_len": 4096}, ("840,000 tokens", "4,096 tokens", "lower --images")),
        (E4B, {"num_images": 999_999_999_999}, ("131,072 tokens", "lower --images")),
        # 25 tokens a second: 99,999 s are 2,499,975 of 131,072.
        (E4B, {"audio_seconds": 99_999.0}, ("2,499,975 of sound", "--audio-seconds")),
        (E4B, {"lora_rank": 2561}, ("2560, the width", "--lora-rank")),
        (E4B, {"lora_rank": 513, **VLLM}, ("512, --max-lora-rank of vLLM",)),
        (E4B, {"max_num_seqs": 10**20}, ("--max-num-seqs", "1000000")),
        (E4B, {"max_num_batched_tokens": 10**20}, ("--max-num-batched-tokens", "1000000")),
        (E4B, {"ubatch_size": 10**7, **LLAMA}, ("--ubatch-size", "1000000")),
        (E4B, {"num_speculative_tokens": 10**7, **VLLM}, ("--num-speculative-tokens", "1000000")),
        (E4B, {"parallel": 2, "max_num_seqs": 8, **LLAMA}, ("--parallel and --max-num-seqs", "2 and 8")),
        (E4B, {"in_flight_batches": 99_999, **VLLM}, ("--in-flight-batches", "limit: 42")),
        (E4B, {"block_size": 1_000_000, **VLLM}, ("--block-size 1000000", "131072 tokens")),
        (E4B, {"max_num_batched_tokens": 10, "max_num_seqs": 256, **VLLM}, ("10 tokens", "--max-num-seqs 256")),
        (E4B, {"max_num_seqs": 2049, **VLLM}, ("2048 tokens", "add --max-num-batched-tokens 2049")),
        (E4B, {"memory_bytes": 200 * GIB, "device": H100}, ("200.00 GiB", "79.65 GiB", "--memory")),
    ],
)
def test_what_has_no_effect_on_a_model_or_cannot_be(name: str, asked: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as error:
        make_plan(header_of(name), PlanSettings(**asked))
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (E4B, {"image_tokens": 70, "num_images": 1}),
        (E4B, {"image_tokens": 1120, **VLLM}),  # its profile run encodes images
        (E4B, {"num_images": 468}),  # 131,040 of 131,072 tokens
        (E4B, {"audio_seconds": 30.0, "num_images": 2}),
        ("gemma-3-4b-it", {"num_images": 1, "image_tokens": None}),
        ("gemma-4-12B-it", {"audio_seconds": 3.0}),  # it has no tower for sound, and hears
        (E4B, {"lora_rank": 512, "num_loras": 4, **VLLM}),
        (E4B, {"parallel": 8, "max_num_seqs": 8, **LLAMA}),
        (E4B, {"block_size": 48, **VLLM}),
        (E4B, {"max_num_batched_tokens": 256, "max_num_seqs": 256, **VLLM}),
        (E4B, {"max_num_batched_tokens": 10, **VLLM}),  # vLLM lowers its own number of requests to it
        (E4B, {"max_num_batched_tokens": 10, "max_num_seqs": 256}),  # our engine runs some a step later
        (E4B, {"memory_bytes": 10 * GIB, "device": H100}),
        (E4B, {"memory_bytes": H100.memory_bytes, "device": H100}),
        (E4B, {"margin": {"weights": 1.0, "kv": 100}}),
    ],
)
def test_what_does_have_an_effect_is_planned(name: str, asked: dict[str, Any]) -> None:
    check_against_model(spec_of(name), PlanSettings(**asked))


def test_a_prefix_is_no_longer_than_the_longest_request() -> None:
    assert parse_mix("p50=2000,max=32000", 32_000).shared_prefix_tokens == 32_000
    with pytest.raises(RequestError, match="--shared-prefix 40000"):
        parse_mix("p50=2000,max=32000", 40_000)


def test_our_engines_cache_may_be_named_by_what_it_is_anyway() -> None:
    plain = make_plan(header_of(E4B), PlanSettings(max_model_len=1000))
    for asked in ({"kv_cache_dtype": "bfloat16"}, {"kv_cache_dtype": "bfloat16", "dtype": "bfloat16"}):
        assert make_plan(header_of(E4B), PlanSettings(max_model_len=1000, **asked)).ledger == plain.ledger
    with pytest.raises(UnsupportedError, match="the dtype it computes in"):
        make_plan(header_of(E4B), PlanSettings(kv_cache_dtype="float32"))


@pytest.mark.parametrize(("name", "listed"), [("Xeon", "Intel Xeon Platinum 8480+"), ("epyc", "AMD EPYC 9654")])
def test_a_makers_word_lists_what_it_makes(name: str, listed: str) -> None:
    with pytest.raises(GemwrightError, match="no device of this name") as error:
        find_device(name)
    assert listed in str(error.value)


def test_where_no_name_is_close_all_are_listed() -> None:
    with pytest.raises(UnsupportedError, match="none is close") as error:
        find_device("abacus")
    assert "NVIDIA T4, " in str(error.value)
    assert "AMD Ryzen 9 7950X" in str(error.value)
