"""A string between marks: every character stands for itself, and what may turn out to be its end is held back."""

from __future__ import annotations

from gemwright.text.parser_schema import ANYWHERE, Place
from gemwright.text.parser_tree import ArgumentTree
from gemwright.text.parser_words import Piece
from gemwright.text.tool_syntax import CALL_CLOSE, QUOTE

_MAX_TAIL = 16


class StringReader:
    """Writes one string as it comes, or collects it: a key, or a value whose place wants another type.

    place: of a value; None for a key. is_certain: its opening mark came as one token, so that only such a mark can
    close it.
    """

    def __init__(self, tree: ArgumentTree, place: Place | None, *, is_certain: bool) -> None:
        self.is_key = place is None
        self.is_certain = is_certain
        self._tree = tree
        self._place = ANYWHERE if place is None else place
        self._parts: list[str] | None = None
        """The text, where it is not streamed."""
        self._tail = ""
        """Closing brackets and blanks at the end: the call's own if the closing mark is missing."""
        self._suspended: list[Piece] | None = None
        """What came after a call's closing word: data of the string, or not a part of it."""
        if place is not None and (place.types is None or "string" in place.types):
            tree.writer.begin_string()
        else:
            self._parts = []

    def text(self, text: str) -> None:
        """Add text."""
        if self._suspended is not None:
            self._suspended.append(Piece(text))
            return
        text = self._tail + text
        size = len(text) - min(len(text) - len(text.rstrip("}]) \n\r\t")), _MAX_TAIL)
        self._tail = text[size:]
        self._put(text[:size])

    def inner_mark(self, blanks: str) -> None:
        """Add a mark that closes nothing, and the blanks behind it: it stands for a quote character."""
        if self._suspended is None:
            self.text('"' + blanks)
        else:
            self._suspended += [Piece(QUOTE, is_word=True, is_certain=self.is_certain), Piece(blanks)]

    def word(self, word: Piece) -> None:
        """Add another control word."""
        if self._suspended is None:
            self.text(word.text)
        else:
            self._suspended.append(word)

    def suspend(self, word: Piece) -> None:
        """Take a call's closing word: what follows decides whether the string ended before it."""
        if self._suspended is None:
            self._suspended = []
        self._suspended.append(word)

    @property
    def is_suspended(self) -> bool:
        """Whether a call's closing word came."""
        return self._suspended is not None

    @property
    def may_begin_next(self) -> bool:
        """Whether a call's closing word, one token, came last: then an opening one ends the string."""
        for piece in reversed(self._suspended or ()):
            if piece.is_word or piece.text.strip():
                return piece.is_certain and piece.text == CALL_CLOSE
        return False

    def end(self) -> None:
        """End the string at its closing mark, or for want of it: all that came is data."""
        pieces, self._suspended = self._suspended or (), None
        for piece in pieces:
            self.text('"' if piece.text == QUOTE and piece.is_word else piece.text)
        self._put(self._tail)
        if self._parts is None:
            self._tree.writer.end_string()
        elif self.is_key:
            self._tree.key("".join(self._parts))
        else:
            self._tree.quoted("".join(self._parts), self._place)

    def end_before_word(self) -> tuple[str, list[Piece]]:
        """End the string before the call's closing word; return the brackets there, and what came after the word."""
        pieces, self._suspended = self._suspended or [], None
        self._tree.warn("a string's closing mark was missing")
        text, num_closers = self._tail.rstrip(), 0
        while text and text[-1] in "}])" and num_closers < self._tree.depth:
            text, num_closers = text[:-1].rstrip(), num_closers + 1
        brackets = self._tail[len(text) :] if num_closers else ""
        self._tail = self._tail[: len(self._tail) - len(brackets)]
        self.end()
        return brackets, pieces[1:]

    def _put(self, text: str) -> None:
        if self._parts is None:
            self._tree.writer.string_piece(text)
        else:
            self._parts.append(text)
