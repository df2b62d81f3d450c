"""tokenizer.json files: what is read from them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemwright.errors import CheckpointError, RequestError, UnsupportedError
from gemwright.text.tokenizer import from_tokenizer_json, load_tokenizer
from tests.tokenizer_cases import small_gemma3_metadata


def small_json(path: Path, **changes: Any) -> Path:
    """Write a tokenizer.json of Gemma's form by hand: three characters, all bytes, `<x>` a plain added token."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces += ["a", "b", "\u2581", "ab", "<x>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": pieces[i], "special": i < 4, **flags} for i in (0, 1, 2, 3, 4, len(pieces) - 1)]
    state = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            **{"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
            **{"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [["a", "b"]]},
        },
        **changes,
    }
    path.write_text(json.dumps(state), encoding="utf-8")
    return path


def test_a_tokenizer_json_loads_from_its_file_or_folder(tmp_path: Path) -> None:
    path = small_json(tmp_path / "tokenizer.json")
    for given in (path, tmp_path, str(tmp_path)):
        tokenizer = from_tokenizer_json(given)
        assert tokenizer.encode("ab é<x><bos>") == [264, 263, 5 + 0xC3, 5 + 0xA9, 265, 2]
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.adds_bos) == (2, (1, 4), False)
        assert tokenizer.vocab_size == 266
        assert tokenizer.decode([264, 265, 2]) == "ab<x>"


def test_a_turn_end_listed_as_a_plain_added_token_is_special_and_can_be_typed_as_text(tmp_path: Path) -> None:
    tokenizer = from_tokenizer_json(small_json(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("a<end_of_turn>") == [261, 4]
    ids = tokenizer.encode("a<end_of_turn>", parse_special=False)
    assert 4 not in ids
    assert tokenizer.decode(ids) == "a<end_of_turn>"


def test_the_config_beside_it_names_bos_and_eos(tmp_path: Path) -> None:
    small_json(tmp_path / "tokenizer.json")
    config = {"bos_token": {"content": "<x>", "special": True}, "eos_token": "<end_of_turn>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = from_tokenizer_json(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.adds_bos) == (265, (4,), True)


def test_a_tokenizer_without_bos_refuses_to_add_one(tmp_path: Path) -> None:
    small_json(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null}')
    tokenizer = from_tokenizer_json(tmp_path)
    assert tokenizer.bos_token_id is None
    with pytest.raises(RequestError, match="BOS"):
        tokenizer.encode("a", add_bos=True)


@pytest.mark.parametrize("content", ["[]", "{", '{"bos_token": "<absent>"}'])
def test_a_damaged_config_is_named(tmp_path: Path, content: str) -> None:
    small_json(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        from_tokenizer_json(tmp_path)


def test_a_missing_or_damaged_tokenizer_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"(?s)missing.*tokenizer\.json"):
        from_tokenizer_json(tmp_path)
    for content in (b"", b"{}", b"\xff\xfe", b"[1]", small_json(tmp_path / "tokenizer.json").read_bytes()[:-9]):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer file"):
            from_tokenizer_json(tmp_path)


@pytest.mark.parametrize("decoder", [None, {"type": "ByteLevel"}, {"type": "Sequence", "decoders": []}])
def test_a_decoder_that_is_not_gemmas_is_refused(tmp_path: Path, decoder: Any) -> None:
    if decoder is not None and decoder["type"] == "ByteLevel":
        decoder |= {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    with pytest.raises(UnsupportedError, match="decoder"):
        from_tokenizer_json(small_json(tmp_path / "tokenizer.json", decoder=decoder))


def test_a_model_without_tokenizer_files_has_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None
    assert load_tokenizer(tmp_path, gguf_metadata={"general.architecture": "gemma3"}) is None
    small_json(tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("ab") == [264]
    # A GGUF file's own arrays are its tokenizer, whatever lies beside it.
    tokenizer = load_tokenizer(tmp_path, gguf_metadata=small_gemma3_metadata())
    assert tokenizer is not None
    assert tokenizer.encode("<start_of_turn>") == [105]
    assert load_tokenizer(tmp_path, gguf_metadata={"general.architecture": "gemma3"}) is None


def test_a_control_word_typed_as_text_is_cut_as_any_other_text(tmp_path: Path) -> None:
    path = small_json(tmp_path / "tokenizer.json")
    state = json.loads(path.read_text(encoding="utf-8"))
    state["model"]["vocab"] |= {"<": 266, "<b": 267}
    state["model"]["merges"].append(["<", "b"])
    path.write_text(json.dumps(state), encoding="utf-8")
    tokenizer = from_tokenizer_json(path)
    assert tokenizer.encode("<bos>") == [2]
    assert tokenizer.encode("<bos>", parse_special=False) == [267, 5 + ord("o"), 5 + ord("s"), 5 + ord(">")]
    assert tokenizer.encode("<bos>") == [2]


def test_truncation_and_padding_written_into_the_file_do_not_apply(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    padding["pad_to_multiple_of"] = None
    path = small_json(tmp_path / "tokenizer.json", truncation=truncation, padding=padding)
    assert from_tokenizer_json(path).encode("aaaa") == [261] * 4
