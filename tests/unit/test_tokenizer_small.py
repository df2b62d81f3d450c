"""Small vocabularies of both kinds: what holds for every tokenizer, and what damaged metadata is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemwright.errors import CheckpointError, RequestError, UnsupportedError
from gemwright.text.tokenizer import Tokenizer, from_gguf_metadata
from tests.tokenizer_cases import GEMMA4_VISIBLE, HARD_TEXTS, small_gemma3_metadata, small_gemma4_metadata

Metadata = Callable[[], dict[str, Any]]
BOTH = pytest.mark.parametrize("make", [small_gemma3_metadata, small_gemma4_metadata], ids=["gemma3", "gemma4"])
PREFIX = "tokenizer.ggml."


def load(metadata: dict[str, Any]) -> Tokenizer:
    return from_gguf_metadata(metadata, cache_dir=None)


def as_bytes(metadata: dict[str, Any]) -> dict[str, Any]:
    """The same values as another header reader may give them."""
    given: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, list):
            given[key] = [item.encode() for item in value] if isinstance(value[0], str) else np.asarray(value)
        else:
            given[key] = value.encode() if isinstance(value, str) else value
    return given


@BOTH
def test_text_survives_encoding_and_decoding(make: Metadata) -> None:
    tokenizer = load(make())
    for text in HARD_TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text.replace("\u2581", " ")
        assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text.replace("\u2581", " ")


@BOTH
def test_strings_may_be_bytes_and_numbers_numpy_arrays(make: Metadata) -> None:
    ours, other = load(make()), load(as_bytes(make()))
    assert [ours.encode(text) for text in HARD_TEXTS] == [other.encode(text) for text in HARD_TEXTS]
    assert ours.eos_token_ids == other.eos_token_ids


class UndecodedMetadata(dict[str, Any]):
    """Metadata whose reader gives long arrays undecoded when asked so; decoding them is counted."""

    decoded = 0

    def raw_strings(self, key: str) -> list[bytes]:
        value = dict.__getitem__(self, key)
        if not isinstance(value, list):
            raise KeyError(key)
        return [item.encode() for item in value]

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        self.decoded += isinstance(value, list) and isinstance(value[0], str)
        return value


@BOTH
def test_long_arrays_are_taken_undecoded_where_the_reader_can(make: Metadata) -> None:
    metadata = UndecodedMetadata(make())
    assert load(metadata).encode("the world") == load(make()).encode("the world")
    assert metadata.decoded == 0
    metadata[PREFIX + "tokens"] = 7
    with pytest.raises(CheckpointError, match=r"^tokenizer\.ggml\.tokens\b"):
        load(metadata)


@BOTH
def test_control_words_are_single_ids_or_ordinary_text(make: Metadata) -> None:
    tokenizer = load(make())
    assert tokenizer.special_tokens
    for word, token_id in tokenizer.special_tokens.items():
        assert tokenizer.encode(f"the{word}the")[1:-1] == [token_id]
        assert tokenizer.decode([token_id]) == ""
        assert tokenizer.decode([token_id], skip_special=False) == word
        ids = tokenizer.encode(f"the{word}{word}the", parse_special=False)
        assert not any(map(tokenizer.is_special, ids))
        assert tokenizer.decode(ids) == f"the{word}{word}the"


@BOTH
def test_bos_is_added_when_asked_and_only_then(make: Metadata) -> None:
    tokenizer = load(make())
    assert tokenizer.encode("the", add_bos=True) == [2, *tokenizer.encode("the")]
    assert tokenizer.encode("", add_bos=True) == [2]
    assert 2 not in tokenizer.encode("the")


@BOTH
def test_ids_past_the_vocabulary_add_nothing_and_negative_ones_are_refused(make: Metadata) -> None:
    tokenizer = load(make())
    the = tokenizer.encode("the")
    assert tokenizer.decode([*the, tokenizer.vocab_size, 10**9, *the]) == "thethe"
    assert tokenizer.id_to_token(tokenizer.vocab_size) is None
    assert not tokenizer.is_special(tokenizer.vocab_size)
    with pytest.raises(RequestError, match="negative"):
        tokenizer.decode([-1])


@BOTH
def test_half_a_surrogate_pair_is_refused(make: Metadata) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        load(make()).encode("a\ud83d b")


@BOTH
def test_pieces_and_ids_are_each_others_inverse(make: Metadata) -> None:
    tokenizer = load(make())
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.id_to_token(token_id)
        assert piece is not None
        assert tokenizer.token_to_id(piece) == token_id
    assert tokenizer.token_to_id("no such piece") is None


def test_stop_ids_are_the_files_and_the_turn_ending_words() -> None:
    assert load(small_gemma3_metadata()).eos_token_ids == (1, 106)
    assert load(small_gemma4_metadata()).eos_token_ids == (1, 106, 50)
    assert load({**small_gemma3_metadata(), PREFIX + "eot_token_id": 7}).eos_token_ids == (1, 7, 106)


def test_only_sentencepiece_files_add_bos_by_themselves() -> None:
    assert load(small_gemma3_metadata()).adds_bos
    assert not load({**small_gemma3_metadata(), PREFIX + "add_bos_token": False}).adds_bos
    assert not load(small_gemma4_metadata()).adds_bos


def test_gemma4_words_flagged_as_user_defined_are_control_tokens_all_the_same() -> None:
    tokenizer = load(small_gemma4_metadata())
    assert all(map(tokenizer.is_special, GEMMA4_VISIBLE))
    assert not tokenizer.is_special(tokenizer.encode("<start_of_turn>")[0])


def test_runs_of_spaces_spelled_with_real_spaces_are_matched() -> None:
    tokenizer = load(small_gemma3_metadata())
    run = tokenizer.token_to_id("\u2581\u2581\u2581")
    assert run is not None
    assert run in tokenizer.encode("the   world")
    assert tokenizer.token_bytes(run) == b"   "


def test_a_normal_piece_that_looks_like_a_byte_is_text_in_sentencepiece() -> None:
    metadata = small_gemma3_metadata()
    metadata[PREFIX + "tokens"].append("<0x4a>")
    metadata[PREFIX + "token_type"].append(1)
    metadata[PREFIX + "scores"].append(-9999.0)
    tokenizer = load(metadata)
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"<0x4a>"


# -- invalid bytes ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xe2\x82", "\ufffd\ufffd"),
        (b"\xe2\x82\xac\xff", "\u20ac\ufffd"),
        (b"\xff\xe2\x82\xac", "\ufffd\u20ac"),
        (b"\xf0\x9f\x98a", "\ufffd\ufffd\ufffda"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
    ],
)
def test_each_invalid_byte_is_one_replacement_character(make: Metadata, data: bytes, text: str) -> None:
    # As SentencePiece has it. The tokenizers library replaces all bytes of a run if one is invalid, which no stream
    # could do: it would have to take back characters already given out.
    tokenizer = load(make())
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in data]
    assert tokenizer.decode([token_id for token_id in ids if token_id is not None]) == text


# -- damaged metadata ------------------------------------------------------------------------------------------------


def damage(make: Metadata, key: str, value: Any) -> dict[str, Any]:
    metadata = make()
    old = metadata.get(PREFIX + key)
    metadata[PREFIX + key] = value(old) if callable(value) else value
    return metadata


@BOTH
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", None),
        ("model", 7),
        ("tokens", None),
        ("tokens", []),
        ("tokens", "text"),
        ("tokens", lambda old: [*old[:5], 7, *old[6:]]),
        ("tokens", lambda old: [*old[:-1], old[-2]]),
        ("tokens", lambda old: [item.encode() for item in old[:-1]] + [b"\xff"]),
        ("tokens", lambda old: [*old[:-1], "\ud800"]),
        ("token_type", None),
        ("token_type", 3),
        ("token_type", lambda old: old[:-1]),
        ("token_type", lambda old: [0, *old[1:]]),
        ("token_type", lambda old: [*old[:-1], 7]),
        ("token_type", lambda old: [2, 2, *old[2:]]),
        ("bos_token_id", -1),
        ("bos_token_id", 10**6),
        ("bos_token_id", "2"),
        ("eos_token_id", 10**6),
        ("eot_token_id", 10**6),
        ("unknown_token_id", 10**6),
        ("padding_token_id", 2.5),
    ],
)
def test_damage_is_told_by_the_name_of_its_key(make: Metadata, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"^tokenizer\.ggml\.{key}\b"):
        load(damage(make, key, value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scores", None),
        ("scores", lambda old: old[1:]),
        ("scores", lambda old: [float("nan"), *old[1:]]),
        ("scores", lambda old: [str(item) for item in old]),
        ("tokens", lambda old: [*old[:-1], ""]),
        ("tokens", lambda old: [item.replace("<0x41>", "<0xQQ>") for item in old]),
        ("token_type", lambda old: [1 if item == 6 and i == 200 else item for i, item in enumerate(old)]),
    ],
)
def test_damaged_sentencepiece_arrays(key: str, value: Any) -> None:
    expected = "tokens" if key == "token_type" else key
    with pytest.raises(CheckpointError, match=rf"^tokenizer\.ggml\.{expected}\b"):
        load(damage(small_gemma3_metadata, key, value))


@pytest.mark.parametrize(
    "value",
    [None, [], lambda old: [*old, "nospace"], lambda old: [*old, "t nosuchpiece"], lambda old: [*old, "a b c"]],
)
def test_damaged_merges(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^tokenizer\.ggml\.merges\b"):
        load(damage(small_gemma4_metadata, "merges", value))


def test_a_file_without_any_unknown_token_is_damaged() -> None:
    metadata = damage(small_gemma3_metadata, "tokens", lambda old: ["<x>" if item == "<unk>" else item for item in old])
    del metadata[PREFIX + "unknown_token_id"]
    with pytest.raises(CheckpointError, match="unknown_token_id"):
        load(metadata)


@BOTH
def test_two_unknown_tokens_are_damage(make: Metadata) -> None:
    metadata = damage(make, "token_type", lambda old: [2, 2, *old[2:]])
    del metadata[PREFIX + "unknown_token_id"]
    with pytest.raises(CheckpointError, match=r"^tokenizer\.ggml\.token_type and .* several unknown tokens"):
        load(metadata)


@pytest.mark.parametrize(
    ("key", "value"),
    [("model", "gpt2"), ("model", b"bert"), ("add_space_prefix", True), ("precompiled_charsmap", [1, 2])],
)
def test_other_tokenizers_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=rf"^tokenizer\.ggml\.{key}\b"):
        load(damage(small_gemma3_metadata, key, value))


# -- the cache -------------------------------------------------------------------------------------------------------


def test_the_cache_is_written_once_and_used(tmp_path: Path) -> None:
    metadata = small_gemma3_metadata()
    first = from_gguf_metadata(metadata, cache_dir=tmp_path / "new" / "folder")
    (kept,) = (tmp_path / "new" / "folder").iterdir()
    before = kept.stat()
    second = from_gguf_metadata(metadata, cache_dir=kept.parent)
    assert kept.stat().st_mtime_ns == before.st_mtime_ns
    assert kept.stat().st_ino == before.st_ino
    assert [first.encode(text) for text in HARD_TEXTS] == [second.encode(text) for text in HARD_TEXTS]


@pytest.mark.parametrize("key", ["tokens", "scores", "token_type"])
def test_other_arrays_have_another_cache_file(tmp_path: Path, key: str) -> None:
    metadata = small_gemma3_metadata()
    from_gguf_metadata(metadata, cache_dir=tmp_path)
    metadata[PREFIX + key][-1] = {"tokens": "other", "scores": -3.5, "token_type": 5}[key]
    from_gguf_metadata(metadata, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda data: data[:2000] + bytes([data[2000] ^ 1]) + data[2001:],
        lambda data: b"x" * len(data),
    ],
)
def test_a_damaged_cache_is_written_anew(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    metadata = small_gemma3_metadata()
    expected = from_gguf_metadata(metadata, cache_dir=tmp_path)
    (kept,) = tmp_path.iterdir()
    good = kept.read_bytes()
    kept.write_bytes(spoil(good))
    tokenizer = from_gguf_metadata(metadata, cache_dir=tmp_path)
    assert [tokenizer.encode(text) for text in HARD_TEXTS] == [expected.encode(text) for text in HARD_TEXTS]
    assert kept.read_bytes() == good
    assert list(tmp_path.iterdir()) == [kept]


def test_the_cache_of_another_vocabulary_is_not_trusted_under_a_false_name(tmp_path: Path) -> None:
    metadata = small_gemma3_metadata()
    from_gguf_metadata(metadata, cache_dir=tmp_path)
    (other,) = tmp_path.iterdir()
    changed = damage(small_gemma3_metadata, "tokens", lambda old: [*old[:-1], "other"])
    from_gguf_metadata(changed, cache_dir=tmp_path)
    (mine,) = set(tmp_path.iterdir()) - {other}
    mine.write_bytes(other.read_bytes())
    assert from_gguf_metadata(changed, cache_dir=tmp_path).token_to_id("other") is not None


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    tokenizer = from_gguf_metadata(small_gemma3_metadata(), cache_dir=tmp_path / "file")
    assert tokenizer.encode("the") == load(small_gemma3_metadata()).encode("the")
