"""Requests and models that cannot be served are refused before anything runs, with the limit and the exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemwright import LLM, SamplingParams
from gemwright.engine import start
from gemwright.errors import CapacityError, CheckpointError, GemwrightError, RequestError, UnsupportedError
from gemwright.spec.families import read_config
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors, write_safetensors
from tests.end_to_end.conftest import TinyFolder, TinyLLM
from tests.published_configs import load_config

GREEDY = SamplingParams(max_tokens=3, temperature=0)


@pytest.fixture(scope="module")
def llm(tiny_llm: TinyLLM) -> LLM:
    return tiny_llm("gemma3", max_model_len=32)


def refused(llm: LLM, prompts: Any, params: SamplingParams = GREEDY) -> RequestError:
    """Return the error of generate, which must not have run a step, nor left anything behind."""
    before = llm.core.counters.num_steps
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, params)
    assert llm.core.counters.num_steps == before
    assert not llm.core.scheduler.has_work
    assert caught.value.exit_code == 2
    return caught.value


def test_an_empty_prompt(llm: LLM) -> None:
    assert "empty" in refused(llm, [[]]).what
    assert "empty" in refused(llm, [[2, 3], []]).what
    with pytest.raises(RequestError, match="empty"):
        next(llm.stream([]))


@pytest.mark.parametrize("bad", [-1, 515, 10**30, 2.0, 2.5, "a", None, True, np.float32(3), np.int64(515)])
def test_ids_out_of_range_or_no_integers(llm: LLM, bad: Any) -> None:
    error = refused(llm, [[2, bad, 3]])
    assert error.what == "prompt_token_ids"
    assert error.value == repr(bad)
    assert "0 to 514" in str(error.limit)


@pytest.mark.parametrize("bad", [5, None, b"text", {"prompt": "text"}, [b"text"], [{"prompt": "text"}], [None]])
def test_what_is_no_prompt(llm: LLM, bad: Any) -> None:
    assert "a prompt is text or a list of token ids" in refused(llm, bad).what


def test_a_prompt_that_leaves_no_room(llm: LLM) -> None:
    assert len(llm.generate([2] * 31, GREEDY)[0].token_ids) == 1
    error = refused(llm, [2] * 32)
    assert (error.value, error.limit) == ("32 tokens", "31 tokens (max_model_len 32)")
    assert "--max-model-len" in str(error.remedy)


def test_stop_ids_out_of_range(llm: LLM) -> None:
    assert refused(llm, [2], SamplingParams(stop_token_ids=(3, 515))).what == "stop_token_ids"


def test_a_stream_is_one_answer(llm: LLM) -> None:
    with pytest.raises(RequestError, match="a stream is one answer"):
        next(llm.stream([2], SamplingParams(n=2)))


@pytest.mark.parametrize("setting", [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"seed": 3}])
def test_settings_that_greedy_decoding_would_ignore(llm: LLM, setting: dict[str, Any]) -> None:
    (name,) = setting
    for more in ({}, {"temperature": 0}):
        with pytest.raises(RequestError, match=f"{name} has no effect at temperature 0"):
            llm.sampling_params(**setting, **more)
    assert getattr(llm.sampling_params(**setting, temperature=0.5), name) == setting[name]


def test_a_checkpoint_without_tokenizer_takes_ids_and_no_text(tmp_path: Path) -> None:
    write_tiny_checkpoint("gemma3", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    llm = LLM(tmp_path, threads=1, max_model_len=32)
    (completion,) = llm.generate([2, 3], GREEDY)
    assert completion.text is None
    assert len(completion.token_ids) == 3
    assert completion.to_dict()["text"] is None
    (streamed,) = llm.stream([2, 3], GREEDY)
    assert not isinstance(streamed, str)
    assert streamed.token_ids == completion.token_ids
    assert "no tokenizer" in refused(llm, "text").what
    assert "need a tokenizer" in refused(llm, [2], SamplingParams(stop=("x",))).what


def test_more_context_than_the_model_has(tiny_llm: TinyLLM) -> None:
    with pytest.raises(RequestError, match="beyond the model's context") as caught:
        tiny_llm("gemma3", max_model_len=4097)
    assert (caught.value.value, caught.value.limit) == (4097, 4096)


def test_a_pool_too_small_for_one_request(tiny_llm: TinyLLM) -> None:
    with pytest.raises(CapacityError, match="cannot hold one request of 256 tokens") as caught:
        tiny_llm("gemma3", kv_cache_memory_bytes=1000)
    assert caught.value.exit_code == 4
    assert "limit: 1000 bytes allowed" in str(caught.value)
    with pytest.raises(CapacityError, match="smaller than one block of every group"):
        tiny_llm("gemma3", kv_cache_memory_bytes=1000, max_model_len=None)


def test_a_context_left_open_is_lowered_to_what_the_pool_holds_and_said_so(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3", kv_cache_memory_bytes=300_000, max_model_len=None)
    held = llm.engine.max_model_len
    assert 1 < held < 4096
    (note,) = [note for note in llm.engine.notes if "context lowered" in note]
    assert f"from the model's 4096 to {held} tokens" in note
    assert llm.engine.layout.total_bytes <= 300_000
    assert len(llm.generate([2] * (held - 2), GREEDY)[0].token_ids) == 2
    with pytest.raises(CapacityError):
        tiny_llm("gemma3", kv_cache_memory_bytes=300_000, max_model_len=held + 16)


def test_a_model_larger_than_free_memory(tiny_llm: TinyLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "free_memory_bytes", lambda: 700_000)
    with pytest.raises(CapacityError, match="does not fit in free memory") as caught:
        tiny_llm("gemma3", max_model_len=32)
    assert "limit: 683.6 KiB free" in str(caught.value)
    assert "most of it for" in str(caught.value)


def test_a_quarter_of_free_memory_is_the_pools_limit(tiny_llm: TinyLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = 12 << 20
    monkeypatch.setattr(start, "free_memory_bytes", lambda: free_bytes)
    llm = tiny_llm("gemma3", max_model_len=None)
    assert llm.engine.layout.total_bytes <= free_bytes // 4
    assert llm.engine.planned_bytes <= free_bytes


def test_float16_is_refused_and_a_float16_checkpoint_is_computed_in_bfloat16(tiny_folder: TinyFolder) -> None:
    folder = tiny_folder("gemma3", dtype="float16")
    with pytest.raises(UnsupportedError, match="float16 is refused") as caught:
        LLM(folder, dtype="float16")
    assert caught.value.exit_code == 3
    llm = LLM(folder, threads=1, max_model_len=32)
    assert llm.engine.dtype == "bfloat16"
    assert [note for note in llm.engine.notes if "the checkpoint is float16" in note]
    exact = LLM(folder, threads=1, max_model_len=32, dtype="float32")
    assert exact.engine.dtype == "float32"
    assert not [note for note in exact.engine.notes if "float16" in note]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_left_to_itself_the_engine_keeps_the_checkpoints_dtype(tiny_folder: TinyFolder, dtype: str) -> None:
    llm = LLM(tiny_folder("gemma3", dtype=dtype), threads=1, max_model_len=32)
    assert llm.engine.dtype == dtype


def test_a_drafter_cannot_answer_alone(tmp_path: Path) -> None:
    config = load_config("gemma-4-E2B-it-assistant")
    config |= {"backbone_hidden_size": 48, "use_ordered_embeddings": False}
    config["text_config"] |= {
        **{"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 8},
        **{"global_head_dim": 16, "vocab_size": 515, "vocab_size_per_layer_input": 515},
    }
    spec = read_config(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    values = random_tensors(spec, seed=0)
    prefixed = {("" if tensor.at_root else "model.") + tensor.safetensors: array for tensor, array in values.items()}
    write_safetensors(tmp_path / "model.safetensors", prefixed)
    with pytest.raises(UnsupportedError, match="this is a drafter") as caught:
        LLM(tmp_path)
    assert caught.value.value == tmp_path.name


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"do_sample": True, "temperature": "warm"}, "temperature"),
        ({"do_sample": True, "top_k": -1}, "top_k"),
        ({"do_sample": True, "top_p": 0}, "top_p"),
        ({"eos_token_id": "1"}, "eos_token_id"),
        ({"eos_token_id": [1, -5]}, "eos_token_id"),
        ({"eos_token_id": [1, True]}, "eos_token_id"),
    ],
)
def test_generation_defaults_that_cannot_be(tmp_path: Path, content: dict[str, Any], what: str) -> None:
    write_tiny_checkpoint("gemma3", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"generation defaults: {what}") as caught:
        LLM(tmp_path, threads=1, max_model_len=32)
    assert caught.value.exit_code == 5


def test_without_torch_the_error_says_how_to_get_it(tiny_llm: TinyLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gemwright.ops.reference")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError, match="needs torch") as caught:
        tiny_llm("gemma3")
    assert "gemwright[torch]" in str(caught.value.remedy)


def test_logits_that_are_no_numbers_end_the_request_and_leave_nothing(
    tiny_llm: TinyLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are finite, so it takes a fault below: sampled tokens and prompt logprobs refuse alike."""
    llm = tiny_llm("gemma3")
    to_numpy = llm.core.runner.ops.to_numpy

    def broken(x: Any) -> Any:
        values = to_numpy(x)
        values[:, 7] = np.nan
        return values

    monkeypatch.setattr(llm.core.runner.ops, "to_numpy", broken)
    for params in (GREEDY, SamplingParams(), SamplingParams(prompt_logprobs=0)):
        with pytest.raises(GemwrightError, match="not finite"):
            llm.generate([2, 3, 4], params)
        assert not llm.core.scheduler.has_work
        llm.core.blocks.check()
    monkeypatch.undo()
    assert len(llm.generate([2, 3, 4], GREEDY)[0].token_ids) == 3
