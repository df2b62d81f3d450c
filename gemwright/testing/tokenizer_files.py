"""Writes a byte-level tokenizer.json with Gemma's special ids: every byte is a token, so every text round-trips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL_IDS = {
    "<pad>": 0,
    "<eos>": 1,
    "<bos>": 2,
    "<unk>": 3,
    "<mask>": 4,
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

FIRST_BYTE_ID = 108
"""Id of byte 0; 107 is a newline, as in Gemma 3 and 4."""


def write_byte_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write tokenizer.json and tokenizer_config.json for a model of `vocab_size` rows (at least 365)."""
    names = {token_id: name for name, token_id in SPECIAL_IDS.items()}
    names[107] = "\n"
    names.update({FIRST_BYTE_ID + byte: f"<0x{byte:02X}>" for byte in range(256)})
    names[FIRST_BYTE_ID + 256] = "\u2581"
    if vocab_size < FIRST_BYTE_ID + 257:
        raise ValueError(f"a byte tokenizer needs {FIRST_BYTE_ID + 257} ids, the model has {vocab_size}")
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
            for name, token_id in SPECIAL_IDS.items()
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
