"""A fact eight and twelve thousand tokens back, against what transformers answered (tests/data/needle_answers.json)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemwright import LLM
from gemwright.engine.request import SamplingParams
from tests.needles import needle_ids
from tests.parity.oracle import TOLERANCE

DATA = Path(__file__).parents[1] / "data"
ANSWERS: list[dict[str, Any]] = json.loads((DATA / "needle_answers.json").read_text())["answers"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", max_num_seqs=1, max_model_len=12_500)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS, ids=[str(answer["length"]) for answer in ANSWERS])
def test_needle_has_the_reference_tokens_and_logits(llm: LLM, answer: dict[str, Any]) -> None:
    ids = needle_ids(llm.encode, answer["length"])
    count = len(answer["logit_ids"])
    params = SamplingParams(temperature=0, max_tokens=len(answer["token_ids"]), logprobs=1000)
    completion = llm.generate(ids, params)[0]
    assert list(completion.token_ids) == answer["token_ids"]
    assert "48213" in (completion.text or "")
    assert completion.logprobs is not None
    # A row's logits are its log probabilities up to one constant, which the differences to the best token drop.
    ours = {entry.token_id: entry.logprob for entry in completion.logprobs[0]}
    reference = dict(zip(answer["logit_ids"], answer["logits"], strict=True))
    common = [token_id for token_id in reference if token_id in ours]
    assert len(common) > count // 4
    best = common[int(np.argmax([reference[token_id] for token_id in common]))]
    errors = [
        abs((ours[token_id] - ours[best]) - (reference[token_id] - reference[best])) / answer["spread"]
        for token_id in common
    ]
    assert max(errors) < TOLERANCE


@pytest.mark.slow
def test_the_stored_answers_are_what_transformers_says(tmp_path: Path) -> None:
    output = tmp_path / "answers.json"
    subprocess.run([sys.executable, DATA / "write_needle_answers.py", output], check=True)
    for stored, fresh in zip(ANSWERS, json.loads(output.read_text())["answers"], strict=True):
        assert fresh["token_ids"] == stored["token_ids"]
        old = dict(zip(stored["logit_ids"], stored["logits"], strict=True))
        new = dict(zip(fresh["logit_ids"], fresh["logits"], strict=True))
        assert all(
            abs(old[token_id] - new[token_id]) < TOLERANCE * stored["spread"] for token_id in old if token_id in new
        )
