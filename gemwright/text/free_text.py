"""Which tokens may come next in free text: all ordinary ones, save those that would spell out a control word.

Readers of an answer take some control words for what they are even where a model spells them letter by letter. Under a
constraint none comes about so: a thought ends, and a call begins, by its own token alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gemwright.text.tokenizer import Tokenizer

Mask = NDArray[np.bool_]


class FreeText:
    """The masks of one tokenizer, for rows of `vocab_size`. `words` are never spelled, `never` are no text at all."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, words: Iterable[str], never: Iterable[int]) -> None:
        self._words = [word.encode() for word in words]
        known = range(min(tokenizer.vocab_size, vocab_size))
        pieces = (
            (token_id, tokenizer.token_bytes(token_id)) for token_id in known if not tokenizer.is_special(token_id)
        )
        excluded = set(never)
        self._texts = texts = {token_id: piece for token_id, piece in pieces if piece and token_id not in excluded}
        lasts = {word[-1:] for word in self._words}
        self._enders = {i: piece for i, piece in texts.items() if any(last in piece for last in lasts)}
        """The tokens that could end a word."""
        whole = {i for i, piece in self._enders.items() if any(word in piece for word in self._words)}
        self.mask = np.zeros(vocab_size, dtype=np.bool_)
        """The tokens of text at its beginning."""
        self.mask[[token_id for token_id in texts if token_id not in whole]] = True
        self._masks: dict[tuple[bytes, ...], Mask] = {(): self.mask}
        self.tail_bytes = max((len(word) - 1 for word in self._words), default=0)
        """How much of the text before a token decides about it."""

    def piece(self, token_id: int) -> bytes:
        """Return what a token adds to the text, nothing if it is no text."""
        return self._texts.get(token_id, b"")

    def mask_after(self, tail: bytes) -> Mask:
        """Return the tokens that may follow text which ends in `tail`; not to be written to."""
        missing = tuple(
            word[length:]
            for word in self._words
            for length in range(1, min(len(word), len(tail) + 1))
            if tail.endswith(word[:length])
        )
        found = self._masks.get(missing)
        if found is None:
            found = self.mask.copy()
            found[[i for i, piece in self._enders.items() if piece.startswith(missing)]] = False
            self._masks[missing] = found
        return found
