"""Hugging Face transformers as the oracle, and the rule by which its tokens and logits are compared with ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

TOLERANCE = 1e-4
"""Of the spread (maximum minus minimum) of the reference's row of logits."""


class Oracle:
    """A transformers model, eager attention, loaded by transformers' own loader."""

    def __init__(
        self, path: Path, *, dtype: torch.dtype = torch.float32, attention: str = "eager", **options: Any
    ) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        if path.suffix == ".gguf":
            options["gguf_file"] = path.name
            path = path.parent
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=attention, experts_implementation="eager", **options
        ).eval()

    def logits(self, ids: Sequence[int], num_rows: int | None = None) -> NDArray[np.float32]:
        """Return the logits of every position, or of the last `num_rows`: float32 [rows, vocabulary]."""
        with torch.inference_mode():
            output = self.model(torch.tensor([list(ids)]), logits_to_keep=num_rows or 0)
            rows: NDArray[np.float32] = output.logits[0].float().numpy()
        return rows

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """Return `count` greedy tokens after `ids`, past any stop id."""
        with torch.inference_mode():
            output = self.model.generate(
                torch.tensor([list(ids)]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        tokens: list[int] = output[0, len(ids) :].tolist()
        return tokens

    def residuals(self, ids: Sequence[int]) -> list[NDArray[np.float32]]:
        """Return the residual after every layer but the last: float32 [tokens, hidden] each."""
        with torch.inference_mode():
            states = self.model(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
        return [state[0].float().numpy() for state in states[1:-1]]


def logit_error(ours: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Return the largest difference of a row, as a part of the reference row's spread, over all rows."""
    spread = reference.max(axis=-1) - reference.min(axis=-1)
    return float((np.abs(ours - reference).max(axis=-1) / spread).max())


def check_greedy(ours: NDArray[np.float32], reference: NDArray[np.float32]) -> None:
    """Assert that each row picks the reference's token, or one of its two best where those are a near tie."""
    for place, (row, expected) in enumerate(zip(ours, reference, strict=True)):
        second, first = np.argsort(expected, kind="stable")[-2:]
        tie = expected[first] - expected[second] <= TOLERANCE * (expected.max() - expected.min())
        token = int(row.argmax())
        assert token == expected.argmax() or (tie and token in (first, second)), (
            f"row {place}: our token {token} (logit {row[token]}, the reference's {expected[token]}), "
            f"reference {first} ({expected[first]}), then {second} ({expected[second]})"
        )
