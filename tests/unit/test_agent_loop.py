"""The loop against a server that gives written answers: what it sends, what it makes of what comes, where it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gemwright.agent import Agent, Limits, Transcript, tool_of
from gemwright.agent.loop import ServerError
from gemwright.errors import RequestError

Reply = dict[str, Any] | tuple[int, Any] | Callable[[], Any]


class Written:
    """A server that gives these answers, one a request, and keeps what it was sent."""

    def __init__(self, replies: list[Reply]) -> None:
        self.replies = replies
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.url = ""

    def next(self) -> tuple[int, bytes]:
        reply = self.replies.pop(0)
        found = reply() if callable(reply) else reply
        status, content = found if isinstance(found, tuple) else (200, found)
        return status, content if isinstance(content, bytes) else json.dumps(content).encode()


@contextmanager
def written(*replies: Reply) -> Iterator[Written]:
    server = Written(list(replies))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.answer()

        def answer(self) -> None:
            server.paths.append(self.path)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, body = server.next()
            try:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # the client has given up

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        server.url = f"http://127.0.0.1:{listener.server_address[1]}/v1"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


def says(text: str | None = None, *calls: tuple[str, Any], reason: str | None = None, **message: Any) -> dict[str, Any]:
    """A chat completion of 10 prompt and 5 answer tokens."""
    message = {"role": "assistant", "content": text, **message}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": reason or ("tool_calls" if calls else "stop")}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(why: str) -> str:
    raise LookupError(why)


CALL = ("add", '{"a": 3, "b": 4}')


def run(server: Written, *, tools: Any = (add, fail), model: str | None = "gemma", **options: Any) -> Transcript:
    return Agent([tool_of(tool) for tool in tools], base_url=server.url, model=model, **options).run("What is 3 + 4?")


def kinds(found: Transcript) -> list[str]:
    return [step.kind for step in found.steps]


def observations(found: Transcript) -> list[str]:
    return [step.text for step in found.steps if step.kind == "observation"]


def test_it_thinks_calls_observes_and_answers() -> None:
    seen = []
    with written(says("", CALL, reasoning_content="I should add."), says("It is 7.")) as server:
        found = run(server, system="Be brief.", thinking=True, api_key="schlüssel", on_step=seen.append)
    assert kinds(found) == ["task", "thought", "call", "observation", "answer"]
    assert [step.text for step in found.steps] == [
        *("What is 3 + 4?", "I should add.", '{"a": 3, "b": 4}', "7", "It is 7.")
    ]
    assert [(step.tool, step.call_id) for step in found.steps[2:4]] == [("add", "call_0")] * 2
    assert seen == found.steps
    assert (found.ending, found.answer, found.num_rounds) == ("answered", "It is 7.", 2)
    assert (found.prompt_tokens, found.completion_tokens) == (20, 10)
    first, second = server.bodies
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 3 + 4?"},
    ]
    assert first["tools"] == [tool_of(add).to_dict(), tool_of(fail).to_dict()]
    assert first["chat_template_kwargs"] == {"enable_thinking": True}
    assert first["max_tokens"] == 2048
    # The thought goes back with its calls, since Gemma 4 wants it within a turn.
    assistant, told = second["messages"][2:]
    assert assistant["reasoning_content"] == "I should add."
    assert assistant["tool_calls"][0]["id"] == told["tool_call_id"] == "call_0"
    assert told == {"role": "tool", "tool_call_id": "call_0", "content": "7"}
    assert server.headers[0]["authorization"].encode("latin-1") == "Bearer schlüssel".encode()
    assert server.paths == ["/v1/chat/completions"] * 2


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    with written(says("Hello.")) as server:
        found = run(server, tools=())
    assert kinds(found) == ["task", "answer"]
    assert set(server.bodies[0]) == {"model", "messages", "max_tokens"}
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("fail", '{"why": "no network"}'), "LookupError: no network"),
        (("sub", "{}"), "there is no tool sub; there are add, fail"),
        (("add", '{"a": 3'), "the arguments are no JSON"),
        (("add", "[3, 4]"), "the arguments are no JSON object"),
        (("add", '{"a": 3}'), "wrong arguments: missing a required argument: 'b'"),
        (("add", '{"a": "three", "b": 4}'), "wrong arguments: a is"),
        (("add", ""), "wrong arguments: missing a required argument: 'a'"),
        (("add", None), "wrong arguments: missing a required argument: 'a'"),
    ],
)
def test_a_call_that_goes_wrong_is_an_observation_and_the_run_goes_on(call: tuple[str, str], told: str) -> None:
    with written(says(None, call), says("I could not.")) as server:
        found = run(server)
    (observed,) = observations(found)
    assert told in json.loads(observed)["error"]
    assert server.bodies[1]["messages"][-1]["content"] == observed
    assert (found.ending, found.answer) == ("answered", "I could not.")


def test_arguments_given_as_an_object_are_understood() -> None:
    with written(says(None, ("add", {"a": 1, "b": 1})), says("2")) as server:
        assert observations(run(server)) == ["2"]


def test_calls_of_one_answer_are_carried_out_in_order_though_one_of_them_fails() -> None:
    calls = (CALL, ("fail", '{"why": "x"}'), ("add", '{"a": 1, "b": 1}'))
    with written(says("Three at once.", *calls), says("Done.")) as server:
        found = run(server)
    assert kinds(found) == ["task", "thought", *["call", "observation"] * 3, "answer"]
    assert [text for text in observations(found) if "error" not in text] == ["7", "2"]
    assert [message.get("tool_call_id") for message in server.bodies[1]["messages"][-3:]] == [
        *("call_0", "call_1", "call_2")
    ]


def test_a_tool_that_takes_too_long_is_given_up_and_the_run_goes_on() -> None:
    release = threading.Event()

    def wait() -> str:
        release.wait(60)
        return "late"

    with written(says(None, ("wait", "{}")), says("It hangs.")) as server:
        found = run(server, tools=(wait,), limits=Limits(tool_timeout_s=0.05))
        hanging = [thread for thread in threading.enumerate() if thread.name == "gemwright-tool"]
        release.set()
    assert json.loads(observations(found)[0])["error"] == "wait took longer than 0.1 seconds and was given up"
    assert found.ending == "answered"
    # It may not keep the process from ending.
    assert [thread.daemon for thread in hanging] == [True]


@pytest.mark.parametrize(
    ("limits", "ending", "num_rounds"),
    [
        (Limits(max_rounds=3), "steps", 3),
        (Limits(token_budget=40), "tokens", 3),
        (Limits(token_budget=45), "tokens", 3),
        (Limits(token_budget=46), "tokens", 4),
    ],
)
def test_a_run_that_never_answers_ends_at_its_limit(limits: Limits, ending: str, num_rounds: int) -> None:
    with written(*[says(None, CALL) for _ in range(10)]) as server:
        found = run(server, limits=limits)
    assert (found.ending, found.num_rounds, found.answer) == (ending, num_rounds, None)
    assert len(server.bodies) == num_rounds
    assert kinds(found)[-1] == "stopped"
    # No answer may take more than what is left.
    wanted = [min(2048, limits.token_budget - 15 * place) for place in range(num_rounds)]
    assert [body["max_tokens"] for body in server.bodies] == wanted


def test_a_server_that_takes_too_long_ends_the_run() -> None:
    release = threading.Event()

    def wait() -> dict[str, Any]:
        release.wait(60)
        return says("late")

    with written(wait) as server:
        found = run(server, limits=Limits(timeout_s=0.2))
        release.set()
    assert (found.ending, found.num_rounds) == ("time", 0)
    assert kinds(found) == ["task", "stopped"]


def test_a_tool_may_not_take_more_than_what_is_left_of_the_run() -> None:
    release = threading.Event()

    def doze() -> None:
        release.wait(60)

    with written(says(None, ("doze", "{}")), says("late")) as server:
        found = run(server, tools=(doze,), limits=Limits(timeout_s=1))
    release.set()
    assert "given up" in observations(found)[0]
    assert (found.ending, found.num_rounds) == ("time", 1)


def test_an_answer_that_was_cut_is_no_answer() -> None:
    with written(says("It is", reason="length")) as server:
        found = run(server)
    assert (found.ending, found.answer) == ("cut", None)
    assert kinds(found) == ["task", "thought", "stopped"]


def test_an_empty_answer_is_an_answer() -> None:
    with written(says(None)) as server:
        assert run(server).answer == ""


def test_the_first_model_of_the_server_is_asked_where_none_is_named() -> None:
    with written({"data": [{"id": "gemma-a"}, {"id": "gemma-b"}]}, says("Hi.")) as server:
        found = run(server, model=None)
    assert server.paths == ["/v1/models", "/v1/chat/completions"]
    assert found.model == server.bodies[0]["model"] == "gemma-a"


@pytest.mark.parametrize("listed", [{"data": []}, {"data": None}, {"object": "list"}, {"data": ["gemma"]}])
def test_a_server_without_models_is_refused(listed: dict[str, Any]) -> None:
    with written(listed) as server, pytest.raises(ServerError, match="lists no models"):
        run(server, model=None)


def test_a_server_that_does_not_list_its_models_in_time_is_refused() -> None:
    release = threading.Event()
    with written(lambda: release.wait(60) or {}) as server:
        with pytest.raises(ServerError, match="does not answer"):
            run(server, model=None, limits=Limits(timeout_s=0.1))
        release.set()


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": "text"}]},
        {"choices": [{"message": {"tool_calls": [{"id": "1"}]}}]},
        {"choices": [{"message": {"tool_calls": [{"function": {"name": "add"}}]}}]},
    ],
)
def test_what_is_no_chat_completion_is_refused(reply: dict[str, Any]) -> None:
    with written(reply) as server, pytest.raises(ServerError, match="no chat completion"):
        run(server)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ((401, {"error": {"message": "the API key is wrong"}}), "401: the API key is wrong"),
        ((503, {"error": "loading"}), "503: loading"),
        ((500, b"<html>"), "500"),
        ((200, b"<html>"), "200"),
        ((200, ["text"]), "200"),
    ],
)
def test_a_server_that_refuses_is_quoted(reply: tuple[int, Any], value: str) -> None:
    with written(reply) as server, pytest.raises(ServerError) as caught:
        run(server)
    assert caught.value.value == value


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "127.0.0.1:1", "ftp://x", "http://[", "", "http://"])
def test_a_server_that_cannot_be_reached_is_named(url: str) -> None:
    with pytest.raises(ServerError) as caught:
        Agent([], base_url=url, model="gemma").run("Hello")
    assert url in str(caught.value)


def test_a_conversation_goes_on_from_an_earlier_transcript() -> None:
    with written(says("It is 7."), says("It was 7.")) as server:
        agent = Agent([tool_of(add)], base_url=server.url, model="gemma", system="Be brief.")
        first = agent.run("What is 3 + 4?")
        second = agent.run("What was it?", first.messages)
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert second.messages[-1] == {"role": "assistant", "content": "It was 7."}
    assert len(first.messages) == 3


def test_a_transcript_is_lines_of_json_with_the_summary_last() -> None:
    with written(says("", CALL), says("Es sind 7 €.")) as server:
        found = run(server)
    lines = [json.loads(line) for line in found.lines()]
    assert [line["kind"] for line in lines] == [*kinds(found), "summary"]
    assert lines[1] == {
        "kind": "call",
        "tool": "add",
        "call_id": "call_0",
        "text": CALL[1],
        "seconds": lines[1]["seconds"],
    }
    assert [line["seconds"] for line in lines[:-1]] == sorted(line["seconds"] for line in lines[:-1])
    assert lines[-1] == {
        "kind": "summary",
        "model": "gemma",
        "ending": "answered",
        "num_rounds": 2,
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "answer": "Es sind 7 €.",
    }


@pytest.mark.parametrize("name", ["max_rounds", "max_tokens", "token_budget", "timeout_s", "tool_timeout_s"])
@pytest.mark.parametrize("value", [0, -1])
def test_limits_that_allow_nothing_are_refused(name: str, value: int) -> None:
    with pytest.raises(RequestError, match=name):
        Limits(**{name: value})


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(RequestError, match="one name"):
        Agent([tool_of(add), tool_of(fail, "add")])
