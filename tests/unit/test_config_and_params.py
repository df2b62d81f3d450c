"""Settings and sampling parameters are checked once, when they are made; errors say what, value, limit and remedy."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from gemwright import SamplingParams
from gemwright.config import EngineConfig
from gemwright.errors import (
    CapacityError,
    CheckpointError,
    GemwrightError,
    RequestError,
    UnsupportedError,
    show_both_bytes,
    show_bytes,
)

NAN, INFINITY = math.nan, math.inf
NO_NUMBERS = [None, "1", True, [1], NAN, INFINITY, -INFINITY]
NO_COUNTS = [*NO_NUMBERS, 1.0, 2.5, -1]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[("max_tokens", value) for value in [*NO_COUNTS, 0]],
        *[("temperature", value) for value in [*NO_NUMBERS, -0.1, 10**400, 2e9]],
        *[("top_k", value) for value in NO_COUNTS],
        *[("top_p", value) for value in [*NO_NUMBERS, 0, 0.0, -0.1, 1.01]],
        *[("min_p", value) for value in [*NO_NUMBERS, -0.1, 1.01]],
        *[("repetition_penalty", value) for value in [*NO_NUMBERS, 0, -1, 0.001, 1000]],
        *[("presence_penalty", value) for value in [*NO_NUMBERS, -2.1, 2.1]],
        *[("frequency_penalty", value) for value in [*NO_NUMBERS, -2.1, 2.1]],
        *[("seed", value) for value in [*NO_COUNTS[1:], 2**64]],
        *[("n", value) for value in [*NO_COUNTS, 0, 129]],
        *[("min_tokens", value) for value in [*NO_COUNTS, 257]],
        *[("logprobs", value) for value in [*NO_COUNTS[1:], 1001]],
        *[("prompt_logprobs", value) for value in [*NO_COUNTS[1:], 1001]],
        *[("ignore_eos", value) for value in [None, 0, 1, "true"]],
        *[("stop", value) for value in [None, 5, "", ["a", ""], [1], [None], b"a", [b"a"], {"a"}]],
        *[("stop_token_ids", value) for value in [None, 5, "1", [-1], [1.0], ["1"], [True], [None]]],
    ],
)
def test_bad_sampling_parameters_are_named(name: str, bad: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: bad})
    assert caught.value.what == name
    assert caught.value.limit is not None
    assert caught.value.exit_code == 2
    assert caught.value.http_status == 400


@pytest.mark.parametrize(
    "good",
    [
        {"max_tokens": 1, "min_tokens": 1},
        {"max_tokens": 10**9},
        {"temperature": 0},
        {"temperature": 1e9},
        {"temperature": 5e-324},
        {"top_k": 10**12, "top_p": 1, "min_p": 1},
        {"top_p": 1e-300, "min_p": 0},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"n": 128},
        {"logprobs": 0, "prompt_logprobs": 1000},
        {"ignore_eos": True},
    ],
)
def test_the_ends_of_every_range_are_allowed(good: dict[str, Any]) -> None:
    params = SamplingParams(**good)
    assert {name: getattr(params, name) for name in good} == good


def test_stop_is_a_string_or_a_list_and_kept_as_a_tuple() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["ab", "c"], stop_token_ids=[3]) == SamplingParams(  # type: ignore[arg-type]
        stop=("ab", "c"), stop_token_ids=(3,)
    )


def test_parameters_are_named_frozen_and_comparable() -> None:
    params = SamplingParams(top_k=5)
    assert params == copy.copy(params)
    assert hash(params) == hash(SamplingParams(top_k=5))
    with pytest.raises(FrozenInstanceError):
        params.top_k = 6  # type: ignore[misc]
    with pytest.raises(TypeError):
        SamplingParams(5)  # type: ignore[misc]


COUNTS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "kv_cache_memory_bytes", "threads")


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "16", NAN, [1]])
def test_bad_counts_of_an_engine_are_named_with_their_flag(name: str, bad: Any) -> None:
    with pytest.raises(RequestError) as caught:
        EngineConfig(**{name: bad})
    assert caught.value.what == name
    assert caught.value.remedy == f"change --{name.replace('_', '-')}"


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[("dtype", value) for value in ("float16", "half", "bf16", "", None, 32)],
        *[("kv_layout", value) for value in ("k", "", None)],
        *[("kernels", value) for value in ("fast", "", None)],
        *[("device", value) for value in ("", "gpu", "cuda:", "cuda:x", "cuda0", "cpu:0", "mps", None, 0)],
        *[("block_size", value) for value in (3, 24, 2048)],
        *[("threads", value) for value in (1025, 10**12)],
    ],
)
def test_what_an_engine_does_not_offer_is_refused(name: str, bad: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        EngineConfig(**{name: bad})
    assert name in caught.value.what
    assert caught.value.limit is not None
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("bad", [None, 0, "yes"])
def test_a_switch_is_true_or_false(bad: Any) -> None:
    with pytest.raises(RequestError, match="allow_unknown_config_keys"):
        EngineConfig(allow_unknown_config_keys=bad)


def test_float16_says_why_and_what_instead() -> None:
    with pytest.raises(UnsupportedError) as caught:
        EngineConfig(dtype="float16")
    assert "65504" in str(caught.value)
    assert "bfloat16" in str(caught.value)


def test_an_unknown_option_is_no_option() -> None:
    with pytest.raises(TypeError, match="block_sise"):
        EngineConfig(block_sise=8)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "step_tokens"),
    [
        ({}, 512),
        ({"device": "cuda"}, 2048),
        ({"device": "cuda:1"}, 2048),
        ({"max_num_batched_tokens": 1}, 1),
        ({"device": "cuda", "max_num_batched_tokens": 64}, 64),
    ],
)
def test_tokens_of_a_step(options: dict[str, Any], step_tokens: int) -> None:
    assert EngineConfig(**options).step_tokens() == step_tokens


@pytest.mark.parametrize("block_size", [1, 2, 16, 1024])
def test_block_sizes(block_size: int) -> None:
    assert EngineConfig(block_size=block_size).block_size == block_size


@pytest.mark.parametrize(
    ("kind", "exit_code", "http_status"),
    [
        (GemwrightError, 1, 500),
        (RequestError, 2, 400),
        (UnsupportedError, 3, 400),
        (CapacityError, 4, 503),
        (CheckpointError, 5, 500),
    ],
)
def test_every_error_has_its_exit_code_and_status(kind: type[GemwrightError], exit_code: int, http_status: int) -> None:
    error = kind("a thing", value=0, limit="1 or more", remedy="use 1")
    assert (error.exit_code, error.http_status) == (exit_code, http_status)
    assert isinstance(error, GemwrightError)
    assert str(error) == "a thing\n  value: 0\n  limit: 1 or more\n  remedy: use 1"


def test_an_error_says_no_more_than_it_knows_and_always_a_remedy() -> None:
    assert str(GemwrightError("a thing")) == "a thing\n  remedy: --debug shows where"
    assert str(CapacityError("a thing")) == "a thing\n  remedy: allow more memory, or ask for less"
    assert str(GemwrightError("a thing", remedy="stop")) == "a thing\n  remedy: stop"


def test_an_error_can_go_to_another_process() -> None:
    error = CapacityError("a thing", value=3, limit=2, remedy="less")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is CapacityError
    assert str(copied) == str(error)
    assert (copied.what, copied.value, copied.limit, copied.remedy) == ("a thing", 3, 2, "less")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 29, "1.50 GiB")],
)
def test_sizes_are_shown_in_their_unit(size: int, text: str) -> None:
    assert show_bytes(size) == text


def test_two_sizes_that_would_read_the_same_are_told_apart() -> None:
    assert show_both_bytes(1 << 30, (1 << 30) - 1) == ("1.00 GiB", "1024.0 MiB")
    assert show_both_bytes((1 << 30) + 1, 1 << 30) == ("1.00 GiB (1073741825 bytes)", "1.00 GiB (1073741824 bytes)")
