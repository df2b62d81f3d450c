"""Any chunking gives the same text, no chunk ends in half a character, and control words are found as defined."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemwright.text.control_words import ControlWords
from gemwright.text.detokenizer import Detokenizer
from gemwright.text.tokenizer import Tokenizer, from_gguf_metadata
from tests.tokenizer_cases import cut, small_gemma3_metadata, small_gemma4_metadata

TOKENIZERS = {
    "gemma3": from_gguf_metadata(small_gemma3_metadata(), cache_dir=None),
    "gemma4": from_gguf_metadata(small_gemma4_metadata(), cache_dir=None),
}
FIRST_BYTE = 107
KINDS = st.sampled_from(sorted(TOKENIZERS))
# Bytes are drawn often, those of multi-byte characters above all, and ids past the vocabulary now and then.
IDS = st.lists(
    st.integers(FIRST_BYTE, FIRST_BYTE + 255)
    | st.sampled_from([FIRST_BYTE + byte for byte in (0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xED, 0xA0)])
    | st.integers(0, 500),
    max_size=60,
)
CUTS = st.lists(st.integers(0, 60), max_size=20)


def stream(tokenizer: Tokenizer, chunks: list[list[int]], *, skip_special: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.finish()]


@given(kind=KINDS, ids=IDS, cuts=CUTS, skip_special=st.booleans())
def test_any_chunking_gives_the_text_of_decoding_at_once(
    kind: str, ids: list[int], cuts: list[int], skip_special: bool
) -> None:
    tokenizer = TOKENIZERS[kind]
    texts = stream(tokenizer, cut(ids, cuts), skip_special=skip_special)
    assert "".join(texts) == tokenizer.decode(ids, skip_special=skip_special)


@given(kind=KINDS, ids=IDS, skip_special=st.booleans())
def test_what_is_out_stays_true_whatever_follows(kind: str, ids: list[int], skip_special: bool) -> None:
    # Each prefix's text so far is the start of the whole text: nothing given out is ever taken back.
    tokenizer = TOKENIZERS[kind]
    whole = tokenizer.decode(ids, skip_special=skip_special)
    out = ""
    for text in stream(tokenizer, [[token_id] for token_id in ids], skip_special=skip_special):
        out += text
        assert whole.startswith(out)


@given(kind=KINDS, text=st.text(max_size=40))
@example(kind="gemma3", text="👨\u200d👩\u200d👧 e\u0301 \u20ac")
@example(kind="gemma4", text="👨\u200d👩\u200d👧 e\u0301 \u20ac")
def test_streaming_gives_whole_characters_as_soon_as_their_last_byte_is_there(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, parse_special=False)
    detokenizer = Detokenizer(tokenizer)
    out, given_bytes = "", b""
    for token_id in ids:
        out += detokenizer.push([token_id])
        given_bytes += tokenizer.token_bytes(token_id)
        assert out == given_bytes.decode("utf-8", "ignore")
    assert detokenizer.finish() == ""
    assert out == text.replace("\u2581", " ")


def test_invalid_bytes_come_out_at_once_and_an_unfinished_character_at_the_end() -> None:
    tokenizer = TOKENIZERS["gemma3"]
    detokenizer = Detokenizer(tokenizer)
    e2, ac, ff = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in (0xE2, 0xAC, 0xFF))
    the = tokenizer.encode("the")
    assert e2 is not None
    assert ac is not None
    assert ff is not None
    assert [detokenizer.push([token_id]) for token_id in (e2, ff, e2)] == ["", "\ufffd\ufffd", ""]
    assert detokenizer.push(the) == "\ufffdthe"
    assert [detokenizer.push([token_id]) for token_id in (e2, ac)] == ["", ""]
    assert detokenizer.finish() == "\ufffd\ufffd"
    # The end of a stream is the start of the next.
    assert detokenizer.push([ac]) == "\ufffd"


def test_a_character_may_straddle_a_skipped_control_token() -> None:
    tokenizer = TOKENIZERS["gemma4"]
    euro = [token_id for byte in "€".encode() if (token_id := tokenizer.token_to_id(f"<0x{byte:02X}>")) is not None]
    ids = [euro[0], 2, euro[1], euro[2]]
    assert stream(tokenizer, [[token_id] for token_id in ids], skip_special=True) == ["", "", "", "€", ""]
    assert "".join(stream(tokenizer, [ids], skip_special=False)) == "\ufffd<bos>\ufffd\ufffd"


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_the_cost_is_linear(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode("hello world, é € 🙂 ") * 20_000
    start = time.process_time()
    detokenizer = Detokenizer(tokenizer)
    text = "".join([detokenizer.push([token_id]) for token_id in ids])
    # Hundreds of thousands of tokens one by one: decoding the history again each time would take hours.
    assert len(ids) > 200_000
    assert text == "hello world, é € 🙂 " * 20_000
    assert time.process_time() - start < 20


@given(kind=KINDS, text=st.text(max_size=60), parse_special=st.booleans())
def test_text_survives_encoding_and_decoding(kind: str, text: str, parse_special: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, parse_special=parse_special)
    assert tokenizer.decode(ids, skip_special=False) == text.replace("\u2581", " ")


WORDS = st.dictionaries(st.text("<ab>", min_size=1, max_size=5), st.integers(0, 99), max_size=8)


@given(words=WORDS, text=st.text("<ab> ", max_size=60))
def test_control_words_are_found_leftmost_first_and_longest(words: dict[str, int], text: str) -> None:
    # The plain way: a pattern of all words, longer ones first.
    expected: list[str | int] = [text] if text else []
    if words:
        pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
        parts = re.split(f"({pattern})", text)
        expected = [words[part] if index % 2 else part for index, part in enumerate(parts) if part]
    assert list(ControlWords(words).split(text)) == expected


@given(words=WORDS, text=st.text("<ab> ", max_size=60))
def test_cutting_leaves_no_control_word_of_two_characters_or_more(words: dict[str, int], text: str) -> None:
    parts = ControlWords(words).cut(text)
    assert "".join(parts) == text
    assert all(parts)
    assert not any(word in part for part in parts for word in words if len(word) > 1)
