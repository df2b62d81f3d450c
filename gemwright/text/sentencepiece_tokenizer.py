"""Gemma 2 and 3 from GGUF: the SentencePiece model is written again from the arrays, and SentencePiece runs it.

The model is a protobuf message (sentencepiece_model.proto: ModelProto, SentencePiece, TrainerSpec, NormalizerSpec);
its bytes are joined here directly, which takes a third of the time of a protobuf library for 262,144 pieces.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceProcessor

from gemwright.text.gguf_vocabulary import BYTE, TOKENS_KEY, USER_DEFINED, GgufVocabulary, damaged
from gemwright.text.tokenizer import SPACE_MARK, Tokenizer

_log = logging.getLogger(__name__)

_FORMAT = b"gemwright sentencepiece 1\n"
_DIGEST_BYTES = 32

# NormalizerSpec: name "identity", add_dummy_prefix and remove_extra_whitespaces false, escape_whitespaces true.
_NORMALIZER_SPEC = b"\x0a\x08identity\x18\x00\x20\x00\x28\x01"
# TrainerSpec: model_type BPE, and byte_fallback (field 35).
_TRAINER_SPEC = b"\x18\x02"
_BYTE_FALLBACK = b"\x98\x02\x01"


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model whose control words are split out of the text before it sees it.

    SentencePiece itself never makes control ids from text; its user-defined pieces (runs of newlines, tabs and
    spaces, html tags) it matches first, the longest at each place.
    """

    def __init__(self, processor: SentencePieceProcessor, vocabulary: GgufVocabulary) -> None:
        super().__init__(
            vocab_size=len(vocabulary.pieces),
            control_words=vocabulary.control_words,
            bos_token_id=vocabulary.bos_token_id,
            eos_token_ids=vocabulary.eos_token_ids,
            adds_bos=vocabulary.adds_bos,
        )
        self._processor = processor

    def id_to_token(self, token_id: int) -> str | None:
        """See Tokenizer."""
        return self._processor.id_to_piece(token_id) if token_id < self.vocab_size else None

    def token_to_id(self, piece: str) -> int | None:
        """See Tokenizer."""
        token_id = self._processor.piece_to_id(piece)
        return token_id if self._processor.id_to_piece(token_id) == piece else None

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        ids: list[int] = []
        for part in self._control_words.split(text) if parse_special else (text,):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._processor.encode(part, out_type=int)
        return ids

    def _is_byte(self, token_id: int, piece: str) -> bool:
        return bool(self._processor.is_byte(token_id))


def build_sentencepiece(vocabulary: GgufVocabulary, cache_dir: Path | None) -> SentencePieceTokenizer:
    """Build the tokenizer of a `llama` vocabulary, through the model kept in `cache_dir` if there is one.

    Raises CheckpointError when SentencePiece refuses the pieces (double or empty ones, not all 256 bytes).
    """
    model = _cached_model(vocabulary, cache_dir) if cache_dir is not None else model_bytes(vocabulary)
    try:
        processor = SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise damaged(f"{TOKENS_KEY}: SentencePiece refuses the vocabulary", value=error) from error
    return SentencePieceTokenizer(processor, vocabulary)


def model_bytes(vocabulary: GgufVocabulary) -> bytes:
    """Return the SentencePiece model of a vocabulary: a ModelProto in the protobuf wire format."""
    types = vocabulary.types
    # The file spells user-defined runs of spaces with real spaces; SentencePiece matches them after escaping.
    mark = SPACE_MARK.encode("utf-8")
    pieces = vocabulary.pieces.copy()
    for token_id in np.flatnonzero(types == USER_DEFINED).tolist():
        pieces[token_id] = pieces[token_id].replace(b" ", mark)

    # A piece is: its message's tag and length, field 1 (text), field 2 (score, float32), field 3 (type). All but the
    # text is either fixed by its length or of fixed size.
    tails = np.empty(len(pieces), dtype=[("tag2", "u1"), ("score", "<f4"), ("tag3", "u1"), ("type", "u1")])
    tails["tag2"], tails["score"], tails["tag3"], tails["type"] = 0x15, vocabulary.scores, 0x18, types
    tail_bytes = tails.itemsize
    lengths = list(map(len, pieces))
    heads = {
        length: b"\x0a" + _varint(1 + len(_varint(length)) + length + tail_bytes) + b"\x0a" + _varint(length)
        for length in set(lengths)
    }
    trainer_spec = _TRAINER_SPEC + (_BYTE_FALLBACK if bool((types == BYTE).any()) else b"")
    fields = zip([heads[length] for length in lengths], pieces, tails.view(f"V{tail_bytes}").tolist(), strict=True)
    return b"".join(
        [
            *chain.from_iterable(fields),
            b"\x12" + _varint(len(trainer_spec)) + trainer_spec,
            b"\x1a" + _varint(len(_NORMALIZER_SPEC)) + _NORMALIZER_SPEC,
        ]
    )


def _varint(value: int) -> bytes:
    """Protobuf's variable-length integer: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _key(vocabulary: GgufVocabulary) -> bytes:
    """A digest of all that the model is built from."""
    digest = hashlib.blake2b(_FORMAT, digest_size=_DIGEST_BYTES)
    for numbers in (vocabulary.types, vocabulary.scores):
        digest.update(np.ascontiguousarray(numbers).tobytes())
    digest.update(b"\xff".join(vocabulary.pieces))  # a byte that UTF-8 does not have
    return digest.digest()


def _cached_model(vocabulary: GgufVocabulary, cache_dir: Path) -> bytes:
    """Return the model from the cache, or build it and keep it there.

    The file is a format line, a digest of key and model, the model. One that does not match is written anew; a cache
    that cannot be written is done without.
    """
    key = _key(vocabulary)
    path = cache_dir / f"sentencepiece-{key.hex()[:32]}.model"
    header_bytes = len(_FORMAT) + _DIGEST_BYTES
    try:
        kept = path.read_bytes()
    except OSError:
        kept = b""
    if kept[:header_bytes] == _FORMAT + _seal(key, kept[header_bytes:]):
        return kept[header_bytes:]
    if kept:
        _log.warning("%s is damaged and is written anew", path)
    model = model_bytes(vocabulary)
    try:
        _replace_file(path, _FORMAT + _seal(key, model) + model)
    except OSError as error:
        _log.info("the tokenizer is not kept for the next start: %s", error)
    return model


def _seal(key: bytes, model: bytes) -> bytes:
    return hashlib.blake2b(model, key=key, digest_size=_DIGEST_BYTES).digest()


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
