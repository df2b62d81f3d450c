"""Control words in text that comes in pieces, and the pieces that the output parser reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of output: text, or a control word, which is certain if it came as one token."""

    text: str
    is_word: bool = False
    is_certain: bool = False


class WordFinder:
    """Cuts text at control words. Keeps nothing: the caller hands the tail in again, before the next text."""

    def __init__(self, words: Iterable[str]) -> None:
        words = list(words)
        self._pattern = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))
        self._beginnings = frozenset(word[:length] for word in words for length in range(1, len(word)))
        self._longest = max(map(len, words))

    @property
    def max_tail(self) -> int:
        """How many characters a word may lack its last one by."""
        return self._longest - 1

    def break_up(self, text: str) -> str:
        """Return the text with a space before the last character of each word in it."""
        return self._pattern.sub(lambda match: f"{match[0][:-1]} {match[0][-1]}", text)

    def cut(self, text: str) -> tuple[list[Piece], str]:
        """Return texts and words in order, and the longest tail that may begin a word."""
        if "<" not in text:
            return [Piece(text)] if text else [], ""
        pieces: list[Piece] = []
        done = 0
        for match in self._pattern.finditer(text):
            if match.start() > done:
                pieces.append(Piece(text[done : match.start()]))
            pieces.append(Piece(match[0], is_word=True))
            done = match.end()
        keep = len(text)
        first = max(done, len(text) - self._longest + 1)
        place = text.rfind("<", first)
        while place >= 0:
            if text[place:] in self._beginnings:
                keep = place
            place = text.rfind("<", first, place)
        if keep > done:
            pieces.append(Piece(text[done:keep]))
        return pieces, text[keep:]


class MarkGuard:
    """Watches a text that is shown in pieces: no control word may come together in it."""

    def __init__(self) -> None:
        self._tail = ""

    def push(self, text: str, words: WordFinder | None) -> str:
        """Return the next piece, with a space before a character that would complete one of the words."""
        if words is None:
            return text
        if ">" in text:  # as every control word ends
            text = words.break_up(self._tail + text)[len(self._tail) :]
        self._tail = (self._tail + text[-words.max_tail :])[-words.max_tail :]
        return text
