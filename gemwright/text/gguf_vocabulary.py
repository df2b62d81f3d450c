"""The tokenizer arrays of GGUF metadata, checked: what else reads them may trust them."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.text.control_words import GEMMA3_CONTROL_WORDS, GEMMA4_CONTROL_WORDS, eos_ids

GEMMA4 = "gemma4"
SENTENCEPIECE = "llama"

# Token types (facts f); SentencePiece numbers its pieces' types alike.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

MODEL_KEY = "tokenizer.ggml.model"
TOKENS_KEY = "tokenizer.ggml.tokens"
SCORES_KEY = "tokenizer.ggml.scores"
TYPES_KEY = "tokenizer.ggml.token_type"
MERGES_KEY = "tokenizer.ggml.merges"

_DAMAGED = "the file is damaged or was converted wrongly: fetch or convert it again"


@dataclass(frozen=True)
class GgufVocabulary:
    """A checked vocabulary. `types` [num_tokens] int32 has control words as CONTROL and the one unknown as UNKNOWN."""

    model: str
    pieces: list[bytes]
    types: NDArray[np.int32]
    scores: NDArray[np.float32] | None
    control_words: Mapping[str, int]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool


def damaged(what: str, *, value: object = None, limit: object = None) -> CheckpointError:
    """Return the error for an array that cannot be right; `what` names the key."""
    return CheckpointError(what, value=value, limit=limit, remedy=_DAMAGED)


def read_vocabulary(metadata: Mapping[str, Any]) -> GgufVocabulary:
    """Check the tokenizer arrays of `metadata` and return them in one form.

    Raises CheckpointError that names the key (missing, of another length, ids out of range, unknown types, invalid
    UTF-8), UnsupportedError for a tokenizer model or option Gemma does not use.
    """
    model = _text(_required(metadata, MODEL_KEY), MODEL_KEY)
    if model not in (SENTENCEPIECE, GEMMA4):
        raise UnsupportedError(
            f"{MODEL_KEY}: this kind of tokenizer is not read",
            value=model,
            limit=f"{SENTENCEPIECE} (Gemma 2 and 3) or {GEMMA4}",
            remedy="use a Gemma 2, 3 or 4 file made by a current converter",
        )
    _refuse_options(metadata)
    pieces = read_strings(metadata, TOKENS_KEY)
    num_tokens = len(pieces)
    types = _numbers(_required(metadata, TYPES_KEY), TYPES_KEY, num_tokens).astype(np.int32)
    if (wrong := np.flatnonzero((types < NORMAL) | (types > BYTE))).size:
        raise damaged(f"{TYPES_KEY}[{wrong[0]}] is no token type", value=types[wrong[0]], limit="1 to 6")
    scores = None
    if model == SENTENCEPIECE:
        scores = _numbers(_required(metadata, SCORES_KEY), SCORES_KEY, num_tokens).astype(np.float32)
        if (wrong := np.flatnonzero(~np.isfinite(scores))).size:
            raise damaged(f"{SCORES_KEY}[{wrong[0]}] is not finite", value=scores[wrong[0]])

    named = {name: _id(metadata, name, num_tokens) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    _mark_control(pieces, types, GEMMA4_CONTROL_WORDS if model == GEMMA4 else GEMMA3_CONTROL_WORDS)
    _mark_unknown(pieces, types, named["unknown"])
    special = np.flatnonzero((types == CONTROL) | (types == UNKNOWN)).tolist()
    control_words = {pieces[token_id].decode("utf-8"): token_id for token_id in special}
    return GgufVocabulary(
        model=model,
        pieces=pieces,
        types=types,
        scores=scores,
        control_words=control_words,
        bos_token_id=named["bos"],
        eos_token_ids=eos_ids((named["eos"], named["eot"], named["eom"]), control_words),
        # The flag is set in Gemma 4 files, yet the reference tokenizer adds none: the template writes it (facts c.2).
        adds_bos=model == SENTENCEPIECE and bool(metadata.get("tokenizer.ggml.add_bos_token", True)),
    )


@runtime_checkable
class RawStrings(Protocol):
    """Metadata that can give a string array undecoded, which saves a long one being decoded and encoded again."""

    def raw_strings(self, key: str) -> list[bytes]:
        """Return the array; KeyError where `key` is absent or no array of strings."""


def read_strings(metadata: Mapping[str, Any], key: str) -> list[bytes]:
    """Return an array of strings as UTF-8 bytes; each may come as str or bytes. Raises CheckpointError naming `key`."""
    strings: Any = None
    if isinstance(metadata, RawStrings):
        with contextlib.suppress(KeyError):
            strings = metadata.raw_strings(key)
    if strings is None:
        strings = _required(metadata, key)
    if isinstance(strings, np.ndarray):
        strings = strings.tolist()
    if not isinstance(strings, Sequence) or isinstance(strings, str | bytes) or not strings:
        raise damaged(f"{key} is not a list of strings, or is empty", value=type(strings).__name__)
    try:
        if isinstance(strings[0], str):
            return [string.encode("utf-8") for string in strings]
        encoded = list(strings)
        b"\n".join(encoded).decode("utf-8")
    except UnicodeError:
        index = next((i for i, string in enumerate(strings) if not _is_utf8(string)), 0)
        raise damaged(f"{key}[{index}] is not UTF-8", value=ascii(strings[index])[:60]) from None
    except (AttributeError, TypeError):
        kinds = sorted({type(string).__name__ for string in strings})
        raise damaged(f"{key} holds something that is no string", value=", ".join(kinds)) from None
    return encoded


def _is_utf8(string: Any) -> bool:
    try:
        string.encode("utf-8") if isinstance(string, str) else string.decode("utf-8")
    except UnicodeError:
        return False
    return True


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    value = metadata.get(key)
    if value is None:
        raise damaged(f"{key} is missing from the metadata")
    return value


def _text(value: Any, key: str) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise damaged(f"{key} is not a string", value=type(value).__name__)
    return value


def _numbers(values: Any, key: str, num_tokens: int) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise damaged(f"{key} is not a list of numbers", value=type(values).__name__)
    if array.size != num_tokens:
        raise damaged(f"{key} has another length than {TOKENS_KEY}", value=array.size, limit=num_tokens)
    return array


def _id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    try:
        token_id = operator.index(value)
    except TypeError:
        raise damaged(f"{key} is not an id", value=value) from None
    if not 0 <= token_id < num_tokens:
        raise damaged(f"{key} is past the vocabulary", value=token_id, limit=num_tokens - 1)
    return token_id


def _refuse_options(metadata: Mapping[str, Any]) -> None:
    """Refuse what no Gemma file asks for and what would change every id."""
    if metadata.get("tokenizer.ggml.add_space_prefix"):
        raise UnsupportedError("tokenizer.ggml.add_space_prefix is set, as in no Gemma tokenizer", remedy=_DAMAGED)
    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if charsmap is not None and len(charsmap):
        raise UnsupportedError(
            "tokenizer.ggml.precompiled_charsmap is there, as in no Gemma tokenizer", remedy=_DAMAGED
        )


def _mark_control(pieces: list[bytes], types: NDArray[np.int32], words: frozenset[str]) -> None:
    encoded = {word.encode("utf-8") for word in words}
    for token_id in compress(range(len(pieces)), map(encoded.__contains__, pieces)):
        if types[token_id] in (NORMAL, USER_DEFINED):
            types[token_id] = CONTROL


def _mark_unknown(pieces: list[bytes], types: NDArray[np.int32], named: int | None) -> None:
    """Make the one unknown token UNKNOWN: the id the metadata names, else the type, else the piece `<unk>`."""
    typed = np.flatnonzero(types == UNKNOWN).tolist()
    if len(typed) > 1 or (typed and named is not None and typed != [named]):
        raise damaged(f"{TYPES_KEY} and tokenizer.ggml.unknown_token_id name several unknown tokens", value=typed)
    if typed:
        return
    if named is None:
        named = next((token_id for token_id, piece in enumerate(pieces) if piece == b"<unk>"), None)
    if named is None:
        raise damaged("tokenizer.ggml.unknown_token_id is missing, and no token is of type 2 or called <unk>")
    types[named] = UNKNOWN
