"""The rule of `verify` for greedy tokens, on scripted answers: what is equal, what a near tie, what a difference."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemwright.cli.verify import read_prompts
from gemwright.errors import CheckpointError, GemwrightError, RequestError, UnsupportedError
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS
from gemwright.testing.prompts import builtin_prompts
from gemwright.verify import TOLERANCE, Reference, _compare_tokens

PROMPT = [2, 5, 6]
EXPECTED = [1, 2, 3, 4]


class Script:
    """Stands for an LLM: answers every known text by its own table, and else with the reference's tokens."""

    def __init__(self, other: dict[int, int]) -> None:
        self.other = other
        self.asked: list[list[int]] = []

    def generate(self, prompts: Sequence[Sequence[int]], params: Any) -> list[Any]:
        (ids,) = prompts
        self.asked.append(list(ids))
        done = len(ids) - len(PROMPT)
        tokens = [self.other.get(place, EXPECTED[place]) for place in range(done, len(EXPECTED))]
        assert params.max_tokens == len(tokens)
        assert params.ignore_eos
        return [SimpleNamespace(token_ids=tuple(tokens))]


def rows(second_best: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return logits of ours and of the reference that differ nowhere: spread 10, the reference's token best, token 7
    below it by `second_best`."""
    answer = []
    for token in EXPECTED:
        row = np.zeros(9, dtype=np.float32)
        row[token], row[7] = 10.0, 10.0 - second_best
        answer.append((row, row))
    return answer


def test_equal_tokens_are_asked_for_once() -> None:
    script = Script({})
    assert _compare_tokens(script, PROMPT, EXPECTED, rows(1.0)) == (4, 0, None)
    assert script.asked == [PROMPT]


def test_after_a_near_tie_it_goes_on_from_the_references_token() -> None:
    script = Script({1: 7})
    assert _compare_tokens(script, PROMPT, EXPECTED, rows(0.9 * TOLERANCE * 10)) == (3, 1, None)
    assert script.asked == [PROMPT, [*PROMPT, 1, 2]]


def test_another_token_that_is_no_near_tie_is_a_difference() -> None:
    script = Script({1: 7, 3: 8})
    num_equal, num_ties, difference = _compare_tokens(script, PROMPT, EXPECTED, rows(1.1 * TOLERANCE * 10))
    assert (num_equal, num_ties) == (2, 0)
    assert difference is not None
    # The row that chose token 1 of the answer is that of token 0 of the answer.
    assert (difference.position, difference.our_token, difference.reference_token) == (len(PROMPT), 7, 2)
    assert difference.reference_logits == (pytest.approx(9.9989, abs=1e-5), 10.0)


def reference_with(config: dict[str, Any]) -> Reference:
    reference = object.__new__(Reference)
    reference.model = SimpleNamespace(config=SimpleNamespace(to_dict=lambda: dict(config)))
    return reference


def test_a_reference_that_reads_other_settings_from_gguf_is_none() -> None:
    linear, plain = TINY_CONFIGS["gemma3-linear"], {**TINY_CONFIGS["gemma3-linear"], "rope_scaling": None}
    spec = read_config(linear)
    gguf = {"quantization_config": {"quant_method": "gguf"}}
    reference_with({**linear, **gguf}).check_settings(spec)
    with pytest.raises(UnsupportedError, match="another model from this GGUF file") as caught:
        reference_with({**plain, **gguf}).check_settings(spec)
    assert "layer 2: rope" in str(caught.value)
    with pytest.raises(UnsupportedError, match="final_softcap"):
        reference_with({**linear, **gguf, "final_logit_softcapping": 30.0}).check_settings(spec)
    # A config.json is read by transformers as it is meant.
    reference_with(plain).check_settings(spec)


def test_builtin_prompts_pass_the_window_and_hold_no_control_ids() -> None:
    spec = read_config({**TINY_CONFIGS["gemma3"], "vocab_size": 12})
    prompts = dict(builtin_prompts(spec, None, longest=100, excluded=[5, 7]))
    assert prompts == dict(builtin_prompts(spec, None, longest=100, excluded=[5, 7]))
    assert len(prompts["past the window"]) == spec.layers[0].window + 48
    assert {token for ids in prompts.values() for token in ids} == {3, 4, 6, 8, 9, 10, 11}
    assert "past the window" not in dict(builtin_prompts(spec, None, longest=50))
    texts = dict(builtin_prompts(spec, lambda text: list(text.encode()), longest=100))
    assert bytes(texts["sentence"]) == b"The capital of France is"
    assert bytes(texts["past the window"]).startswith(b"The river rose")


def test_prompt_files(tmp_path: Any) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text("one\n\n  two words\n{}\n")
    assert read_prompts(text) == [("line 1", "one"), ("line 3", "  two words"), ("line 4", "{}")]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "one\\ntwo"}\n{"id": 7, "prompt_token_ids": [2, 3]}\n')
    assert read_prompts(lines) == [(f"{lines}, line 1", "one\ntwo"), ("7", [2, 3])]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.txt", b"\n \n", RequestError),
        ("a.txt", b"\xff", CheckpointError),
        ("a.jsonl", b"one", RequestError),
        ("a.jsonl", b'["one"]', RequestError),
        ("a.jsonl", b'{"text": "one"}', RequestError),
        ("a.jsonl", b'{"prompt": ""}', RequestError),
        ("a.jsonl", b'{"prompt_token_ids": [1, 2.0]}', RequestError),
        ("a.jsonl", b'{"prompt_token_ids": []}', RequestError),
        ("a.jsonl", b'{"prompt": "a", "prompt_token_ids": [1]}', RequestError),
    ],
)
def test_prompt_files_that_hold_none(tmp_path: Any, name: str, content: bytes, kind: type[GemwrightError]) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(kind, match=name):
        read_prompts(tmp_path / name)
    with pytest.raises(CheckpointError):
        read_prompts(tmp_path / "missing.txt")
