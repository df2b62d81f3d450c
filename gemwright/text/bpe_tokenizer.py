"""Tokenizers run by the `tokenizers` library: any Gemma's `tokenizer.json`, and Gemma 4 from GGUF arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.text.control_words import GEMMA3_CONTROL_WORDS, GEMMA4_CONTROL_WORDS, eos_ids
from gemwright.text.gguf_vocabulary import (
    MERGES_KEY,
    TOKENS_KEY,
    UNKNOWN,
    USER_DEFINED,
    GgufVocabulary,
    damaged,
    read_strings,
)
from gemwright.text.tokenizer import SPACE_MARK, Tokenizer

_FETCH = "fetch the file again"

_LONG = 1 << 16
"""Characters from which a text is long: some tens of milliseconds of work."""


class BpeTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library whose decoder is Gemma's: U+2581 to space, byte fallback, joined."""

    def __init__(
        self,
        backend: Backend,
        *,
        vocab_size: int,
        control_words: Mapping[str, int],
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        adds_bos: bool,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            control_words=control_words,
            bos_token_id=bos_token_id,
            eos_token_ids=eos_token_ids,
            adds_bos=adds_bos,
        )
        self._backend = backend
        self._lock = Lock()

    def id_to_token(self, token_id: int) -> str | None:
        """See Tokenizer."""
        return self._backend.id_to_token(token_id) if token_id < self.vocab_size else None

    def token_to_id(self, piece: str) -> int | None:
        """See Tokenizer."""
        return self._backend.token_to_id(piece)

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        # Whether special tokens are matched is a switch of the shared object, so the lock spans its use.
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            ids = self._ids(text)
            if parse_special or self._special_ids.isdisjoint(ids):
                return ids
            # A file may list a control word as a plain added token, or have merges that spell one.
            return [token_id for part in self._control_words.cut(text) for token_id in self._ids(part)]

    def _ids(self, text: str) -> list[int]:
        if len(text) < _LONG:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        # The library's plain encode keeps Python's other threads waiting: seconds for megabytes, in a server for all.
        return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def load_tokenizer_json(path: Path) -> BpeTokenizer:
    """Load a `tokenizer.json`, or the one in the folder `path`; see `tokenizer.from_tokenizer_json`."""
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            "the tokenizer file is missing", value=path, remedy="fetch it, or give token ids instead of text"
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is not a tokenizer file", value=error, remedy=_FETCH) from error
    backend.no_truncation()
    backend.no_padding()
    _require_gemma_decoder(backend, path)
    config = _read_config(path.with_name("tokenizer_config.json"))

    words = GEMMA3_CONTROL_WORDS if backend.token_to_id("<|turn>") is None else GEMMA4_CONTROL_WORDS
    added = backend.get_added_tokens_decoder()
    special = {token.content: i for i, token in added.items() if token.special or token.content in words}
    bos = _named_id(backend, config, "bos_token", "<bos>")
    eos = _named_id(backend, config, "eos_token", "<eos>")
    adds_bos = config.get("add_bos_token")
    if not isinstance(adds_bos, bool):
        adds_bos = backend.encode("", add_special_tokens=True).ids[:1] == [bos]
    return BpeTokenizer(
        backend,
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        control_words=special,
        bos_token_id=bos,
        eos_token_ids=eos_ids((eos,), special),
        adds_bos=adds_bos,
    )


def build_gemma4(vocabulary: GgufVocabulary, metadata: Mapping[str, Any]) -> BpeTokenizer:
    """Build Gemma 4's tokenizer from GGUF arrays: BPE over text with U+2581 for spaces, bytes where no piece fits.

    Raises CheckpointError for merges that are missing, malformed or not of the vocabulary, and for double tokens.
    """
    pieces = [piece.decode("utf-8") for piece in vocabulary.pieces]
    ids = {piece: token_id for token_id, piece in enumerate(pieces)}
    if len(ids) != len(pieces):
        double = next(token_id for token_id, piece in enumerate(pieces) if ids[piece] != token_id)
        raise damaged(f"{TOKENS_KEY}[{double}] is there twice", value=pieces[double])
    (unknown,) = (token_id for token_id in vocabulary.control_words.values() if vocabulary.types[token_id] == UNKNOWN)
    merges = _read_merges(metadata)
    try:
        model = BPE(vocab=ids, merges=merges, unk_token=pieces[unknown], fuse_unk=True, byte_fallback=True)
    except Exception as error:  # the library raises bare Exception, and does not say where
        index = next((i for i, (left, right) in enumerate(merges) if not {left, right, left + right} <= ids.keys()), 0)
        raise damaged(f"{MERGES_KEY}[{index}] is not two tokens that make a third", value=error) from error
    backend = Backend(model)
    backend.normalizer = normalizers.Replace(" ", SPACE_MARK)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in vocabulary.control_words])
    plain = [piece for piece, kind in zip(pieces, vocabulary.types.tolist(), strict=True) if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in plain])
    return BpeTokenizer(
        backend,
        vocab_size=len(pieces),
        control_words=vocabulary.control_words,
        bos_token_id=vocabulary.bos_token_id,
        eos_token_ids=vocabulary.eos_token_ids,
        adds_bos=vocabulary.adds_bos,
    )


def _read_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the merges, best first: two pieces each, kept with a space between (pieces have U+2581 for spaces)."""
    merges = (merge.decode("utf-8").partition(" ") for merge in read_strings(metadata, MERGES_KEY))
    return [(left, right) for left, _, right in merges]


def _require_gemma_decoder(backend: Backend, path: Path) -> None:
    """Refuse a tokenizer whose ids would turn into text by other rules than `token_bytes` knows."""
    state = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps = state.get("decoders", [])
    expected = [
        {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if steps != expected:
        raise UnsupportedError(
            f"{path}: the decoder is not a Gemma tokenizer's",
            value=[step.get("type") for step in steps] or state.get("type"),
            limit="Replace U+2581 by a space, ByteFallback, Fuse",
            remedy="use the tokenizer.json published with a Gemma model",
        )


def _read_config(path: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; one that is not there says nothing."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON", value=error, remedy=_FETCH) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object", value=type(config).__name__, remedy=_FETCH)
    return config


def _named_id(backend: Backend, config: Mapping[str, Any], key: str, default: str) -> int | None:
    """Return the id of the token that the config names under `key`; without a config, of Gemma's own word."""
    value = config.get(key, default)
    word = value.get("content") if isinstance(value, dict) else value
    if word is None:
        return None
    token_id = backend.token_to_id(word) if isinstance(word, str) else None
    if token_id is None and key in config:
        raise CheckpointError(
            f"tokenizer_config.json: {key} is not in the vocabulary", value=word, remedy="fetch both tokenizer files"
        )
    return token_id
