"""One chat: reads what is typed, lets the model answer, shows it, remembers it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemwright.cli.chat.commands import obey
from gemwright.cli.chat.conversation import Conversation, load_conversation
from gemwright.cli.chat.keyboard import Keyboard, interruption
from gemwright.cli.chat.screen import Screen
from gemwright.cli.summary import memory_lines
from gemwright.errors import CheckpointError, GemwrightError, RequestError, show_bytes
from gemwright.memory.machine import process_bytes
from gemwright.text.parser_events import Event, EventType

if TYPE_CHECKING:
    from gemwright.engine.llm import LLM
    from gemwright.engine.pieces import Piece
    from gemwright.engine.request import SamplingParams
    from gemwright.text.template import RenderedPrompt


@dataclass(slots=True)
class _Answer:
    """What has come of one answer."""

    began_at: float
    first_token_at: float | None = None
    last_token_at: float = 0.0
    num_tokens: int = 0
    num_cached: int = 0
    finish_reason: str | None = None
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first one, over the time they took."""
        if self.first_token_at is None or self.num_tokens < 2 or self.last_token_at <= self.first_token_at:
            return None
        return (self.num_tokens - 1) / (self.last_token_at - self.first_token_at)


class Session:
    """A chat with one loaded model; with a base model, one text after the other continued.

    `sampling` are the fields of SamplingParams that the user set; `thinking` None leaves the switch to the template.
    """

    def __init__(
        self, llm: LLM, screen: Screen, sampling: dict[str, Any], *, system: str | None, thinking: bool | None
    ) -> None:
        self.llm = llm
        self.screen = screen
        self.sampling = sampling
        self.conversation = Conversation(system)
        self.thinking: bool | None = None
        self.is_over = False
        self.exit_code = 0
        """That of the first message that was refused."""
        self.has_turns = llm.chat_template is not None
        if not self.has_turns and (system is not None or thinking is not None):
            raise RequestError(
                "this is a base model: it continues texts and knows no turns",
                value="--system" if system is not None else "--think",
                remedy="leave the flag out, or load an instruction-tuned model such as google/gemma-3-1b-it",
            )
        if thinking is not None:
            self.set_thinking(thinking)

    def set_thinking(self, thinking: bool) -> None:
        """Turn thinking on or off. Raises RequestError where the model has no such switch."""
        template = self.llm.chat_template
        if thinking and template is not None and not template.can_think:
            raise RequestError(
                "this model has no thinking switch", value="on", limit="off", remedy="load a Gemma 4 model to have one"
            )
        self.thinking = thinking

    def run(self, keyboard: Keyboard) -> None:
        """Read and answer until the end of the input or /exit. Raises RequestError for input that is no text."""
        while not self.is_over:
            try:
                text = keyboard.read()
            except KeyboardInterrupt:
                self.screen.note("Ctrl-D or /exit leaves")
                continue
            if text is None:
                return
            try:
                self.take(text)
            except GemwrightError as error:
                self._refuse(error)
            except OSError as error:
                what = f"{error.filename}: {error.strerror}"
                self._refuse(CheckpointError(what, remedy="look at the path and its permissions"))

    def _refuse(self, error: GemwrightError) -> None:
        self.exit_code = self.exit_code or error.exit_code
        self.screen.say(f"error: {error.describe()}")

    def take(self, text: str) -> None:
        """Do what one message asks for."""
        if text.startswith("//"):
            self.ask(text[1:])
        elif text.startswith("/"):
            obey(self, text)
        elif text.strip():
            self.ask(text)

    def ask(self, text: str) -> None:
        """Let the model answer, or continue the text where it is a base model; what failed is not remembered."""
        if not self.has_turns:
            self._show(self.llm.encode(text))
            return
        self.conversation.ask(text)
        try:
            prompt = self.llm.render_chat(self.conversation.with_system(), enable_thinking=self.thinking)
            answer = self._show(prompt)
        except BaseException:
            self.conversation.take_back()
            raise
        self.conversation.answer("".join(answer.content).strip(), "".join(answer.reasoning).strip() or None)

    def load(self, path: Path) -> None:
        """Go on with a saved conversation."""
        loaded = load_conversation(path)
        if loaded.messages:
            self.llm.render_chat(loaded.with_system())  # refuses what the template cannot take
        self.conversation = loaded
        self.screen.say(f"loaded {len(loaded.messages)} messages from {path}")

    def memory_lines(self) -> list[str]:
        """Return the ledger, planned beside measured."""
        return memory_lines(self.llm)

    def _show(self, prompt: RenderedPrompt | list[int]) -> _Answer:
        """Show an answer as it comes; Ctrl-C ends it there."""
        num_prompt_tokens = len(self.llm.prompt_ids(prompt))
        params = self._params(num_prompt_tokens)
        answer = _Answer(time.perf_counter())
        pieces = self.llm.pieces(prompt, params)
        is_stopped = False
        try:
            with interruption() as wish:
                for piece in pieces:
                    self._take_piece(answer, piece)
                    if wish.is_pressed and answer.finish_reason is None:
                        is_stopped = True
                        break
        finally:
            pieces.close()
            self.screen.end(self._closing_line(answer, num_prompt_tokens, is_stopped=is_stopped))
        return answer

    def _take_piece(self, answer: _Answer, piece: Piece) -> None:
        if piece.token_ids:
            answer.last_token_at = time.perf_counter()
            answer.first_token_at = answer.first_token_at or answer.last_token_at
            answer.num_tokens += len(piece.token_ids)
        if piece.completion is not None:
            answer.finish_reason = str(piece.finish_reason)
            answer.num_cached = piece.completion.usage.cached_tokens
        for event in piece.events if piece.events is not None else [Event(EventType.CONTENT, text=piece.text)]:
            self._take_event(answer, event)

    def _take_event(self, answer: _Answer, event: Event) -> None:
        text = event.text or ""
        match event.type:
            case EventType.REASONING:
                answer.reasoning.append(text)
                self.screen.reasoning(text)
            case EventType.CONTENT:
                answer.content.append(text)
                self.screen.content(text)

    def _params(self, num_prompt_tokens: int) -> SamplingParams:
        """Return the sampling parameters; an answer may fill the context unless --max-tokens says less."""
        room = self.llm.engine.max_model_len - num_prompt_tokens
        if room < 1:
            raise RequestError(
                "the conversation leaves no room for an answer",
                value=f"{num_prompt_tokens} tokens",
                limit=f"{self.llm.engine.max_model_len - 1} tokens",
                remedy="/reset forgets it, /undo takes the last question back; or start with a larger --max-model-len",
            )
        return self.llm.sampling_params(**{"max_tokens": room, **self.sampling})

    def _closing_line(self, answer: _Answer, num_prompt_tokens: int, *, is_stopped: bool) -> str:
        speed = answer.tokens_per_second
        parts = [f"{answer.num_tokens} tokens" + ("" if speed is None else f" at {speed:.1f} tokens/s")]
        if answer.first_token_at is not None:
            cached = f", {answer.num_cached:,} of {num_prompt_tokens:,} read before" if answer.num_cached else ""
            parts.append(f"first after {answer.first_token_at - answer.began_at:.2f} s{cached}")
        limit = self.llm.engine.max_model_len
        used = num_prompt_tokens + answer.num_tokens
        parts.append(f"context {used:,} of {limit:,}")
        parts.append(f"memory {show_bytes(process_bytes())}")
        if is_stopped:
            parts.append("stopped")
        elif answer.finish_reason == "length":
            parts.append("the context is full" if used >= limit else "cut at --max-tokens")
        return "[" + " | ".join(parts) + "]"
