"""An answer's text: stop strings wherever tokens cut them, min_tokens, and pieces that may be shown at once."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemwright.engine.answer_text import AnswerText
from gemwright.engine.request import FinishReason


class Pieces:
    """A decoder whose token i stands for the i-th piece of UTF-8 bytes."""

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self.decoder.decode(b"".join(self.pieces[token_id] for token_id in ids))

    def finish(self) -> str:
        return self.decoder.decode(b"", final=True)


def answer(pieces: Sequence[str | bytes], stop: Sequence[str], *, num_before: int = 0) -> tuple[AnswerText, list[str]]:
    """Push pieces until a stop string ends them, the first `num_before` not being allowed to; returns what a stream
    would show after each."""
    text = AnswerText(Pieces(pieces), stop)
    shown = []
    for index in range(len(pieces)):
        stopped = text.push(index, may_stop=index >= num_before)
        shown.append("".join([*shown[-1:], text.take_text()]))
        if stopped:
            break
    text.finish(FinishReason.STOP, may_stop=len(pieces) > num_before)
    shown.append("".join([*shown[-1:], text.take_text()]))
    return text, shown


@pytest.mark.parametrize(
    "pieces", [["one stop two"], ["one st", "op two"], ["one s", "t", "o", "p two"], list("one stop")]
)
def test_a_stop_string_is_found_across_tokens_and_cut(pieces: list[str]) -> None:
    text, _ = answer(pieces, ["stop"])
    assert text.stop_found == "stop"
    assert text.text == "one "


def test_nothing_is_read_after_a_stop_string() -> None:
    text, shown = answer(["a", "b!", "c"], ["!"])
    assert (text.text, text.stop_found) == ("ab", "!")
    assert shown == ["a", "ab", "ab"]


def test_without_stop_strings_all_is_shown_at_once() -> None:
    text, shown = answer(["a", "bc", ""], [])
    assert text.stop_found is None
    assert shown == ["a", "abc", "abc", "abc"]


def test_a_tail_that_may_become_a_stop_string_is_held_back_and_no_more() -> None:
    _, shown = answer(["ab", "EN", "D", "x"], ["ENDING"])
    assert shown == ["ab", "ab", "ab", "abENDx", "abENDx"]
    _, shown = answer(["aab", "a"], ["aac"])
    assert shown == ["aab", "aab", "aaba"]


def test_the_end_gives_out_what_was_held_back() -> None:
    text, shown = answer(["ab", "EN"], ["END"])
    assert (text.text, text.stop_found) == ("abEN", None)
    assert shown == ["ab", "ab", "abEN"]


def test_the_stop_string_that_is_complete_first_wins_however_tokens_are_cut() -> None:
    """ "bc" is complete before "abcd", and "abc" reaches further back than "bc"."""
    for pieces in (["xabcd"], list("xabcd"), ["xab", "cd"], ["xa", "bcd"]):
        assert answer(pieces, ["abcd", "bc"])[0].text == "xa"
        assert answer(pieces, ["bc", "abc"])[0].text == "x"


def test_the_first_of_two_places_wins() -> None:
    assert answer(["a.b.c"], ["."])[0].text == "a"


def test_stop_strings_among_the_first_tokens_stay_in_the_text() -> None:
    text, _ = answer(["a.", "b.", "c.", "d"], ["."], num_before=2)
    assert text.text == "a.b.c"
    text, _ = answer(["a", "b.", "c"], ["."], num_before=2)
    assert (text.text, text.stop_found) == ("ab.c", None)


def test_a_stop_string_may_begin_among_the_first_tokens() -> None:
    assert answer(["ab", "EN", "D"], ["END"], num_before=2)[0].text == "ab"


def test_half_a_character_is_no_text_until_the_end() -> None:
    euro = "€".encode()
    text, shown = answer(["a", euro[:1], euro[1:]], [])
    assert shown == ["a", "a", "a€", "a€"]
    assert text.text == "a€"
    text, shown = answer(["a", euro[:2]], [])
    assert shown == ["a", "a", "a\ufffd"]


def test_what_the_end_completes_may_stop_too() -> None:
    text, shown = answer(["a", b"\xe2\x82"], ["\ufffd"])
    assert (text.text, text.stop_found) == ("a", "\ufffd")
    assert shown == ["a", "a", "a"]
    text, _ = answer(["a", b"\xe2\x82"], ["\ufffd"], num_before=2)
    assert (text.text, text.stop_found) == ("a\ufffd", None)


@given(
    text=st.text(alphabet="ab.", max_size=24),
    stop=st.lists(st.text(alphabet="ab.", min_size=1, max_size=5), max_size=3),
    data=st.data(),
)
def test_any_cutting_gives_the_same_text_in_pieces_that_join(text: str, stop: list[str], data: st.DataObject) -> None:
    ends = [(text.find(word) + len(word), text.find(word)) for word in stop if word in text]
    expected = text[: min(ends)[1]] if ends else text
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text))), label="cuts") | {0, len(text)})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(cuts)]
    final, shown = answer(pieces, stop)
    assert final.text == expected
    assert (final.stop_found is not None) is bool(ends)
    assert shown[-1] == expected
    for earlier, later in itertools.pairwise(shown):
        assert later.startswith(earlier), "text that was shown is taken back"


@given(data=st.binary(max_size=24), stop=st.lists(st.sampled_from(["é", "a", "\ufffd", "€a"]), max_size=2))
def test_any_bytes_give_pieces_that_join(data: bytes, stop: list[str]) -> None:
    final, shown = answer([bytes([byte]) for byte in data], stop)
    for earlier, later in itertools.pairwise(shown):
        assert later.startswith(earlier)
    assert shown[-1] == final.text
    assert final.stop_found is not None or final.text == data.decode("utf-8", "replace")
