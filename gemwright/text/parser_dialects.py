"""The table of the output parser: what each mark of a family does in each state. Data alone; `parser.py` follows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from gemwright.errors import UnsupportedError
from gemwright.text.control_words import GEMMA3_CONTROL_WORDS, GEMMA4_CONTROL_WORDS
from gemwright.text.tool_syntax import CALL_CLOSE, CALL_OPEN, QUOTE


class State(Enum):
    """Where the machine is."""

    START = auto()
    """Before the answer, or after a call: a thought or a call may come whose opening mark the model forgot."""
    AFTER_THOUGHT = auto()
    """The same after a thought, where only a call may come so."""
    ANSWER = auto()
    """In text for the reader."""
    LABEL = auto()
    """Behind a thought's opening mark, where its label stands."""
    THOUGHT = auto()
    TURN_LABEL = auto()
    """Behind a turn's opening mark, where the role stands."""
    CALL_NAME = auto()
    """Behind a call's opening mark, up to its first bracket."""
    CALL_JSON = auto()
    """In a call that the model writes as JSON."""
    CALL_GUESS = auto()
    """In what would be a call, had it an opening mark: its closing mark will tell."""
    ARGUMENTS = auto()
    AFTER_CALL = auto()
    """Behind a call's last bracket, where its closing mark stands."""


class Terminal(Enum):
    """What a mark means."""

    THOUGHT_OPEN = auto()
    THOUGHT_CLOSE = auto()
    CALL_OPEN = auto()
    CALL_CLOSE = auto()
    QUOTE = auto()
    TURN_OPEN = auto()
    TURN_CLOSE = auto()
    OTHER = auto()
    """A control word with no place in an answer: it is left out."""


class Act(Enum):
    """What a mark does on the way into the next state. Those below LEAVE_OUT are read by the call that is open."""

    MOVE = auto()
    LEAVE_OUT = auto()
    """Drop the mark, with a warning."""
    GIVE_UP = auto()
    """What looked like a call is shown as text, and the mark is read again."""
    NAME_ALONE = auto()
    """A call without brackets closes."""
    KEEP = auto()
    """A part of what may be a call."""
    CONFIRM = auto()
    """What may be a call is one."""
    QUOTE = auto()
    DATA = auto()
    """A part of a string, or of a value that should be one."""
    CLOSE_CALL = auto()
    """The call ends, unless the mark is data of a string. So also the next two, which are then read again."""
    NEXT_CALL = auto()
    BREAK_OFF = auto()
    """As NEXT_CALL, but brackets that are still open stay so: the call is not complete."""


@dataclass(frozen=True, slots=True)
class Step:
    """One cell of the table: an act, and the next state. Within a call, the call itself knows the next state."""

    act: Act
    then: State


_ALL = tuple(Terminal)
_LEFT_OUT_OF_TEXT = (Terminal.THOUGHT_CLOSE, Terminal.CALL_CLOSE, Terminal.QUOTE, Terminal.OTHER)
_IN_STRINGS = (Terminal.QUOTE, Terminal.OTHER)


def _row(state: State, *cells: tuple[Iterable[Terminal] | Terminal, Act, State | None]) -> Mapping[Terminal, Step]:
    """Return a state's row; of two cells for one terminal the later counts, and None stays in the state."""
    row: dict[Terminal, Step] = {}
    for terminals, act, then in cells:
        named = [terminals] if isinstance(terminals, Terminal) else terminals
        row.update(dict.fromkeys(named, Step(act, then or state)))
    return row


_OPENERS = (
    (Terminal.THOUGHT_OPEN, Act.MOVE, State.LABEL),
    (Terminal.CALL_OPEN, Act.MOVE, State.CALL_NAME),
    (Terminal.TURN_OPEN, Act.LEAVE_OUT, State.TURN_LABEL),
    (Terminal.TURN_CLOSE, Act.MOVE, State.START),
)
_ROWS: Mapping[State, tuple[tuple[Iterable[Terminal] | Terminal, Act, State | None], ...]] = {
    State.START: (*_OPENERS, (_LEFT_OUT_OF_TEXT, Act.LEAVE_OUT, None)),
    State.AFTER_THOUGHT: (*_OPENERS, (_LEFT_OUT_OF_TEXT, Act.LEAVE_OUT, None)),
    State.ANSWER: (*_OPENERS, (_LEFT_OUT_OF_TEXT, Act.LEAVE_OUT, None)),
    State.TURN_LABEL: (*_OPENERS, (_LEFT_OUT_OF_TEXT, Act.LEAVE_OUT, State.ANSWER)),
    State.AFTER_CALL: (
        *_OPENERS,
        (_LEFT_OUT_OF_TEXT, Act.LEAVE_OUT, State.START),
        (Terminal.CALL_CLOSE, Act.MOVE, State.START),
    ),
    State.LABEL: (
        *_OPENERS,
        (_LEFT_OUT_OF_TEXT, Act.LEAVE_OUT, State.THOUGHT),
        (Terminal.THOUGHT_CLOSE, Act.MOVE, State.AFTER_THOUGHT),
    ),
    State.THOUGHT: (
        *_OPENERS,
        (_LEFT_OUT_OF_TEXT, Act.LEAVE_OUT, None),
        (Terminal.THOUGHT_CLOSE, Act.MOVE, State.AFTER_THOUGHT),
    ),
    State.CALL_NAME: (
        (_ALL, Act.GIVE_UP, None),
        (_IN_STRINGS, Act.LEAVE_OUT, None),
        (Terminal.CALL_CLOSE, Act.NAME_ALONE, None),
    ),
    State.CALL_JSON: ((_ALL, Act.GIVE_UP, None),),
    State.CALL_GUESS: (
        (_ALL, Act.GIVE_UP, None),
        (_IN_STRINGS, Act.KEEP, None),
        (Terminal.CALL_CLOSE, Act.CONFIRM, None),
    ),
    State.ARGUMENTS: (
        (_ALL, Act.BREAK_OFF, None),
        (Terminal.QUOTE, Act.QUOTE, None),
        (Terminal.OTHER, Act.DATA, None),
        (Terminal.CALL_OPEN, Act.NEXT_CALL, None),
        (Terminal.CALL_CLOSE, Act.CLOSE_CALL, None),
    ),
}
TABLE: Mapping[State, Mapping[Terminal, Step]] = {state: _row(state, *cells) for state, cells in _ROWS.items()}
"""State x terminal -> what to do and where to go. Text has no cell: each state reads it in its own way."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One family's marks, and what its output may hold.

    label: the line that follows a thought's opening mark and is never shown; None where the family has no thoughts.
    role: the same after a turn's opening mark. has_text_calls: calls are JSON or Python in the text, and are looked
    for where a request has tools.
    """

    name: str
    words: Mapping[str, Terminal]
    label: str | None
    role: str
    has_text_calls: bool


_GEMMA2_WORDS = {
    **dict.fromkeys(("<pad>", "<bos>", "<unk>", "<mask>"), Terminal.OTHER),
    "<start_of_turn>": Terminal.TURN_OPEN,
    "<end_of_turn>": Terminal.TURN_CLOSE,
    "<eos>": Terminal.TURN_CLOSE,
}
_GEMMA4_MARKS = {
    "<|channel>": Terminal.THOUGHT_OPEN,
    "<channel|>": Terminal.THOUGHT_CLOSE,
    CALL_OPEN: Terminal.CALL_OPEN,
    CALL_CLOSE: Terminal.CALL_CLOSE,
    QUOTE: Terminal.QUOTE,
    "<|turn>": Terminal.TURN_OPEN,
    "<turn|>": Terminal.TURN_CLOSE,
    "<|tool_response>": Terminal.TURN_CLOSE,
    "<eos>": Terminal.TURN_CLOSE,
}

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("gemma2", _GEMMA2_WORDS, label=None, role="model\n", has_text_calls=True),
        Dialect(
            "gemma3",
            {**dict.fromkeys(GEMMA3_CONTROL_WORDS, Terminal.OTHER), **_GEMMA2_WORDS},
            label=None,
            role="model\n",
            has_text_calls=True,
        ),
        Dialect(
            "gemma4",
            {**dict.fromkeys(GEMMA4_CONTROL_WORDS, Terminal.OTHER), **_GEMMA4_MARKS},
            label="thought\n",
            role="model\n",
            has_text_calls=False,
        ),
    )
}
"""The families (facts c.1, c.2, c.4); a new one is a row."""


def dialect_named(name: str) -> Dialect:
    """Return a family's dialect. Raises UnsupportedError for an unknown one."""
    dialect = DIALECTS.get(name)
    if dialect is None:
        raise UnsupportedError(
            "the family of the output", value=name, limit=", ".join(DIALECTS), remedy="name one of these"
        )
    return dialect


def dialect_of(control_words: Iterable[str]) -> str:
    """Return the name of the dialect that a vocabulary with these control words speaks."""
    words = set(control_words)
    if "<|channel>" in words:
        return "gemma4"
    return "gemma3" if "<start_of_image>" in words else "gemma2"


def prompt_leaves_thought_open(prompt_tail: str) -> bool:
    """Whether a rendered prompt ends inside a thought: its last channel mark opens one, and no turn follows."""
    opened = prompt_tail.rfind("<|channel>")
    return opened > max(prompt_tail.rfind(word) for word in ("<channel|>", "<|turn>", "<turn|>"))
