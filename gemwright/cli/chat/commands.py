"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gemwright.errors import GemwrightError, RequestError

if TYPE_CHECKING:
    from gemwright.cli.chat.session import Session


@dataclass(frozen=True, slots=True)
class Command:
    """What a command is called, what it takes, and what it does."""

    usage: str
    help: str
    run: Callable[[Session, str], None]
    needs_turns: bool = True
    """Whether it is about a conversation, which a base model does not have."""


def obey(session: Session, line: str) -> None:
    """Do what a command line says. Raises RequestError for a command that does not exist or cannot be done."""
    name, _, rest = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise RequestError(
            "no such command", value=name, limit=" ".join(COMMANDS), remedy="/help lists them; // sends a line with /"
        )
    if command.needs_turns and not session.has_turns:
        raise RequestError(
            f"{name} is for conversations, and this is a base model: it continues texts",
            remedy="load an instruction-tuned model, such as google/gemma-3-1b-it",
        )
    command.run(session, rest.strip())


def _help(session: Session, rest: str) -> None:
    shown = [command for command in COMMANDS.values() if session.has_turns or not command.needs_turns]
    width = max(len(command.usage) for command in shown) + 2
    lines = [f"{command.usage:<{width}}{command.help}" for command in shown]
    more = [
        f"{chr(34) * 3:<{width}}opens and closes a text of several lines; pasted lines stay together",
        f"{'Ctrl-C':<{width}}stops an answer; Ctrl-D leaves",
    ]
    session.screen.say("\n".join([*lines, *more]))


def _think(session: Session, rest: str) -> None:
    if rest:
        session.set_thinking(_on_or_off("/think", rest))
    state = {True: "on", False: "off", None: "as the template says"}[session.thinking]
    session.screen.say(f"thinking is {state}")


def _fold(session: Session, rest: str) -> None:
    session.screen.folds_thoughts = _on_or_off("/fold", rest) if rest else not session.screen.folds_thoughts
    session.screen.say("thoughts are folded" if session.screen.folds_thoughts else "thoughts are shown")


def _thought(session: Session, rest: str) -> None:
    thought = session.conversation.last_thought()
    session.screen.say("the last answer had no thought" if thought is None else thought)


def _system(session: Session, rest: str) -> None:
    if rest:
        session.conversation.system = None if rest in ("-", '""') else rest
    system = session.conversation.system
    session.screen.say("no system message" if system is None else f"system message: {system}")


def _reset(session: Session, rest: str) -> None:
    session.conversation.clear()
    session.screen.say("forgotten; the system message stays" if session.conversation.system else "forgotten")


def _undo(session: Session, rest: str) -> None:
    text = session.conversation.take_back()
    session.screen.say("nothing to take back" if text is None else f"taken back: {text}")


def _retry(session: Session, rest: str) -> None:
    text = session.conversation.take_back()
    if text is None:
        session.screen.say("nothing to answer again")
    else:
        session.ask(text)


def _save(session: Session, rest: str) -> None:
    path = _path("/save", rest)
    session.conversation.save(path, session.llm.model)
    session.screen.say(f"saved {len(session.conversation.messages)} messages to {path}")


def _load(session: Session, rest: str) -> None:
    session.load(_path("/load", rest))


def _memory(session: Session, rest: str) -> None:
    session.screen.say("\n".join(session.memory_lines()))


def _exit(session: Session, rest: str) -> None:
    session.is_over = True


def _on_or_off(name: str, word: str) -> bool:
    if word not in ("on", "off"):
        raise RequestError(name, value=word, limit="on or off")
    return word == "on"


def _path(name: str, text: str) -> Path:
    if not text:
        raise RequestError(f"{name} needs the name of a file", remedy=f"{name} talk.json")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # a home of nobody
        raise GemwrightError(f"{name}: {error}", value=text, remedy="name another file") from None


COMMANDS = {
    "/help": Command("/help", "this list", _help, needs_turns=False),
    "/think": Command("/think [on|off]", "let the model think before it answers (Gemma 4)", _think),
    "/fold": Command("/fold [on|off]", "show thoughts as one line, or whole", _fold),
    "/thought": Command("/thought", "the last thought, whole", _thought),
    "/system": Command("/system [TEXT]", "the system message; - removes it", _system),
    "/reset": Command("/reset", "forget the conversation", _reset),
    "/undo": Command("/undo", "take back the last question and its answer", _undo),
    "/retry": Command("/retry", "answer the last question again", _retry),
    "/save": Command("/save FILE", "write the conversation to a file", _save),
    "/load": Command("/load FILE", "go on with a saved one", _load),
    "/memory": Command("/memory", "planned and measured memory", _memory, needs_turns=False),
    "/exit": Command("/exit", "leave", _exit, needs_turns=False),
}
