"""Float32 parity with transformers for every family and odd feature, past the window, in chunks and in company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemwright import LLM
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.logits import compute_logits
from tests.parity.oracle import TOLERANCE, Oracle, check_greedy, logit_error

NUM_TOKENS = 64


class Pair:
    """One tiny checkpoint in our engine and in the oracle."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        write_tiny_checkpoint(name, folder, seed=3)
        self.llm = LLM(folder, dtype="float32", max_num_seqs=4, max_model_len=512)
        self.oracle = Oracle(folder)
        vocabulary = self.llm.spec.vocab_size
        generator = np.random.default_rng(11)
        # Windows are 16 to 20 tokens: below one, at its edge, three times and nine times as long.
        self.prompts = [generator.integers(3, vocabulary, length).tolist() for length in (5, 17, 63, 181)]

    def first_different_layer(self, ids: list[int]) -> str:
        """Say after which layer the residuals part, for the message of a failing test."""
        ours: list[np.ndarray] = []
        compute_logits(
            self.llm,
            [ids],
            chunk_sizes=[len(ids)],
            on_layer=lambda _, x: ours.append(self.llm.engine.runner.ops.to_numpy(x)),
        )
        for index, expected in enumerate(self.oracle.residuals(ids)):
            error = np.abs(ours[index] - expected).max() / np.abs(expected).max()
            if error > TOLERANCE:
                return f"residuals part after layer {index} by {error:.1e}: {self.llm.spec.layers[index]}"
        return "residuals agree up to the last layer"


@pytest.fixture(scope="module", params=list(TINY_CONFIGS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


def test_every_tiny_gemma_has_at_least_eight_layers_and_two_kinds(pair: Pair) -> None:
    assert pair.llm.spec.num_layers >= 8
    assert len({layer.kind for layer in pair.llm.spec.layers}) == 2


def test_logits_equal_transformers_at_every_position(pair: Pair) -> None:
    for ids in pair.prompts:
        error = logit_error(compute_logits(pair.llm, [ids], chunk_sizes=[len(ids)])[0], pair.oracle.logits(ids))
        assert error < TOLERANCE, pair.first_different_layer(ids)


def test_greedy_tokens_equal_transformers(pair: Pair) -> None:
    """Sixty-four tokens after every prompt, on the reference's own continuation so that a near tie ends nothing."""
    for ids in pair.prompts:
        tokens = pair.oracle.generate(ids, NUM_TOKENS)
        known = [*ids, *tokens[:-1]]
        ours = compute_logits(pair.llm, [known], chunk_sizes=[len(ids), 1])[0][len(ids) - 1 :]
        check_greedy(ours, pair.oracle.logits(known)[len(ids) - 1 :])


def test_generate_gives_the_tokens_of_its_own_logits(pair: Pair) -> None:
    """The whole engine, freely running, all prompts together: its tokens are the best of the logits of its text."""
    params = pair.llm.sampling_params(max_tokens=NUM_TOKENS, ignore_eos=True)
    for completion in pair.llm.generate(pair.prompts, params):
        num_prompt = len(completion.prompt_token_ids)
        known = [*completion.prompt_token_ids, *completion.token_ids[:-1]]
        ours = compute_logits(pair.llm, [known])[0][num_prompt - 1 :]
        assert ours.argmax(axis=-1).tolist() == list(completion.token_ids)
        check_greedy(ours, pair.oracle.logits(known)[num_prompt - 1 :])


@pytest.mark.parametrize(("chunk_sizes", "num_prompts"), [([1], 3), ([7, 1, 33], 4), ([64, 5], 4)])
def test_chunks_and_company_change_no_bit(pair: Pair, chunk_sizes: list[int], num_prompts: int) -> None:
    prompts = pair.prompts[:num_prompts]
    alone = [compute_logits(pair.llm, [ids], chunk_sizes=[len(ids)])[0] for ids in prompts]
    chunked = [compute_logits(pair.llm, [ids], chunk_sizes=chunk_sizes)[0] for ids in prompts]
    together = compute_logits(pair.llm, prompts, chunk_sizes=chunk_sizes)
    for one, other, third in zip(alone, chunked, together, strict=True):
        assert np.array_equal(one.view(np.int32), other.view(np.int32))
        assert np.array_equal(one.view(np.int32), third.view(np.int32))
