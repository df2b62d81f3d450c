"""From the output machine's events to the items of a response: as events of a stream, and whole."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from gemwright.engine.pieces import Piece
from gemwright.server.openai.logprobs import chat_logprobs
from gemwright.text.parser_events import Event, EventType
from gemwright.text.tokenizer import Tokenizer

WireEvent = dict[str, Any]

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The type of an item's content, by the item's."""


class Items:
    """Writes one answer's items in the order in which they come. What `add` yields and what `whole` gives say the same.

    Events lack their sequence numbers. `logprobs` go with the text of messages, None if nobody wants them.
    `has_summaries` gives every thought a second time, as its own summary: some clients read nothing else of it.
    """

    def __init__(self, logprobs: TextLogprobs | None, *, has_summaries: bool = False) -> None:
        self._logprobs = logprobs
        self._has_summaries = has_summaries
        self._items: list[dict[str, Any]] = []
        self._is_open = False
        """Whether the last item goes on."""
        self._cut_call: dict[str, Any] | None = None

    def add(self, piece: Piece) -> Iterator[WireEvent]:
        """Yield what a step means on the wire; the last piece closes what is open."""
        if self._logprobs is not None:
            self._logprobs.push(piece)
        for found in piece.events or ():
            yield from self._event(found)
        if piece.finish_reason is not None:
            yield from self.end(is_cut=piece.finish_reason == "length")

    def end(self, *, is_cut: bool) -> Iterator[WireEvent]:
        """Yield what closes the item that is open, if one is; `is_cut` says that it is not all of it."""
        if not self._is_open:
            return
        item = self._items[-1]
        # A call that is open at the end was cut, whatever ended the answer.
        is_call = item["type"] == "function_call"
        self._cut_call = item if is_call else None
        yield from self._close("incomplete" if is_cut or is_call else "completed")

    def whole(self) -> list[dict[str, Any]]:
        """Return the items as they are now. A call that was cut is none to carry out, and left out."""
        return [item for item in self._items if item is not self._cut_call]

    def _event(self, found: Event) -> Iterator[WireEvent]:
        if found.type is EventType.CONTENT:
            yield from self._text("message", found.text or "")
        elif found.type is EventType.REASONING:
            yield from self._text("reasoning", found.text or "")
        elif found.type is EventType.TOOL_CALL:
            call = {"type": "function_call", "id": _new_id("fc"), "call_id": _new_id("call"), "name": found.name}
            yield from self._begin({**call, "arguments": ""})
        elif found.type is EventType.ARGUMENTS:
            self._items[-1]["arguments"] += found.text or ""
            yield self._of_item("response.function_call_arguments.delta", delta=found.text)
        elif found.type is EventType.TOOL_CALL_END:
            call = self._items[-1]
            yield self._of_item("response.function_call_arguments.done", arguments=call["arguments"], name=call["name"])
            yield from self._close("completed")

    def _text(self, kind: str, text: str) -> Iterator[WireEvent]:
        if not self._is_open or self._items[-1]["type"] != kind:
            head = {"type": "message", "id": _new_id("msg"), "role": "assistant"}
            if kind == "reasoning":
                head = {"type": "reasoning", "id": _new_id("rs")}
            yield from self._begin({**head, **({"summary": []} if kind == "reasoning" else {}), "content": []})
            part: dict[str, Any] = {"type": _PARTS[kind], "text": ""}
            part |= {"annotations": [], "logprobs": []} if kind == "message" else {}
            self._items[-1]["content"].append(part)
            yield self._of_part("response.content_part.added", part=_copy(part))
            if kind == "reasoning" and self._has_summaries:
                self._items[-1]["summary"].append({"type": "summary_text", "text": ""})
                yield self._of_summary("part.added", part={"type": "summary_text", "text": ""})
        part = self._items[-1]["content"][0]
        part["text"] += text
        if kind == "reasoning":
            yield self._of_part("response.reasoning_text.delta", delta=text)
            for summary in self._items[-1]["summary"]:
                summary["text"] += text
                yield self._of_summary("text.delta", delta=text)
            return
        logprobs = [] if self._logprobs is None else self._logprobs.take(text)
        part["logprobs"] += logprobs
        yield self._of_part("response.output_text.delta", delta=text, logprobs=logprobs)

    def _begin(self, item: dict[str, Any]) -> Iterator[WireEvent]:
        yield from self.end(is_cut=False)
        item["status"] = "in_progress"
        self._items.append(item)
        self._is_open = True
        yield self._of_output("response.output_item.added", item=_copy(item))

    def _close(self, status: str) -> Iterator[WireEvent]:
        item = self._items[-1]
        item["status"] = status
        self._is_open = False
        if item["type"] in _PARTS:
            part = item["content"][0]
            extra = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._of_part(f"response.{part['type']}.done", text=part["text"], **extra)
            yield self._of_part("response.content_part.done", part=part)
        for summary in item.get("summary", ()):
            yield self._of_summary("text.done", text=summary["text"])
            yield self._of_summary("part.done", part=summary)
        yield self._of_output("response.output_item.done", item=item)

    def _of_summary(self, kind: str, **fields: Any) -> WireEvent:
        return self._of_item(f"response.reasoning_summary_{kind}", summary_index=0, **fields)

    def _of_part(self, kind: str, **fields: Any) -> WireEvent:
        return self._of_item(kind, content_index=0, **fields)

    def _of_item(self, kind: str, **fields: Any) -> WireEvent:
        return self._of_output(kind, item_id=self._items[-1]["id"], **fields)

    def _of_output(self, kind: str, **fields: Any) -> WireEvent:
        return {"type": kind, "output_index": len(self._items) - 1, **fields}


class TextLogprobs:
    """Finds the tokens that a message's text came from: those of thoughts, calls and marks are not the message's.

    Text may come later than its tokens, and end within one; each token goes with the text that it begins in.
    """

    def __init__(self, tokenizer: Tokenizer | None, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._waiting: list[tuple[bytes, dict[str, Any] | None]] = []
        """Bytes of tokens whose text has not come, each with its entry; None for the rest of one that went out."""

    def push(self, piece: Piece) -> None:
        """Take the tokens of a step, before the text that it brings is asked for."""
        kinds = {found.type for found in piece.events or ()} - {EventType.FINISH}
        if EventType.CONTENT not in kinds and (kinds or any(map(self._is_special, piece.token_ids))):
            # A thought, a call or a mark: what waited was never text of a message.
            self._waiting = []
            return
        found = chat_logprobs(self._tokenizer, piece.token_ids, piece.logprobs or (), self._num_top)
        for token_id, entry in zip(piece.token_ids, found["content"], strict=True):
            if not self._is_special(token_id):
                self._waiting.append((bytes(entry["bytes"]), entry))

    def take(self, text: str) -> list[dict[str, Any]]:
        """Return the entries of the tokens that begin in a text, which comes after those taken before."""
        wanted = text.encode("utf-8", "surrogatepass")
        joined = b"".join(content for content, _ in self._waiting)
        begin = max(0, joined.find(wanted))
        end = begin + len(wanted)
        taken: list[dict[str, Any]] = []
        left: list[tuple[bytes, dict[str, Any] | None]] = []
        place = 0
        for content, entry in self._waiting:
            after = place + len(content)
            if place >= end:
                left.append((content, entry))
            elif after > begin:
                taken += [entry] if entry is not None else []
                left += [(content[end - place :], None)] if after > end else []
            place = after
        self._waiting = left
        return taken

    def _is_special(self, token_id: int) -> bool:
        return self._tokenizer is not None and self._tokenizer.is_special(token_id)


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    """Return an item or a part as it is now: it grows before the event is read."""
    return {key: list(item) if isinstance(item, list) else item for key, item in value.items()}


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
