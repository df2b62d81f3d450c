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
    """What happens on the way into the next state, after what was held back in the old one has been settled."""

    NOTHING = auto()
    LEAVE_OUT = auto()
    """Drop the mark, with a warning."""
    ASK_ARGUMENTS = auto()
    """The mark may be data of a string; else the call ends, and the mark is read again."""
    CLOSE_CALL = auto()
    """The same for the mark that closes a call, which is not read again."""
    NAME_ALONE = auto()
    """A call without brackets closes."""
    GIVE_UP_CALL = auto()
    """What looked like a call is shown as text, and the mark is read again."""
    CLOSE_GUESS = auto()
    """What looked like a call is one."""
    ADD_TO_GUESS = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """One cell of the table."""

    act: Act
    then: State


def _row(**cells: Step) -> Mapping[Terminal, Step]:
    return {Terminal[name]: step for name, step in cells.items()}


_A, _S = Act, State
_IN_TEXT = {
    "THOUGHT_OPEN": Step(_A.NOTHING, _S.LABEL),
    "CALL_OPEN": Step(_A.NOTHING, _S.CALL_NAME),
    "TURN_OPEN": Step(_A.LEAVE_OUT, _S.TURN_LABEL),
    "TURN_CLOSE": Step(_A.NOTHING, _S.START),
}
_ANSWER = {
    **_IN_TEXT,
    **dict.fromkeys(("THOUGHT_CLOSE", "CALL_CLOSE", "QUOTE", "OTHER"), Step(_A.LEAVE_OUT, _S.ANSWER)),
}
_THOUGHT = {
    **_IN_TEXT,
    "THOUGHT_CLOSE": Step(_A.NOTHING, _S.AFTER_THOUGHT),
    **dict.fromkeys(("CALL_CLOSE", "QUOTE", "OTHER"), Step(_A.LEAVE_OUT, _S.THOUGHT)),
}
_GIVE_UP = dict.fromkeys(
    ("THOUGHT_OPEN", "THOUGHT_CLOSE", "CALL_OPEN", "CALL_CLOSE", "TURN_OPEN", "TURN_CLOSE", "QUOTE", "OTHER"),
    Step(_A.GIVE_UP_CALL, _S.ANSWER),
)

TABLE: Mapping[State, Mapping[Terminal, Step]] = {
    _S.START: _row(**_ANSWER),
    _S.AFTER_THOUGHT: _row(**_ANSWER),
    _S.ANSWER: _row(**_ANSWER),
    _S.TURN_LABEL: _row(**_ANSWER),
    _S.LABEL: _row(**_THOUGHT),
    _S.THOUGHT: _row(**_THOUGHT),
    _S.CALL_NAME: _row(
        **{
            **_GIVE_UP,
            "CALL_CLOSE": Step(_A.NAME_ALONE, _S.START),
            "QUOTE": Step(_A.LEAVE_OUT, _S.CALL_NAME),
            "OTHER": Step(_A.LEAVE_OUT, _S.CALL_NAME),
        }
    ),
    _S.CALL_JSON: _row(**_GIVE_UP),
    _S.CALL_GUESS: _row(
        **{
            **_GIVE_UP,
            "CALL_CLOSE": Step(_A.CLOSE_GUESS, _S.CALL_NAME),
            "QUOTE": Step(_A.ADD_TO_GUESS, _S.CALL_GUESS),
            "OTHER": Step(_A.ADD_TO_GUESS, _S.CALL_GUESS),
        }
    ),
    _S.ARGUMENTS: _row(
        **dict.fromkeys(_GIVE_UP, Step(_A.ASK_ARGUMENTS, _S.ARGUMENTS)) | {"CALL_CLOSE": Step(_A.CLOSE_CALL, _S.START)}
    ),
    _S.AFTER_CALL: _row(**{**_ANSWER, "CALL_CLOSE": Step(_A.NOTHING, _S.START)}),
}
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
