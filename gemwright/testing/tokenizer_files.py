"""Writes a byte-level tokenizer.json with Gemma's special ids: every byte is a token, so every text round-trips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_COMMON_IDS = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4}

SPECIAL_IDS = {
    **_COMMON_IDS,
    "<|tool>": 46,
    "<tool|>": 47,
    "<|tool_call>": 48,
    "<tool_call|>": 49,
    "<|tool_response>": 50,
    "<tool_response|>": 51,
    '<|"|>': 52,
    "<|think|>": 98,
    "<|channel>": 100,
    "<channel|>": 101,
    "<|turn>": 105,
    "<turn|>": 106,
}
"""Gemma 4's control tokens at their published ids (facts c.2)."""

FAMILY_IDS = {
    "gemma2": {**_COMMON_IDS, "<start_of_turn>": 106, "<end_of_turn>": 107},
    "gemma3": {**_COMMON_IDS, "<start_of_turn>": 105, "<end_of_turn>": 106},
    "gemma4": SPECIAL_IDS,
}
"""The control tokens of each family at their published ids (facts c.1, c.2)."""

MEDIA_WORDS = {
    "gemma2": (),
    "gemma3": ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    "gemma4": ("<|image>", "<|audio>", "<|image|>", "<|audio|>", "<image|>", "<audio|>", "<|video|>"),
}
"""Control words whose published ids lie past a small vocabulary; here they stand behind the bytes."""

FIRST_BYTE_ID = 108
"""Id of byte 0; 107 is a newline, as in Gemma 3 and 4. In Gemma 2 both are one higher."""


def write_byte_tokenizer(folder: Path, vocab_size: int, family: str = "gemma4", *, with_media: bool = False) -> None:
    """Write tokenizer.json and tokenizer_config.json for a model of `vocab_size` rows (at least 365; Gemma 2 one more).

    family: whose control words it has, `gemma2`, `gemma3` or `gemma4`; `with_media` adds MEDIA_WORDS.
    """
    special_ids = dict(FAMILY_IDS[family])
    newline_id = 1 + special_ids.get("<end_of_turn>", 106)
    first_byte = newline_id + 1
    names = {newline_id: "\n", **{first_byte + byte: f"<0x{byte:02X}>" for byte in range(256)}}
    names[first_byte + 256] = "\u2581"
    if with_media:
        special_ids |= {word: first_byte + 257 + place for place, word in enumerate(MEDIA_WORDS[family])}
    names.update({token_id: name for name, token_id in special_ids.items()})
    if vocab_size <= max(names):
        raise ValueError(f"a byte tokenizer needs {max(names) + 1} ids, the model has {vocab_size}")
    vocab = {names.get(token_id, f"<unused{token_id}>"): token_id for token_id in range(vocab_size)}
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name, token_id in special_ids.items()
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False))
    config = {
        "add_bos_token": True,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "tokenizer_class": "GemmaTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
