"""A saved conversation comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemwright.cli.chat.conversation import FORMAT, Conversation, load_conversation
from gemwright.cli.chat.keyboard import _history_path, open_keyboard, unfenced
from gemwright.errors import CheckpointError, RequestError

texts = st.text(st.characters(exclude_categories=("Cs",)))


def conversation() -> Conversation:
    talk = Conversation("Be brief.")
    talk.ask("Who?")
    talk.answer("Me.", "They ask who.")
    talk.ask("And why?")
    talk.answer("Because.", None)
    return talk


@given(st.none() | texts, st.lists(st.tuples(texts, texts, st.none() | texts)))
def test_a_saved_conversation_comes_back(
    tmp_path_factory: pytest.TempPathFactory, system: str | None, turns: list[tuple[str, str, str | None]]
) -> None:
    talk = Conversation(system)
    for question, answer, thought in turns:
        talk.ask(question)
        talk.answer(answer, thought)
    path = tmp_path_factory.mktemp("talk") / "talk.json"
    talk.save(path, "a model")
    assert load_conversation(path) == talk
    assert list(path.parent.iterdir()) == [path]


def test_messages_are_those_of_the_openai_interface(tmp_path: Path) -> None:
    conversation().save(tmp_path / "talk.json", "a model")
    assert json.loads((tmp_path / "talk.json").read_text()) == {
        "format": FORMAT,
        "model": "a model",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "Me.", "reasoning_content": "They ask who."},
            {"role": "user", "content": "And why?"},
            {"role": "assistant", "content": "Because."},
        ],
    }


def test_a_conversation_is_saved_over_itself_and_over_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    conversation().save(path, "a model")
    Conversation().save(path, "a model")
    assert load_conversation(path) == Conversation()
    path.write_text("a diary")
    with pytest.raises(RequestError, match="no saved conversation"):
        conversation().save(path, "a model")
    assert path.read_text() == "a diary"
    with pytest.raises(RequestError, match="folder"):
        conversation().save(tmp_path, "a model")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        "{}",
        '{"format": "gemwright chat 1"}',
        '{"format": "gemwright chat 1", "messages": [1]}',
        '{"format": "gemwright chat 1", "messages": [{"role": "tool", "content": "x"}]}',
        '{"format": "gemwright chat 1", "messages": [{"role": "user"}]}',
        '{"format": "gemwright chat 1", "messages": [{"role": "user", "content": 7}]}',
        '{"format": "gemwright chat 1", "messages": [{"role": "user", "content": "x", "name": "y"}]}',
        '{"format": "gemwright chat 9", "messages": []}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_conversation_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(content)
    with pytest.raises(CheckpointError) as caught:
        load_conversation(path)
    assert str(path) in caught.value.what


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "bytes"):
        with pytest.raises(CheckpointError, match=str(path)):
            load_conversation(path)


def test_taking_back_removes_the_question_and_its_answer() -> None:
    talk = conversation()
    assert talk.take_back() == "And why?"
    assert [message["content"] for message in talk.messages] == ["Who?", "Me."]
    assert talk.last_thought() == "They ask who."
    assert talk.take_back() == "Who?"
    assert talk.take_back() is None
    assert talk.last_thought() is None
    assert talk.with_system() == [{"role": "system", "content": "Be brief."}]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("one line", "one line"),
        ('"""\na\n\n  b\n"""', "a\n\n  b"),
        ('"""a\nb"""', "a\nb"),
        ('say """x""" twice', 'say """x""" twice'),
    ],
)
def test_fences_are_taken_off(typed: str, message: str) -> None:
    assert unfenced(typed) == message


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        ("a\nb\n", ["a", "b"]),
        ('"""\na\n\nb\n"""\nc\n', ["a\n\nb", "c"]),
        ('"""a\nb"""\nc', ["a\nb", "c"]),
        ('say """\nb', ['say """', "b"]),
        ('"""never closed\nb', ["never closed\nb"]),
        ('"""one"""\n', ["one"]),
        ("\n\n", ["", ""]),
        ("", []),
    ],
)
def test_lines_of_a_pipe_become_messages(monkeypatch: pytest.MonkeyPatch, lines: str, messages: list[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    keyboard = open_keyboard([], keep_history=False)
    assert list(iter(keyboard.read, None)) == messages


def test_a_device_is_no_conversation(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_conversation(Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_conversation(tmp_path / "pipe")


def test_what_stands_between_fences_is_no_command() -> None:
    assert unfenced('"""\n/exit\n"""') == "//exit"
    assert unfenced('"""/etc is full"""') == "//etc is full"
    assert unfenced("/exit") == "/exit"


def test_a_folder_in_the_place_of_the_history_is_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert _history_path() == tmp_path / "gemwright" / "chat_history"
    (tmp_path / "gemwright" / "chat_history").unlink()
    (tmp_path / "gemwright" / "chat_history").mkdir()
    assert _history_path() is None
