"""Token ids to text, piece by piece: never half a character, and in the end the same as decoding all at once."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemwright.text.tokenizer import Tokenizer

_EACH_BYTE = "gemwright-replace-each-byte"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """Give one U+FFFD for each invalid byte, as SentencePiece does; Python's own handler gives one a sequence."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_EACH_BYTE, _replace_each_byte)
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


def decode_bytes(data: bytes) -> str:
    """Read UTF-8, each invalid byte as U+FFFD."""
    return data.decode("utf-8", _EACH_BYTE)


class Detokenizer:
    """Turns a stream of token ids into text as it grows.

    The texts of all `push` calls and of `finish`, joined, equal `tokenizer.decode(all ids)` however the ids were cut
    into calls. A character whose bytes come in several tokens is held back until it is whole, and no longer: bytes
    that can no longer become a character come out as U+FFFD at once. The cost is linear in the output.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = _Utf8Decoder(_EACH_BYTE)

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids; return the text that is now certain. Raises RequestError for a negative id."""
        return self._decoder.decode(self._tokenizer.joined_bytes(ids, skip_special=self._skip_special))

    def finish(self) -> str:
        """End the stream; return U+FFFD for each byte of a character that was never completed, and start afresh."""
        return self._decoder.decode(b"", final=True)
