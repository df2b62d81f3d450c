"""Which template a model has: the user's, its own, ours for what its names or stop ids tell, or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.testing.tokenizer_files import write_byte_tokenizer
from gemwright.text.template_choice import TemplateChoice, dialect_of, names_of
from gemwright.text.tokenizer import Tokenizer, from_gguf_metadata, from_tokenizer_json
from tests.chat_templates import byte_tokenizer, user
from tests.tokenizer_cases import real_metadata, small_gemma3_metadata, small_gemma4_metadata

OWN = "{{ bos_token }}{{ messages[0].content }}"


def choice(folder: Path, tokenizer: Tokenizer | None = None, **changes: Any) -> TemplateChoice:
    facts: dict[str, Any] = {
        "gguf_metadata": None,
        "names": ("gemma",),
        "stop_ids": (1,),
        "is_large": False,
        "tokenizer": tokenizer or byte_tokenizer("gemma4"),
        **changes,
    }
    return TemplateChoice(folder=folder, **facts)


def test_turns_are_told_by_the_vocabulary() -> None:
    assert [dialect_of(byte_tokenizer(name)) for name in ("gemma2", "gemma3", "gemma4")] == [
        "gemma2",
        "gemma3",
        "gemma4",
    ]
    assert dialect_of(from_gguf_metadata(real_metadata(), cache_dir=None)) == "gemma3"
    assert dialect_of(from_gguf_metadata(small_gemma4_metadata(), cache_dir=None)) == "gemma4"
    assert dialect_of(from_gguf_metadata(small_gemma3_metadata(), cache_dir=None)) == "gemma3"


@pytest.mark.parametrize(
    ("name", "stop_ids", "takes_turns"),
    [
        ("gemma-3-1b-it", (1,), True),
        ("models--google--gemma-3-1b-it", (1,), True),
        ("gemma-3-1b-it-Q4_K_M.gguf", (1,), True),
        ("gemma-3-1b_IT.gguf", (1,), True),
        ("my-gemma-chat", (1,), True),
        ("gemma-instruct.v2", (1,), True),
        ("gemma-3-1b", (1,), False),
        ("gemma-3-1b", (1, 106), True),
        ("gemma-3-4b-pt", (1, 106), False),  # its published config lists 106 (facts, configs)
        ("gemma-base", (1, 106), False),
        ("gemma-3-4b-it-base", (1,), True),
        ("edit-gemma", (1,), False),
        ("italy", (1,), False),
        ("chatter", (1,), False),
        ("compt-base64", (1, 106), True),
    ],
)
def test_names_go_before_stop_ids(tmp_path: Path, name: str, stop_ids: tuple[int, ...], takes_turns: bool) -> None:
    found = choice(tmp_path, names=(name,), stop_ids=stop_ids)
    assert found.takes_turns is takes_turns
    assert (found.load() is not None) is takes_turns


@pytest.mark.parametrize(
    ("metadata", "takes_turns"),
    [
        ({}, False),
        ({"general.finetune": "it"}, True),
        ({"general.finetune": b"it"}, True),
        ({"general.name": "Gemma 4 E2B It"}, True),
        ({"general.name": "Gemma 3 270m"}, False),
        ({"general.name": 7}, False),
        ({"tokenizer.chat_template": OWN}, True),
    ],
)
def test_gguf_metadata_tell_it(tmp_path: Path, metadata: dict[str, Any], takes_turns: bool) -> None:
    assert choice(tmp_path, gguf_metadata=metadata).takes_turns is takes_turns


def test_the_default_model_takes_no_turns(tmp_path: Path) -> None:
    metadata = real_metadata()
    tokenizer = from_gguf_metadata(metadata, cache_dir=None)
    found = choice(tmp_path, tokenizer, gguf_metadata=metadata, names=("gemma-3-270m-Q4_K_M.gguf",))
    assert not found.takes_turns
    assert found.load() is None


def test_a_gguf_file_that_ends_with_the_end_of_a_turn_takes_turns(tmp_path: Path) -> None:
    metadata = {**small_gemma3_metadata(), "tokenizer.ggml.eos_token_id": 106}
    tokenizer = from_gguf_metadata(metadata, cache_dir=None)
    assert choice(tmp_path, tokenizer, gguf_metadata=metadata, stop_ids=(106,)).takes_turns


@pytest.mark.parametrize(
    ("metadata", "ends", "stop_ids"),
    [
        # Field cases 047, 048: whatever a converter wrote, a chat ends where its model ends it.
        (small_gemma3_metadata(), {"eos": 1}, [1, 106]),
        (small_gemma3_metadata(), {"eos": 106}, [1, 106]),
        (small_gemma3_metadata(), {"eos": 1, "eot": 106}, [1, 106]),
        (small_gemma4_metadata(), {"eos": 1}, [1, 50, 106]),
        (small_gemma4_metadata(), {"eos": 106}, [1, 50, 106]),
        (small_gemma4_metadata(), {"eos": 106, "eot": 50, "eom": 98}, [1, 50, 98, 106]),
    ],
)
def test_a_gguf_chat_model_stops_at_every_end(
    tmp_path: Path, metadata: dict[str, Any], ends: dict[str, int], stop_ids: list[int]
) -> None:
    metadata = {**metadata, **{f"tokenizer.ggml.{name}_token_id": token_id for name, token_id in ends.items()}}
    tokenizer = from_gguf_metadata(metadata, cache_dir=None)
    listed = tuple(ends.values())
    tuned = choice(tmp_path, tokenizer, gguf_metadata=metadata, names=("gemma-it",), stop_ids=listed)
    assert sorted(tuned.all_stop_ids()) == stop_ids
    base = choice(tmp_path, tokenizer, gguf_metadata=metadata, names=("gemma-pt",), stop_ids=listed)
    assert base.all_stop_ids() == listed


@pytest.mark.parametrize(("is_large", "name"), [(False, "gemma4"), (True, "gemma4-large")])
def test_the_larger_gemma4_models_have_a_template_of_their_own(tmp_path: Path, is_large: bool, name: str) -> None:
    template = choice(tmp_path, names=("it",), is_large=is_large).load()
    assert template is not None
    assert template.name == f"built in, {name}"
    template = choice(tmp_path, byte_tokenizer("gemma3"), names=("it",), is_large=is_large).load()
    assert template is not None
    assert template.name == "built in, gemma3"


def test_a_vocabulary_without_turns_takes_none(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, 400)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("<|turn>", "<|burn>"))
    tokenizer = from_tokenizer_json(tmp_path)
    assert dialect_of(tokenizer) is None
    assert choice(tmp_path, tokenizer, names=("it",)).load() is None
    (tmp_path / "chat_template.jinja").write_text(OWN)
    found = choice(tmp_path, tokenizer)
    assert found.takes_turns
    template = found.load()
    assert template is not None
    assert template.render([user("U")]).text == "<bos>U"
    with pytest.raises(UnsupportedError, match="vocabulary"):
        choice(tmp_path, tokenizer, chosen="gemma4").load()


def test_the_models_own_goes_before_ours_and_the_users_before_both(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": OWN}))
    template = choice(tmp_path, names=("gemma-base",)).load()
    assert template is not None
    assert (template.name, template.render([user("U")]).text) == ("the model's own", "<bos>U")
    template = choice(tmp_path, chosen="gemma4-large").load()
    assert template is not None
    assert template.name == "built in, gemma4-large"
    chosen = tmp_path / "mine.jinja"
    chosen.write_text("{{ messages[0].content }}!")
    template = choice(tmp_path, chosen=str(chosen)).load()
    assert template is not None
    assert template.render([user("U")]).text == "U!"


def test_a_damaged_template_says_that_there_are_turns(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    found = choice(tmp_path)
    assert found.takes_turns
    with pytest.raises(CheckpointError, match="no valid template"):
        found.load()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    assert found.takes_turns
    with pytest.raises(CheckpointError, match="UTF-8"):
        found.load()


@pytest.mark.parametrize("chosen", ["gemma3", "gemma2"])
def test_a_choice_of_another_family_is_refused(tmp_path: Path, chosen: str) -> None:
    with pytest.raises(UnsupportedError, match="vocabulary"):
        choice(tmp_path, chosen=chosen).load()


def test_a_choice_that_is_no_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "huge").write_text("x" * ((1 << 20) + 1))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "broken").write_text("{{")
    for name in ("missing", ".", "huge", "bytes", "broken", "gemma9"):
        with pytest.raises(CheckpointError):
            choice(tmp_path, chosen=str(tmp_path / name)).load()
    for name in ("~nobody-at-all/x", "a\0b"):
        with pytest.raises(CheckpointError):
            choice(tmp_path, chosen=name).load()


def test_names_are_those_of_the_file_and_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "an-it-place" / "models--google--gemma-3-1b-it" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    assert names_of(snapshot) == ("models--google--gemma-3-1b-it",)
    (snapshot / "x-Q4.gguf").write_text("")
    assert names_of(snapshot / "x-Q4.gguf") == ("x-Q4.gguf", "models--google--gemma-3-1b-it")
    folder = tmp_path / "an-it-place" / "gemma"
    folder.mkdir()
    assert names_of(folder) == ("gemma",)
    monkeypatch.chdir(folder)
    assert names_of(Path()) == ("gemma",)
