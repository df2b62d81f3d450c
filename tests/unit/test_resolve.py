"""What a user may call a model: folders, files, hub ids, and words that are none of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemwright.errors import CheckpointError, RequestError
from gemwright.loading.resolve import looks_like_model, resolve_model


def test_a_folder_a_gguf_file_and_a_hub_id_look_like_models(tmp_path: Path) -> None:
    assert looks_like_model(str(tmp_path))
    assert looks_like_model("missing.gguf")
    assert looks_like_model("google/gemma-3-1b-it")
    assert looks_like_model("google/gemma-3-1b-it@main")


@pytest.mark.parametrize("text", ["", "Hello", "word " * 200, "x" * 5000, "a/b/c", "./nope", "What is 1/2?", "\0"])
def test_other_words_are_prompts(text: str) -> None:
    assert not looks_like_model(text)


@pytest.mark.parametrize(
    "name", ["./nope", "nope/", "a..b/--c", "a--b/c..d", "~nobody-here/x", "x" * 5000, "\0", "no.gguf"]
)
def test_a_name_of_nothing_is_no_such_model(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such model") as caught:
        resolve_model(name)
    assert caught.value.exit_code == 5
    assert len(str(caught.value)) < 500


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(RequestError, match="name is empty"):
        resolve_model("")
