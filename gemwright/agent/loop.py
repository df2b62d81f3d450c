"""The loop itself: ask the model, carry out its calls, tell it what came, until it answers or a limit is met.

Knows HTTP and OpenAI's chat interface, and no engine: any server will do.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from gemwright.agent.tools import Tool
from gemwright.agent.transcript import Ending, Kind, Step, Transcript
from gemwright.errors import GemwrightError, RequestError

DEFAULT_URL = "http://127.0.0.1:8000/v1"


class ServerError(GemwrightError):
    """The server could not be reached, or answered with an error."""

    default_remedy = "is the server running (gemwright serve), and is --base-url right?"


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a run ends, answered or not."""

    max_rounds: int = 10
    """Answers asked of the model."""
    max_tokens: int = 2048
    """Tokens of one answer."""
    token_budget: int = 100_000
    """Prompt and answer tokens over the whole run, as the server counts them."""
    timeout_s: float = 600.0
    """Seconds of the whole run."""
    tool_timeout_s: float = 60.0
    """Seconds of one call of a tool."""

    def __post_init__(self) -> None:
        for name in ("max_rounds", "max_tokens", "token_budget"):
            if getattr(self, name) < 1:
                raise RequestError(name, value=getattr(self, name), limit="at least 1")
        for name in ("timeout_s", "tool_timeout_s"):
            if not getattr(self, name) > 0:
                raise RequestError(name, value=getattr(self, name), limit="above 0")


class Agent:
    """A model with tools behind a server. `on_step` is told of every step as it happens."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        base_url: str = DEFAULT_URL,
        model: str | None = None,
        api_key: str | None = None,
        system: str | None = None,
        thinking: bool | None = None,
        limits: Limits | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        names = [tool.name for tool in tools]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise RequestError("two tools have one name", value=double)
        self.tools = {tool.name: tool for tool in tools}
        self.base_url = base_url.rstrip("/")
        self.model = model
        self.system = system
        self.thinking = thinking
        self.limits = limits or Limits()
        self.on_step = on_step
        # As bytes, since a key need not be ASCII.
        self._headers = {} if api_key is None else {b"Authorization": f"Bearer {api_key}".encode()}

    def run(self, task: str, messages: Sequence[dict[str, Any]] = ()) -> Transcript:
        """Work on a task until it is answered or a limit is met, and return what happened.

        `messages` go before the task: those of an earlier transcript carry a conversation on. Raises ServerError where
        the server cannot be reached or refuses.
        """
        began = time.monotonic()
        deadline = began + self.limits.timeout_s
        with httpx2.Client(headers=self._headers, timeout=None) as client:
            model = self.model or self._first_model(client)
            first = [] if self.system is None or messages else [{"role": "system", "content": self.system}]
            found = Transcript(model, messages=[*first, *messages, {"role": "user", "content": task}])

            def note(kind: Kind, text: str, tool: str | None = None, call_id: str | None = None) -> None:
                step = Step(kind, text, time.monotonic() - began, tool, call_id)
                found.steps.append(step)
                if self.on_step is not None:
                    self.on_step(step)

            note("task", task)
            found.ending = self._rounds(client, found, note, deadline)
            if found.ending != "answered":
                note("stopped", _ENDINGS[found.ending])
        return found

    def _rounds(self, client: httpx2.Client, found: Transcript, note: Callable[..., None], deadline: float) -> Ending:
        while True:
            if found.num_rounds == self.limits.max_rounds:
                return "steps"
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return "time"
            left = self.limits.token_budget - found.prompt_tokens - found.completion_tokens
            if left <= 0:
                return "tokens"
            try:
                answer = self._ask(client, found, min(left, self.limits.max_tokens), left_s)
            except httpx2.TimeoutException:
                return "time"
            message, calls, finish_reason = _read_answer(answer)
            found.num_rounds += 1
            usage = answer.get("usage") or {}
            found.prompt_tokens += usage.get("prompt_tokens", 0)
            found.completion_tokens += usage.get("completion_tokens", 0)
            thought = message.get("reasoning_content") or message.get("reasoning")
            if thought:
                note("thought", thought)
            said = message.get("content")
            found.messages.append(_as_history(message))
            if not calls:
                if finish_reason == "length":
                    if said:
                        note("thought", said)
                    return "cut"
                note("answer", said or "")
                return "answered"
            if said:
                note("thought", said)
            for call in calls:
                result = self._carry_out(call, note, deadline)
                found.messages.append({"role": "tool", "tool_call_id": call.call_id, "content": result})

    def _carry_out(self, call: _Call, note: Callable[..., None], deadline: float) -> str:
        note("call", call.arguments, tool=call.name, call_id=call.call_id)
        timeout_s = min(self.limits.tool_timeout_s, max(0.0, deadline - time.monotonic()))
        result = self._result(call.name, call.arguments, timeout_s)
        note("observation", result, tool=call.name, call_id=call.call_id)
        return result

    def _result(self, name: str, spelled: str, timeout_s: float) -> str:
        tool = self.tools.get(name)
        if tool is None:
            return json.dumps({"error": f"there is no tool {name}; there are {', '.join(self.tools) or 'none'}"})
        try:
            arguments = json.loads(spelled or "{}")
        except ValueError as error:
            return json.dumps({"error": f"the arguments are no JSON: {error}"})
        if not isinstance(arguments, dict):
            return json.dumps({"error": "the arguments are no JSON object"})
        results: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A daemon, so that a tool that never ends does not keep the process from ending.
        threading.Thread(target=lambda: results.put(tool.call(arguments)), name="gemwright-tool", daemon=True).start()
        try:
            return results.get(timeout=timeout_s)
        except queue.Empty:
            return json.dumps({"error": f"{name} took longer than {timeout_s:.1f} seconds and was given up"})

    def _ask(self, client: httpx2.Client, found: Transcript, max_tokens: int, timeout_s: float) -> dict[str, Any]:
        body: dict[str, Any] = {"model": found.model, "messages": found.messages, "max_tokens": max_tokens}
        if self.tools:
            body["tools"] = [tool.to_dict() for tool in self.tools.values()]
        if self.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        return self._send(client, "POST", "/chat/completions", body, timeout_s)

    def _first_model(self, client: httpx2.Client) -> str:
        try:
            listed = self._send(client, "GET", "/models", None, min(30.0, self.limits.timeout_s))
        except httpx2.TimeoutException as error:
            raise ServerError("the server does not answer", value=f"{self.base_url}/models") from error
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ServerError(
                "the server lists no models", value=self.base_url, remedy="name one with --model"
            ) from None

    def _send(
        self, client: httpx2.Client, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> dict[str, Any]:
        url = f"{self.base_url}{path}"
        try:
            response = client.request(method, url, json=body, timeout=timeout_s)
        except httpx2.TimeoutException:
            raise
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServerError("the server cannot be reached", value=f"{url}: {error}") from error
        try:
            content = response.json()
        except ValueError:
            content = None
        if response.status_code != 200 or not isinstance(content, dict):
            raise ServerError(
                "the server refused", value=_reason(response.status_code, content), remedy="change what was asked"
            )
        return content


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that a model asks for; `arguments` is JSON text, right or wrong."""

    call_id: str
    name: str
    arguments: str


def _read_answer(content: dict[str, Any]) -> tuple[dict[str, Any], list[_Call], str | None]:
    """Return an answer's message, its calls and why it ended. Raises ServerError for what is no chat completion."""
    try:
        choice = content["choices"][0]
        message = choice["message"]
        calls = []
        for call in message.get("tool_calls") or []:
            spelled = call["function"].get("arguments") or ""
            # Some servers give an object in place of its text.
            arguments = spelled if isinstance(spelled, str) else json.dumps(spelled, ensure_ascii=False)
            calls.append(_Call(str(call["id"]), str(call["function"]["name"]), arguments))
        return message, calls, choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ServerError(
            "the server's answer is no chat completion",
            value=json.dumps(content, ensure_ascii=False)[:300],
            remedy="give the --base-url of a server that speaks OpenAI's chat interface; it ends in /v1 as a rule",
        ) from error


_ENDINGS = {
    "steps": "the rounds allowed are used up",
    "tokens": "the token budget is used up",
    "time": "the time allowed is used up",
    "cut": "the answer was cut at its limit of tokens",
}


def _as_history(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as it goes back into the conversation: the thought with its calls, so that a model that wants
    its own thought within a turn gets it."""
    kept = {"role": "assistant", "content": message.get("content") or ""}
    if message.get("tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
        thought = message.get("reasoning_content") or message.get("reasoning")
        if thought:
            kept["reasoning_content"] = thought
    return kept


def _reason(status: int, content: Any) -> str:
    error = content.get("error") if isinstance(content, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return f"{status}" + (f": {str(message)[:500]}" if message else "")
