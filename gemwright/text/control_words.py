"""Control words: their names in Gemma, and where they stand in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

_COMMON = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
GEMMA3_CONTROL_WORDS = frozenset(
    (*_COMMON, "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>")
)
"""Gemma 2 and 3 (facts c.1): words that are control tokens whatever the file flags them as.

GGUF converters flag some as user defined: Gemma 3's image marks, and Gemma 4's channel and tool words on purpose, to
have them printed. Gemma's own `tokenizer.json` has them as special, and so have we.
"""

GEMMA4_CONTROL_WORDS = frozenset(
    (
        *(*_COMMON, "<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>", '<|"|>'),
        *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
        *("<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>", "<|video|>"),
    )
)
"""The same of Gemma 4 (facts c.2), where `<start_of_turn>` is no control word."""

TURN_END_WORDS = ("<end_of_turn>", "<turn|>", "<|tool_response>")
"""Words that end the model's turn (facts c.1, c.5); a vocabulary has those of its own family."""


def eos_ids(first: tuple[int | None, ...], control_words: Mapping[str, int]) -> tuple[int, ...]:
    """Return the ids the file names, then those of the turn-ending words it has, each once."""
    named = [token_id for token_id in first if token_id is not None]
    return tuple(dict.fromkeys([*named, *(control_words[word] for word in TURN_END_WORDS if word in control_words)]))


class ControlWords:
    """Finds control words in text: leftmost first, the longest where several start together.

    A vocabulary may have 6,249 of them, so they are looked up by their first characters, not as one pattern: the
    time is that of one scan for their first characters plus a few look-ups at each of those.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids: Mapping[str, int] = MappingProxyType(dict(sorted(ids.items(), key=lambda item: item[1])))
        words = [word for word in self.ids if word]
        self._key_length = min(map(len, words), default=0)
        lengths: dict[str, set[int]] = {}
        for word in words:
            lengths.setdefault(word[: self._key_length], set()).add(len(word))
        self._lengths = {key: tuple(sorted(found, reverse=True)) for key, found in lengths.items()}
        firsts = "".join(re.escape(first) for first in sorted({word[0] for word in words}))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the parts of the text in order: ids of control words, and the non-empty text between them."""
        done = 0
        for start, word in self._find(text):
            if start < done:
                continue
            if start > done:
                yield text[done:start]
            yield self.ids[word]
            done = start + len(word)
        if done < len(text):
            yield text[done:]

    def cut(self, text: str) -> list[str]:
        """Cut the text behind the first character of every control word in it, so that no part holds a whole one.

        A control word of one character cannot be cut and stays.
        """
        cuts = [start + 1 for start, _ in self._find(text)]
        return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if begin < end]

    def _find(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield where control words start, overlapping ones too, and the longest that starts there."""
        if self._first is None:
            return
        for match in self._first.finditer(text):
            start = match.start()
            for length in self._lengths.get(text[start : start + self._key_length], ()):
                word = text[start : start + length]
                if word in self.ids:
                    yield start, word
                    break
