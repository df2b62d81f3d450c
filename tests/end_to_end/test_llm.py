"""LLM on tiny checkpoints: where answers end, their text, streams, memory, and that nothing stays behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemwright import LLM, SamplingParams
from gemwright.engine.request import FinishReason
from gemwright.engine.result import Completion
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from tests.end_to_end.conftest import TinyLLM

PROMPT = [2, 40, 300, 17, 222, 90, 411]


def varied(**settings: Any) -> SamplingParams:
    """Sampling that gives an answer of different tokens, the same one each time."""
    return SamplingParams(**{"max_tokens": 16, "temperature": 12.0, "seed": 3, "ignore_eos": True, **settings})


@pytest.fixture(scope="module")
def llm(tiny_llm: TinyLLM) -> LLM:
    return tiny_llm("gemma3")


@pytest.fixture(scope="module")
def answer(llm: LLM) -> Completion:
    """The answer that the tests below cut short."""
    (completion,) = llm.generate(PROMPT, varied())
    assert len(set(completion.token_ids)) > 10
    assert completion.finish_reason == FinishReason.LENGTH
    return completion


def assert_idle(llm: LLM) -> None:
    """Nothing waits or runs, and every block is free."""
    llm.core.blocks.check()
    assert not llm.core.scheduler.has_work
    assert [pool.num_free for pool in llm.core.blocks.pools] == [g.num_blocks for g in llm.engine.layout.groups]
    assert not llm.core._answers


def test_a_completion_tells_all(llm: LLM, answer: Completion) -> None:
    assert answer.prompt_token_ids == tuple(PROMPT)
    assert len(answer.token_ids) == 16
    assert answer.text == llm.tokenizer.decode(answer.token_ids)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (7, 16, 0)
    assert answer.timing.load_s > 0
    assert answer.timing.ttft_s > 0
    assert answer.timing.decode_tokens_per_s is not None
    assert answer.timing.decode_tokens_per_s > 0
    assert answer.memory.process_bytes > answer.memory.measured_bytes
    assert answer.logprobs is None
    assert answer.prompt_logprobs is None
    assert_idle(llm)


def test_json_reads_back_with_the_same_bits(llm: LLM) -> None:
    (completion,) = llm.generate(PROMPT, varied(logprobs=2, prompt_logprobs=1, max_tokens=3))
    read = json.loads(json.dumps(completion.to_dict()))
    assert set(read) == {
        *("model", "prompt_token_ids", "token_ids", "text", "finish_reason"),
        *("logprobs", "prompt_logprobs", "usage", "timing", "memory"),
    }
    assert completion.logprobs is not None
    assert completion.prompt_logprobs is not None
    assert [[(row["token_id"], row["logprob"]) for row in entry] for entry in read["logprobs"]] == [
        [(row.token_id, row.logprob) for row in entry] for entry in completion.logprobs
    ]
    assert read["prompt_logprobs"][0] is None
    assert len(read["prompt_logprobs"]) == len(PROMPT)
    assert read["finish_reason"] == "length"
    several = llm.generate(PROMPT, varied(n=2))[0].to_dict()
    assert "token_ids" not in several
    assert [set(choice) for choice in several["choices"]] == [{"token_ids", "text", "finish_reason"}] * 2
    assert several["usage"]["completion_tokens"] == 32


def test_a_stop_id_ends_the_answer_and_is_its_last_token_but_no_text(llm: LLM, answer: Completion) -> None:
    stop = answer.token_ids[6]
    end = answer.token_ids.index(stop) + 1
    (completion,) = llm.generate(PROMPT, varied(stop_token_ids=[stop, 514]))
    assert completion.token_ids == answer.token_ids[:end]
    assert completion.finish_reason == FinishReason.STOP
    assert completion.text == llm.tokenizer.decode(answer.token_ids[: end - 1])


def test_a_stop_id_as_the_last_allowed_token_is_a_stop(llm: LLM, answer: Completion) -> None:
    end = answer.token_ids.index(answer.token_ids[6]) + 1
    params = varied(stop_token_ids=[answer.token_ids[6]], max_tokens=end)
    assert llm.generate(PROMPT, params)[0].finish_reason == FinishReason.STOP


def test_the_first_min_tokens_are_no_stop_ids(llm: LLM, answer: Completion) -> None:
    """As elsewhere, the stop id may come right after them: an answer of min_tokens and one."""
    stop = answer.token_ids[0]
    (short,) = llm.generate(PROMPT, varied(stop_token_ids=[stop]))
    assert short.token_ids == (stop,)
    assert short.text == ""
    every_other = [token_id for token_id in range(514) if token_id != answer.token_ids[1]]
    (longer,) = llm.generate(PROMPT, varied(stop_token_ids=every_other, min_tokens=3, max_tokens=5))
    assert longer.token_ids[:3].count(answer.token_ids[1]) + longer.token_ids[:3].count(514) == 3
    assert len(longer.token_ids) >= 4
    (whole,) = llm.generate(PROMPT, varied(stop_token_ids=every_other, min_tokens=5, max_tokens=5))
    assert (len(whole.token_ids), whole.finish_reason) == (5, FinishReason.LENGTH)


@pytest.mark.parametrize("place", [1, 4, 9])
def test_a_stop_string_ends_the_text_before_it(llm: LLM, answer: Completion, place: int) -> None:
    assert answer.text is not None
    stop = answer.text[place : place + 3]
    (completion,) = llm.generate(PROMPT, varied(stop=stop))
    assert completion.text == answer.text[: answer.text.index(stop)]
    assert completion.finish_reason == FinishReason.STOP
    assert completion.token_ids == answer.token_ids[: len(completion.token_ids)]
    assert stop in llm.tokenizer.decode(completion.token_ids)


def with_generation_config(folder: Path, content: dict[str, Any]) -> LLM:
    write_tiny_checkpoint("gemma3", folder)
    (folder / "generation_config.json").write_text(json.dumps(content))
    return LLM(folder, threads=1, max_model_len=64)


@pytest.mark.parametrize("as_list", [True, False])
def test_the_models_own_stop_ids_end_an_answer_unless_ignored(
    answer: Completion, tmp_path: Path, as_list: bool
) -> None:
    eos = answer.token_ids[5]
    end = answer.token_ids.index(eos) + 1
    # An id beyond the vocabulary, as resized models have them, can never come and does no harm.
    llm = with_generation_config(tmp_path, {"eos_token_id": [eos, 100_000] if as_list else eos})
    (stopped,) = llm.generate(PROMPT, varied(ignore_eos=False))
    assert (stopped.token_ids, stopped.finish_reason) == (answer.token_ids[:end], FinishReason.STOP)
    assert llm.generate(PROMPT, varied())[0].token_ids == answer.token_ids
    (later,) = llm.generate(PROMPT, varied(ignore_eos=False, min_tokens=end))
    assert later.token_ids[: end - 1] == answer.token_ids[: end - 1]
    assert later.token_ids[end - 1] != eos


def test_eos_of_the_config_ends_an_answer(tmp_path: Path, answer: Completion) -> None:
    eos = answer.token_ids[5]
    write_tiny_checkpoint("gemma3", tmp_path, overrides={"eos_token_id": [1, eos]})
    (completion,) = LLM(tmp_path, threads=1, max_model_len=64).generate(PROMPT, varied(ignore_eos=False))
    assert completion.token_ids == answer.token_ids[: answer.token_ids.index(eos) + 1]


def test_the_models_own_sampling_is_the_default(tmp_path: Path, llm: LLM) -> None:
    own = with_generation_config(tmp_path, {"do_sample": True, "top_k": 64, "top_p": 0.95, "temperature": None})
    assert own.sampling_params() == SamplingParams(temperature=1.0, top_k=64, top_p=0.95)
    assert own.sampling_params(top_k=3, max_tokens=9) == SamplingParams(top_k=3, top_p=0.95, max_tokens=9)
    assert own.sampling_params(temperature=0).temperature == 0
    assert llm.sampling_params() == SamplingParams(temperature=0)


def test_without_parameters_the_answer_is_the_models_default(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3", max_model_len=16)
    assert llm.generate(PROMPT)[0].token_ids == llm.generate(PROMPT, SamplingParams(temperature=0))[0].token_ids


@pytest.mark.parametrize("num_prompt", [1, 20, 31])
def test_an_answer_ends_where_the_context_does(tiny_llm: TinyLLM, num_prompt: int) -> None:
    """Also where the pool holds one request of that length and no token more than it is asked for."""
    llm = tiny_llm("gemma3", max_model_len=32, max_num_seqs=1, block_size=1)
    (completion,) = llm.generate([2] * num_prompt, varied(max_tokens=1000))
    assert len(completion.token_ids) == 32 - num_prompt
    assert completion.finish_reason == FinishReason.LENGTH
    assert_idle(llm)


def test_more_prompts_than_may_run_at_once_all_get_answers(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma4-e", max_num_seqs=2, max_model_len=48)
    prompts = [[2, 100 + number] for number in range(9)]
    completions = llm.generate(prompts, varied(max_tokens=3))
    assert [completion.prompt_token_ids for completion in completions] == [tuple(prompt) for prompt in prompts]
    assert all(len(completion.token_ids) == 3 for completion in completions)
    assert_idle(llm)


def test_what_counts_as_a_prompt(llm: LLM) -> None:
    params = varied(max_tokens=2)
    (ids,) = llm.generate(PROMPT, params)
    assert llm.generate(np.array(PROMPT), params)[0].token_ids == ids.token_ids
    assert [one.token_ids for one in llm.generate([PROMPT, np.array(PROMPT)], params)] == [ids.token_ids] * 2
    (text,) = llm.generate("ab", params)
    assert text.prompt_token_ids == (2, 108 + ord("a"), 108 + ord("b"))
    both = llm.generate(["ab", PROMPT], params)
    assert [one.token_ids for one in both] == [text.token_ids, ids.token_ids]
    assert llm.generate([], params) == []


def test_text_gets_one_bos_whether_or_not_it_spells_one(llm: LLM) -> None:
    assert llm.encode("a") == llm.encode("<bos>a") == [2, 108 + ord("a")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(TINY_CONFIGS))
def test_planned_bytes_are_the_measured_ones(name: str, dtype: str, tiny_llm: TinyLLM) -> None:
    llm = tiny_llm(name, dtype=dtype)
    assert llm.engine.planned_bytes == llm.engine.measured_bytes > 0
    assert llm.engine.planned_bytes == sum(line.planned_bytes for line in llm.engine.lines)


def test_pieces_of_a_stream_join_to_the_text(llm: LLM, answer: Completion) -> None:
    *pieces, completion = llm.stream(PROMPT, varied())
    assert isinstance(completion, Completion)
    assert completion.token_ids == answer.token_ids
    assert "".join(str(piece) for piece in pieces) == completion.text == answer.text
    assert len(pieces) > 5
    assert_idle(llm)


def test_a_stream_never_shows_a_part_of_a_stop_string(llm: LLM, answer: Completion) -> None:
    assert answer.text is not None
    stop = answer.text[5:9]
    *pieces, completion = llm.stream(PROMPT, varied(stop=[stop, "never said"]))
    assert "".join(str(piece) for piece in pieces) == answer.text[: answer.text.index(stop)]
    assert isinstance(completion, Completion)
    assert completion.finish_reason == FinishReason.STOP


@pytest.mark.parametrize("num_pieces", [0, 1, 3])
def test_an_aborted_stream_gives_back_its_blocks(llm: LLM, num_pieces: int) -> None:
    stream = llm.stream(PROMPT, varied(max_tokens=100))
    for _ in range(num_pieces):
        next(stream)
    stream.close()
    assert_idle(llm)


def test_an_interrupted_step_leaves_nothing_behind_and_hurts_no_one_else(
    tiny_llm: TinyLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller is interrupted in the middle of a step that serves an older request too. The older one's chunk is then
    computed anew, of another size, and its window must still be there."""
    llm = tiny_llm("gemma3", max_num_batched_tokens=50, block_size=4, prefix_caching=False)
    long = [2, *(20 + 7 * place % 400 for place in range(120))]
    (expected,) = llm.generate(long, varied())
    run, calls = llm.core.runner.run, 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(llm.core.runner, "run", interrupted)
    (request,) = llm.core.add(long, varied(), seed=3)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT, PROMPT], varied(max_tokens=4))
    assert request.num_computed == 50
    llm.core.scheduler.step_tokens = 37
    while request.finish_reason is None:
        llm.core.step()
    assert tuple(request.token_ids) == expected.token_ids
    llm.core.forget(request)
    assert_idle(llm)
