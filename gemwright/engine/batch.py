"""Batches: lines of JSON in, objects to write out, in the order finished. Knows neither files nor a command line.

A line that cannot be served becomes an error object and the others go on. Only a bounded number of answers is in the
engine at once, so a batch may be longer than memory; of the lines read, only the ids are kept.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gemwright.engine.chat_request import CHAT_FIELDS, ChatRequest
from gemwright.engine.llm import LLM, Prompt
from gemwright.engine.request import Request, SamplingParams
from gemwright.errors import GemwrightError, RequestError

LineId = str | int

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "messages")
SAMPLING_FIELDS = frozenset(item.name for item in fields(SamplingParams)) - {"constraint"}
FIELDS = frozenset({"id", *PROMPT_FIELDS, "priority", "cache_salt"}) | SAMPLING_FIELDS | CHAT_FIELDS


@dataclass(frozen=True, slots=True)
class BatchLine:
    """What a line asks. Of sampling only what it sets."""

    line_id: LineId
    prompt: Prompt | ChatRequest
    sampling: Mapping[str, Any]
    priority: int
    cache_salt: str | None


@dataclass(slots=True)
class Answered:
    """What an earlier run has answered: ids, and the numbers of lines that had no id or an id used before."""

    ids: set[LineId] = field(default_factory=set)
    lines: set[int] = field(default_factory=set)

    def note(self, output: Mapping[str, Any]) -> None:
        """Remember an output line. Raises KeyError, TypeError or ValueError for what is none."""
        line_id = output["id"]
        if "error" not in output and "usage" not in output:
            raise ValueError("neither an answer nor an error")
        if "line" in output:
            self.lines.add(output["line"])
        else:
            self.ids.add(line_id)


class Batch:
    """Answers lines on one engine.

    `answered` are left out; `cache_salt` is that of lines that name none. `num_lines` and `num_errors` count what this
    run answered. At most `max_in_flight` answers are in the engine at once (a line's own n may exceed it).
    """

    def __init__(
        self,
        llm: LLM,
        *,
        answered: Answered | None = None,
        cache_salt: str | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        self.llm = llm
        self.answered = answered or Answered()
        self.cache_salt = cache_salt
        self.max_in_flight = max_in_flight or max(64, 4 * llm.core.limits.max_num_seqs)
        self.num_lines = 0
        self.num_errors = 0
        self._seen: set[LineId] = set()
        self._running: dict[int, _Running] = {}
        """By the id of each request."""

    def run(self, lines: Iterable[bytes | str]) -> Iterator[dict[str, Any]]:
        """Yield an object for each line that is not blank and not answered yet, in the order finished.

        Lines are taken as there is room for them. Closing the iterator aborts what runs.
        """
        source = iter(enumerate(lines, start=1))
        has_more, is_sound = True, True
        try:
            while True:
                while has_more and len(self._running) < self.max_in_flight:
                    number, line = next(source, (0, b""))
                    has_more = number > 0
                    failed = self._start(number, line) if line.strip() else None
                    if failed is not None:
                        yield self._count(failed)
                if not self._running:
                    return
                is_sound = False
                advanced = self.llm.core.step()
                is_sound = True
                for request in advanced:
                    output = self._finish(request)
                    if output is not None:
                        yield self._count(output)
        finally:
            if is_sound:  # of an engine that failed in a step nothing more is asked
                for running in list(self._running.values()):
                    self._forget(running)

    def _start(self, number: int, line: bytes | str) -> dict[str, Any] | None:
        """Queue a line; returns its error object, or None if it runs or needs no answer."""
        line_id: LineId | None = None
        try:
            asked = parse_object(line)
            line_id = parse_id(asked)
            if line_id in self._seen:
                if number in self.answered.lines:
                    return None
                error = RequestError("the id is used by an earlier line", value=line_id, limit="each id once")
                return error_output(line_id, error, number)
            self._seen.add(line_id)
            if line_id in self.answered.ids:
                return None
            parsed = parse_line(line_id, asked, self.cache_salt)
            params = SamplingParams(**{**self.llm.sampling_defaults(), **parsed.sampling})
            prompt = parsed.prompt
            if isinstance(prompt, ChatRequest):
                prompt, params = self.llm.prepare_chat(prompt, params)
            requests = self.llm.add(prompt, params, priority=parsed.priority, cache_salt=parsed.cache_salt)
        except GemwrightError as error:
            if line_id is None and number in self.answered.lines:
                return None
            return error_output(line_id, error, number if line_id is None else None)
        running = _Running(line_id, tuple(requests), time.perf_counter())
        self._running.update((request.request_id, running) for request in requests)
        return None

    def _finish(self, request: Request) -> dict[str, Any] | None:
        """Return the object of the request's line once all its answers are done or one has failed."""
        running = self._running.get(request.request_id)
        if running is None or (request.error is None and not all(one.is_done for one in running.requests)):
            return None
        if request.error is None:
            completion = self.llm.completion(running.requests, running.started_at)
            output = {"id": running.line_id, **completion.to_dict()}
        else:
            output = error_output(running.line_id, request.error)
        self._forget(running)
        return output

    def _forget(self, running: _Running) -> None:
        for request in running.requests:
            self.llm.core.forget(request)
            self._running.pop(request.request_id, None)

    def _count(self, output: dict[str, Any]) -> dict[str, Any]:
        self.num_lines += 1
        self.num_errors += "error" in output
        return output

    def summary(self) -> dict[str, int]:
        """Return what this run answered and what the engine did for it."""
        counters = self.llm.core.counters
        names = ("num_steps", "max_running", "num_preemptions", "prompt_tokens", "cached_tokens", "completion_tokens")
        return {
            "num_requests": self.num_lines,
            "num_errors": self.num_errors,
            **{name: getattr(counters, name) for name in names},
        }


@dataclass(frozen=True, slots=True)
class _Running:
    line_id: LineId
    requests: tuple[Request, ...]
    started_at: float


def parse_object(line: bytes | str) -> dict[str, Any]:
    """Return a line's JSON object. Raises RequestError for anything else."""
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError("the line is no JSON", value=f"{_begin(line)}: {str(error)[:200]}") from None
    if not isinstance(asked, dict):
        raise RequestError("the line is no JSON object", value=_begin(line))
    return asked


def parse_id(asked: Mapping[str, Any]) -> LineId:
    """Return a line's id. Raises RequestError where it has none that can be used."""
    line_id = asked.get("id")
    if isinstance(line_id, bool) or not isinstance(line_id, (str, int)):
        raise RequestError("id", value=repr(line_id)[:80], limit="a text or an integer", remedy="name the line")
    return line_id


def parse_line(line_id: LineId, asked: Mapping[str, Any], cache_salt: str | None = None) -> BatchLine:
    """Return what a line asks; a field that is null counts as left out. Raises RequestError for an unknown field and
    for a prompt that is missing, said twice, empty or of the wrong kind."""
    unknown = [name for name in asked if name not in FIELDS]
    if unknown:
        raise RequestError("unknown field", value=unknown[0], limit=", ".join(sorted(FIELDS)))
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    prompts = [name for name in PROMPT_FIELDS if name in given]
    if len(prompts) != 1:
        raise RequestError(
            "no prompt" if not prompts else "more than one prompt",
            value=" and ".join(prompts) or None,
            limit="one of prompt, prompt_token_ids and messages",
        )
    return BatchLine(
        line_id,
        _prompt(prompts[0], given),
        {key: value for key, value in given.items() if key in SAMPLING_FIELDS},
        given.get("priority", 0),
        given.get("cache_salt", cache_salt),
    )


def _prompt(name: str, given: Mapping[str, Any]) -> Prompt | ChatRequest:
    """Return what a line's field of PROMPT_FIELDS asks, with what goes with it."""
    chat = {key: value for key, value in given.items() if key in CHAT_FIELDS}
    if name == "messages":
        return ChatRequest(**chat)
    if chat:
        raise RequestError(f"{next(iter(chat))} goes with messages", value=name, remedy="give messages instead")
    prompt = given[name]
    kind, limit = (str, "a text") if name == "prompt" else (list, "a list of token ids")
    if not isinstance(prompt, kind):
        raise RequestError(name, value=repr(prompt)[:80], limit=limit)
    if not prompt:
        raise RequestError("the prompt is empty", limit="at least one character or token")
    return prompt


def error_output(line_id: LineId | None, error: GemwrightError, number: int | None = None) -> dict[str, Any]:
    """Return the object of a line that failed; `number` is given where its id does not name it."""
    return {
        "id": line_id,
        **({} if number is None else {"line": number}),
        "error": {
            "what": error.what,
            "value": _plain(error.value),
            "limit": _plain(error.limit),
            "remedy": error.remedy,
        },
    }


def _plain(value: object) -> object:
    """Return a value that JSON can hold: itself, or its text."""
    is_plain = value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    return value if is_plain else str(value)


def _begin(line: bytes | str) -> str:
    """Return the first characters of a line, for a message."""
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return text[:80].strip()


def encode_output(output: Mapping[str, Any]) -> bytes:
    """Return an output's line, newline included; its floats read back with the same bits."""
    try:
        text = json.dumps(output, ensure_ascii=False, allow_nan=False)
        return (text + "\n").encode()
    except UnicodeEncodeError:  # an id with half of a surrogate pair
        return (json.dumps(output, allow_nan=False) + "\n").encode()
    except RecursionError:
        error = RequestError(
            "the answer cannot be written as JSON",
            value="a call whose arguments are nested too deep",
            remedy="ask without tools, or with a constraint",
        )
        return encode_output(error_output(output.get("id"), error))


def read_answered(lines: Iterable[bytes], note_length: Callable[[int], None]) -> Answered:
    """Return what the lines of an earlier run's output answer. `note_length` is told the bytes of whole lines so far:
    a last line that was cut off counts as never written.

    Raises RequestError, naming the line, for what no batch wrote.
    """
    answered, length = Answered(), 0
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            answered.note(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RequestError(
                f"line {number} of the output is no answer of a batch",
                value=_begin(line),
                remedy="name another output, or remove the line",
            ) from None
        length += len(line)
        note_length(length)
    return answered
