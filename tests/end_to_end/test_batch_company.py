"""A batch gives the same tokens and the same logprob bits for every line, whatever the steps, the company, the block
size, the threads, the prefix cache, and a pool so small that requests lose their blocks and begin again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemwright.ops.reference import float32_rows_are_independent
from tests.end_to_end.command_line import CommandLine
from tests.end_to_end.conftest import TinyFolder, TinyLLM

MAX_LENGTH = 96
FEW = ("--max-num-batched-tokens", 7, "--max-num-seqs", 3)
MANY = ("--max-num-batched-tokens", 4096, "--max-num-seqs", 64)
# Without MKL's strict mode the engine itself says that results hold for one number of threads.
TWO = 2 if float32_rows_are_independent() else 1
SIXTY_FOUR = [2, *(7 * place % 480 + 20 for place in range(63))]


def mixed_lines(number: int) -> list[dict[str, Any]]:
    """Return prompts of 1 to 61 tokens, some of which begin alike, greedy and sampled in every way, some with n of 3;
    the last two have an equal prompt of 64 tokens."""
    sampling: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 12, "seed": 5},
        {"temperature": 9, "top_k": 40, "top_p": 0.9, "seed": 2**63},
        {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"temperature": 15, "min_p": 0.5, "seed": 1, "n": 3},
        {"temperature": 0, "logit_bias": {"77": 20}, "bad_words": ["a"]},
    ]
    lines: list[dict[str, Any]] = []
    for place in range(number):
        begin, length = place % 7, place * 13 % 61
        ids = [2, *((7 * token + 31 * begin) % 480 + 20 for token in range(length))]
        tokens = {"max_tokens": 1 + place * 5 % 14, "ignore_eos": place % 4 > 0}
        lines.append({"id": place, "prompt_token_ids": ids, "logprobs": 2, **tokens, **sampling[place % 6]})
    for name in ("first", "second"):
        lines.append({"id": name, "prompt_token_ids": SIXTY_FOUR, "max_tokens": 4, "temperature": 0, "logprobs": 2})
    return lines


class Runner:
    """Answers the same lines under one setting after another."""

    def __init__(self, gemwright: CommandLine, folder: Path, place: Path, lines: list[dict[str, Any]]) -> None:
        self.gemwright, self.folder, self.place = gemwright, folder, place
        self.num_runs = 0
        self.source = place / "in.jsonl"
        self.source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def __call__(self, *flags: object) -> tuple[dict[str, int], dict[Any, Any], dict[Any, int]]:
        """Return the summary, each line's answers, and how many of its prompt's tokens were cached."""
        self.num_runs += 1
        target = self.place / f"out{self.num_runs}.jsonl"
        words = ("batch", self.folder, self.source, target, "--max-model-len", MAX_LENGTH, "--json", *flags)
        outcome = self.gemwright(*words)
        assert outcome.code == 0, outcome.stderr
        outputs = [json.loads(line) for line in target.read_text().splitlines()]
        answers = {
            output["id"]: [
                (choice["token_ids"], choice["text"], choice["finish_reason"], choice["logprobs"])
                for choice in output.get("choices", [output])
            ]
            for output in outputs
        }
        assert len(answers) == len(outputs)
        return outcome.json(), answers, {output["id"]: output["usage"]["cached_tokens"] for output in outputs}


def small_pool(tiny_llm: TinyLLM, name: str, num_requests: float, step_tokens: int) -> int:
    """Return bytes of K/V for so many of the longest requests."""
    layout = tiny_llm(name, max_model_len=MAX_LENGTH, block_size=8).engine.layout
    return int(num_requests * layout.request_bytes(MAX_LENGTH - 1, step_tokens))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"),
    [
        *[(name, 18) for name in ("gemma4-k-equals-v", "gemma4-moe", "gemma3")],
        ("gemma4-e", 100),
    ],
)
def test_no_setting_changes_an_answer(
    gemwright: CommandLine, tiny_folder: TinyFolder, tiny_llm: TinyLLM, tmp_path: Path, name: str, number: int
) -> None:
    run = Runner(gemwright, tiny_folder(name), tmp_path, mixed_lines(number))
    one_by_one, expected, _ = run("--max-num-seqs", 1, "--no-prefix-caching")
    assert len(expected) == number + 2
    assert one_by_one["max_running"] == 1

    many, answers, cached = run(*MANY, "--block-size", 8)
    assert answers == expected
    assert many["max_running"] >= 16
    assert many["num_steps"] <= one_by_one["num_steps"] / 4
    assert many["num_preemptions"] == 0
    assert many["cached_tokens"] == sum(cached.values()) > 0
    assert cached["second"] > 0

    few, answers, _ = run(*FEW, "--block-size", 16)
    assert answers == expected
    assert few["max_running"] == 3

    threads = TWO if name == "gemma4-e" else 1  # on a busy machine two wait for each other at every operation
    for flags in (
        (*MANY, "--block-size", 32, "--no-prefix-caching", "--threads", threads),
        (*FEW, "--block-size", 32, "--no-prefix-caching"),
    ):
        summary, answers, cached = run(*flags)
        assert answers == expected, flags
        assert summary["cached_tokens"] == sum(cached.values()) == 0
        assert summary["num_preemptions"] == 0
    for flags, num_requests, step_tokens in (
        ((*MANY, "--block-size", 8), 1.6, 4096),
        ((*FEW, "--block-size", 8, "--no-prefix-caching"), 1, 7),
    ):
        pool = small_pool(tiny_llm, name, num_requests, step_tokens)
        summary, answers, _ = run(*flags, "--kv-cache-memory-bytes", pool)
        assert answers == expected, flags
        assert summary["num_preemptions"] > 0, flags
        assert summary["completion_tokens"] == one_by_one["completion_tokens"]
        assert summary["prompt_tokens"] == one_by_one["prompt_tokens"]
