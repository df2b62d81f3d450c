"""Prompts of several kinds, for comparing one implementation of a model with another."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from gemwright.spec.model_spec import ModelSpec

TEXTS = (
    ("sentence", "The capital of France is"),
    ("code", "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return "),
    ("CJK", "日本の首都は東京です。中国的首都是北京。한국의 수도는"),
    ("list", "Planets, from the sun outward:\n\n1. Mercury ☿\n2. Venus ♀\n3. "),
)
SENTENCE = "The river rose slowly through the night, and in the morning the lower fields were under water. "
LONGEST_WINDOW = 1024
"""Beyond this many tokens no prompt is made that goes past the window."""


def builtin_prompts(
    spec: ModelSpec, encode: Callable[[str], list[int]] | None, *, longest: int, excluded: Iterable[int] = ()
) -> list[tuple[str, list[int]]]:
    """Return (name, ids) of prompts up to `longest` tokens, one past the shortest window where that is not far.

    `encode` turns text into ids with BOS; None, where there is no tokenizer, gives random ids (always the same), of
    which none is a control id of `spec` or `excluded`.
    """
    if encode is None:
        special = {spec.bos_token_id, spec.pad_token_id, *spec.eos_token_ids, *excluded}
        allowed = sorted(set(range(spec.vocab_size)) - special)
        generator = np.random.default_rng(0)
        found = [(f"{count} ids", generator.choice(allowed, count).tolist()) for count in (3, 17, 40)]
        filler = generator.choice(allowed, 2 * LONGEST_WINDOW).tolist()
    else:
        found = [(name, encode(text)) for name, text in TEXTS]
        filler = encode(SENTENCE * 100)
    windows = [layer.window for layer in spec.layers if layer.window is not None]
    if windows and min(windows) <= LONGEST_WINDOW:
        found.append(("past the window", filler[: min(windows) + 48]))
    return [(name, ids) for name, ids in found if len(ids) <= longest]
