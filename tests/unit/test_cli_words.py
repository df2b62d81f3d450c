"""How the words of `gemwright run` are read: which is the model and which the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemwright.cli.asked import Asked, choose_model_and_prompt
from gemwright.cli.options import Bytes, given
from gemwright.errors import RequestError

IDS = (2, 651)


def choose(*words: str, model: str | None = None, prompt: str | None = None, token_ids: tuple[int, ...] | None = None):
    return choose_model_and_prompt(words, model=model, prompt=prompt, token_ids=token_ids)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("word", ["The capital of France is", "file", "no/such/thing", "a/b c", "gguf", "nowhere"])
def test_a_lone_word_is_the_prompt_of_the_default_model(word: str) -> None:
    assert choose(word) == Asked(None, word)


@pytest.mark.parametrize("word", ["folder", "./folder", "google/gemma-3-1b-it", "google/gemma-3-1b-it@main", "x.gguf"])
def test_a_lone_word_that_looks_like_a_model_is_the_model(word: str) -> None:
    assert choose(word, prompt="p") == Asked(word, "p")
    with pytest.raises(RequestError, match="is read as the model"):
        choose(word)


def test_with_ids_a_lone_word_is_the_model_whatever_it_looks_like() -> None:
    assert choose("nowhere", token_ids=IDS) == Asked("nowhere", IDS)
    assert choose(token_ids=IDS) == Asked(None, IDS)


def test_two_words_are_model_and_prompt() -> None:
    assert choose("nowhere", "folder") == Asked("nowhere", "folder")


def test_with_the_model_flag_a_lone_word_is_the_prompt() -> None:
    assert choose("folder", model="m") == Asked("m", "folder")


def test_flags_alone_say_it_outright() -> None:
    assert choose(model="m", prompt="folder") == Asked("m", "folder")
    assert choose(prompt="folder") == Asked(None, "folder")


@pytest.mark.parametrize(
    ("words", "flags", "message"),
    [
        ((), {}, "no prompt"),
        (("a", "b", "c"), {}, "too many words"),
        (("folder", "p"), {"model": "m"}, "two models"),
        (("hello",), {"prompt": "p"}, "two prompts"),
        (("folder", "p"), {"prompt": "p"}, "two prompts"),
        (("folder", "p"), {"token_ids": IDS}, "two prompts"),
        (("p",), {"model": "m", "token_ids": IDS}, "two prompts"),
        ((), {"prompt": "p", "token_ids": IDS}, "two prompts"),
        (("",), {}, "empty"),
        (("folder", ""), {}, "empty"),
        ((), {"prompt": ""}, "empty"),
    ],
)
def test_what_is_missing_empty_or_said_twice_is_refused(words: tuple[str, ...], flags: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        choose(*words, **flags)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), Asked("m", "from the variable")),
        (("hello",), Asked("m", "hello")),
        (("folder",), Asked("folder", "from the variable")),
        (("folder", "hello"), Asked("folder", "hello")),
    ],
)
def test_words_go_before_variables(words: tuple[str, ...], expected: Asked) -> None:
    found = choose_model_and_prompt(
        words, model="m", prompt="from the variable", token_ids=None, from_environment={"model", "prompt"}
    )
    assert found == expected


def test_two_prompts_in_variables_are_refused_unless_a_word_decides() -> None:
    variables = {"prompt": "p", "token_ids": IDS, "from_environment": {"prompt", "token_ids"}}
    with pytest.raises(RequestError, match="two prompts"):
        choose_model_and_prompt((), model=None, **variables)
    assert choose_model_and_prompt(("m", "word"), model=None, **variables) == Asked("m", "word")


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("7B", 7), ("1KiB", 1024), ("3 MiB", 3 << 20), ("2GiB", 2 << 30), ("1TiB", 1 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert Bytes().convert(text, None, None) == size


def test_zero_is_a_choice_and_absence_is_none() -> None:
    values = {"temperature": 0.0, "logprobs": 0, "seed": None, "ignore_eos": False, "stop": (), "stop_token_ids": (1,)}
    assert given(values, tuple(values)) == {"temperature": 0.0, "logprobs": 0, "stop_token_ids": (1,)}
