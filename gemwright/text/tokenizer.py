"""Text to token ids and back, from a `tokenizer.json` or from GGUF metadata.

Knows nothing of templates, models or engines: a tokenizer is a vocabulary and a way to cut text, no more.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemwright.errors import RequestError
from gemwright.text.control_words import ControlWords
from gemwright.text.detokenizer import decode_bytes

SPACE_MARK = "\u2581"
"""The character that stands for a space inside pieces (SentencePiece's lower one eighth block)."""

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


class Tokenizer(ABC):
    """What every Gemma tokenizer offers, whatever file it came from.

    Attributes:
        vocab_size: one more than the largest token id. The model's table may have more rows: ids past the
            vocabulary are legal and add nothing to the text, as in the reference.
        bos_token_id: the id that opens a sequence; None where the file names none.
        eos_token_id: the id the file itself calls end of sequence; None where it names none.
        eos_token_ids: that id first, then the ids by which Gemma ends a turn, found by name (`<end_of_turn>`,
            `<turn|>`, `<|tool_response>`): Gemma 2 (1, 107), Gemma 3 (1, 106), Gemma 4 (1, 106, 50) (facts c.1, c.5).
        adds_bos: whether the reference tokenizer puts BOS before raw text by itself. `encode` never does it unasked.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool

    def __init__(
        self,
        *,
        vocab_size: int,
        control_words: Mapping[str, int],
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        adds_bos: bool,
    ) -> None:
        self.vocab_size = vocab_size
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_ids[0] if eos_token_ids else None
        self.eos_token_ids = eos_token_ids
        self.adds_bos = adds_bos
        self._control_words = ControlWords(control_words)
        self._special_ids = frozenset(control_words.values())
        self._bytes_by_id: dict[int, bytes] = {}

    def encode(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        """Return the token ids of `text`.

        add_bos: put the BOS id first, whether or not the text spells one itself.
        parse_special: a control word in the text (`<bos>`, `<start_of_turn>`, `<unused5>`) becomes its one id, as
            the reference does. False reads control words as ordinary text: no control id can result.

        Raises RequestError for text with a lone surrogate, and for `add_bos` where the vocabulary has no BOS.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                "the text holds bytes that are not UTF-8, or half of a surrogate pair",
                value=f"{text[error.start]!r} at character {error.start}",
                remedy="send the whole character, or replace it",
            ) from None
        ids = self._encode(text, parse_special)
        if not add_bos:
            return ids
        if self.bos_token_id is None:
            raise RequestError(
                "a BOS token was asked for, and the tokenizer names none",
                remedy="encode without BOS, or give token ids",
            )
        return [self.bos_token_id, *ids]

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Return the ids of a text that others have a share in: `mark`, a character that is not theirs, stands behind
        each character of theirs that could begin a control word, so that none of theirs is one. Marks add nothing.
        """
        if mark not in text:
            return self.encode(text)
        ids: list[int] = []
        for part in self._control_words.split(text):
            ids += [part] if isinstance(part, int) else self.encode(part.replace(mark, ""), parse_special=False)
        return ids

    @property
    def control_beginnings(self) -> frozenset[str]:
        """The characters that control words begin with."""
        return frozenset(word[0] for word in self.special_tokens if word)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`: their bytes joined and read as UTF-8, each invalid byte as U+FFFD.

        skip_special: leave control tokens out; False spells them. Raises RequestError for a negative id.
        """
        return decode_bytes(self.joined_bytes(ids, skip_special=skip_special))

    def joined_bytes(self, ids: Iterable[int], *, skip_special: bool) -> bytes:
        """Return what `ids` add to the byte stream, joined; control tokens add nothing if `skip_special`."""
        hidden = self._special_ids if skip_special else frozenset()
        return b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in hidden])

    def token_bytes(self, token_id: int) -> bytes:
        """Return what one id adds to the byte stream.

        A byte token adds its byte, any other its piece with U+2581 as a space, a control token its spelling; an id
        past the vocabulary adds nothing. Raises RequestError for a negative id.
        """
        known = self._bytes_by_id.get(token_id)
        if known is None:
            token_id = int(token_id)
            if token_id < 0:
                raise RequestError("a token id is negative", value=token_id, limit="0 and up")
            known = self._bytes_by_id[token_id] = self._read_bytes(token_id)
        return known

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token, which `decode` leaves out by default."""
        return token_id in self._special_ids

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Every control word and its id, in the order of their ids."""
        return self._control_words.ids

    @abstractmethod
    def id_to_token(self, token_id: int) -> str | None:
        """Return the piece of an id as the vocabulary spells it (spaces as U+2581), None past the vocabulary."""

    @abstractmethod
    def token_to_id(self, piece: str) -> int | None:
        """Return the id of a piece spelled as the vocabulary does (spaces as U+2581), None if there is none."""

    @abstractmethod
    def _encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the ids of text that is known to be valid Unicode."""

    def _is_byte(self, token_id: int, piece: str) -> bool:
        """Whether a piece that looks like `<0x41>` is a byte token."""
        return token_id not in self._special_ids

    def _read_bytes(self, token_id: int) -> bytes:
        piece = self.id_to_token(token_id)
        if piece is None:
            return b""
        match = _BYTE_PIECE.fullmatch(piece)
        if match is not None and self._is_byte(token_id, piece):
            return bytes([int(match[1], 16)])
        return piece.replace(SPACE_MARK, " ").encode("utf-8")


def load_tokenizer(
    folder: Path, *, gguf_metadata: Mapping[str, Any] | None = None, cache_dir: Path | None = None
) -> Tokenizer | None:
    """Return the tokenizer of a model: of its GGUF metadata if given, else of the `tokenizer.json` in its folder.

    None where the model has none: it then takes and gives token ids only. Raises as the two functions below.
    """
    if gguf_metadata is not None:
        if "tokenizer.ggml.model" not in gguf_metadata:
            return None
        return from_gguf_metadata(gguf_metadata, cache_dir=cache_dir)
    return from_tokenizer_json(folder) if (folder / "tokenizer.json").exists() else None


def from_tokenizer_json(path: str | Path) -> Tokenizer:
    """Load a `tokenizer.json` (or a folder that holds one), with the `tokenizer_config.json` beside it if there.

    Raises CheckpointError for a missing or damaged file, UnsupportedError for a tokenizer that is not of Gemma's form.
    """
    from gemwright.text.bpe_tokenizer import load_tokenizer_json

    return load_tokenizer_json(Path(path))


def from_gguf_metadata(metadata: Mapping[str, Any], *, cache_dir: Path | None) -> Tokenizer:
    """Build the tokenizer that GGUF metadata describes (`tokenizer.ggml.*`, facts f).

    metadata: keys to values as a header reader gives them; arrays as lists or numpy arrays, strings as str or bytes.
    cache_dir: where the SentencePiece model built from the arrays is kept for the next start; None keeps nothing.

    Raises CheckpointError naming the key for missing, damaged or contradictory arrays, UnsupportedError for a
    tokenizer model other than `llama` (Gemma 2 and 3) and `gemma4`.
    """
    from gemwright.text.gguf_vocabulary import GEMMA4, read_vocabulary

    vocabulary = read_vocabulary(metadata)
    if vocabulary.model == GEMMA4:
        from gemwright.text.bpe_tokenizer import build_gemma4

        return build_gemma4(vocabulary, metadata)
    from gemwright.text.sentencepiece_tokenizer import build_sentencepiece

    return build_sentencepiece(vocabulary, cache_dir)
