"""`gemwright serve` as a process: its ready line, its logs, keys, TLS, a port that is taken, and how signals end it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gemwright.errors import RequestError
from gemwright.server.serve import listen
from gemwright.server.settings import ServerSettings
from tests.end_to_end.command_line import CHILD, CommandLine, child_environment
from tests.end_to_end.conftest import TinyFolder

SECRET = "the-text-of-a-prompt"
READY = re.compile(
    r"ready: (?P<address>\S+) \| (?P<dtype>\w+) \| (?P<kinds>.+) \| K/V (?P<token>.+) a token \| "
    r"context (?P<context>\d+) tokens\n"
)


@dataclass
class Running:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    ready: re.Match[str]
    errors: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.ready["address"]

    def end(self, sig: int = signal.SIGTERM) -> int:
        self.process.send_signal(sig)
        return self.process.wait(60)


@contextmanager
def served(*words: object) -> Iterator[Running]:
    process = subprocess.Popen(
        [*CHILD, "serve", *map(str, words), "--port", "0"],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    reader = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        line = process.stdout.readline()
        found = READY.fullmatch(line)
        if found is None:
            process.wait(60)
            reader.join(10)
        assert found is not None, (line, errors)
        yield Running(process, found, errors)
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        process.stdout.close()
        process.stderr.close()


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0, **fields}


def test_a_server_from_its_ready_line_to_its_end(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """Keys of a file and of a flag; SIGTERM lets a stream end, refuses a new request with 503, and exits with 0."""
    folder = tiny_folder("gemma4-e")
    keys = tmp_path / "keys.txt"
    keys.write_text("# of the team\nfirst\n\n  second  \n")
    words = ("--served-model-name", "tiny", "--chat-template", "gemma4", "--max-model-len", 512)
    with served(folder, "--api-key-file", keys, "--api-key", "third", *words) as server:
        ready = server.ready
        assert ready["address"].startswith("http://127.0.0.1:")
        assert ready["dtype"] == "float32"
        assert re.fullmatch(r"(\d+ (full|sliding) layers \w+(, )?)+", ready["kinds"])
        assert int(ready["context"]) == 512
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            assert client.get("/health").status_code == 200
            assert client.post("/v1/chat/completions", json=chat(SECRET)).status_code == 401
            for key in ("first", "second", "third"):
                head = {"authorization": f"Bearer {key}"}
                answer = client.post("/v1/chat/completions", json=chat(SECRET), headers=head)
                assert (answer.status_code, answer.json()["model"]) == (200, "tiny")
            endless = chat(SECRET, max_tokens=200, ignore_eos=True, stream=True)
            with client.stream("POST", "/v1/chat/completions", json=endless, headers=head) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("data: ")
                server.process.send_signal(signal.SIGTERM)
                while client.get("/health").status_code == 200:
                    time.sleep(0.01)
                refused = client.post("/v1/chat/completions", json=chat("x"), headers=head)
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) > 0
                assert "going down" in refused.json()["error"]["message"]
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0
    records = [json.loads(line) for line in server.errors if line.startswith("{")]
    plain = [line for line in server.errors if not line.startswith("{")]
    assert not [line for line in plain if not line.startswith(("note: ", "loading"))]
    answers = [record for record in records if record["message"] == "answer"]
    assert [record["finish_reasons"] for record in answers][-1] == ["length"]
    assert {"time", "level", "logger", "request_id", "prompt_tokens", "ttft_s"} <= answers[0].keys()
    draining = [record for record in records if record["message"] == "draining"]
    assert [record["running"] for record in draining] == [1]
    accesses = [record for record in records if record["message"] == "request"]
    assert {200, 401, 503} <= {record["status"] for record in accesses}
    everything = "".join(server.errors)
    assert SECRET not in everything
    assert "third" not in everything
    assert "Traceback" not in everything


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed and makes the certificate")
def test_tls_and_a_second_signal(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """A stream that nobody reads would keep the server for the whole drain; a second signal does not wait for it."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    words = ("--ssl-keyfile", key, "--ssl-certfile", certificate, "--chat-template", "gemma4")
    with served(tiny_folder("gemma3"), *words) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(certificate))
        with httpx2.Client(base_url=server.url, verify=trusted, timeout=60) as client:
            assert client.get("/health").status_code == 200
            endless = chat("x", max_tokens=10_000, ignore_eos=True, stream=True)
            with client.stream("POST", "/v1/chat/completions", json=endless) as stream:
                assert next(stream.iter_lines()).startswith("data: ")
                server.process.send_signal(signal.SIGINT)
                while client.get("/health").status_code == 200:
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGINT)
                assert server.process.wait(20) == 130
        with pytest.raises(httpx2.ConnectError), httpx2.Client() as client:
            client.get(f"{server.url}/health")


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(gemwright: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = gemwright("serve", "no/such-model", "--port", port)
        assert (found.code, found.stdout) == (2, "")
        assert f"value: 127.0.0.1:{port}: Address already in use" in found.stderr
        assert "remedy: change --host or --port" in found.stderr
        # Whoever opens a server to the network without a key is told; with a key, and on loopback, nobody is.
        for words, is_warned in (
            (("--host", "0.0.0.0"), True),
            (("--host", "0.0.0.0", "--api-key", "k"), False),
            (("--host", "127.0.0.1"), False),
        ):
            found = gemwright("serve", "no/such-model", "--port", port, *words)
            assert found.code == 2
            assert found.stderr.startswith("warning: 0.0.0.0 is reachable from other machines") is is_warned


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "::zz"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(RequestError, match="cannot listen") as caught:
        listen(host, 0)
    assert host in str(caught.value)


def test_a_name_is_listened_on_at_all_its_addresses_with_one_port() -> None:
    listeners = listen("localhost", 0)
    try:
        assert len({listener.getsockname()[1] for listener in listeners}) == 1
    finally:
        for listener in listeners:
            listener.close()


@pytest.mark.parametrize(
    ("host", "keys", "is_open"),
    [
        ("127.0.0.1", (), False),
        ("127.0.0.2", (), False),
        ("::1", (), False),
        ("localhost", (), False),
        ("0.0.0.0", (), True),
        ("::", (), True),
        ("", (), True),
        ("gpu-box", (), True),
        ("0.0.0.0", ("k",), False),
    ],
)
def test_a_server_is_open_that_others_reach_without_a_key(host: str, keys: tuple[str, ...], is_open: bool) -> None:
    assert ServerSettings(host=host, api_keys=keys).is_open is is_open


def test_files_that_are_not_what_they_should_be_are_refused(gemwright: CommandLine, tmp_path: Path) -> None:
    empty, bytes_file, no_pem = tmp_path / "empty.txt", tmp_path / "bytes.txt", tmp_path / "no.pem"
    empty.write_text("# none\n\n")
    bytes_file.write_bytes(b"\xff\xfe\x00key")
    no_pem.write_text("this is no certificate")
    for words, code, message in (
        (("--api-key-file", empty), 2, "holds no key"),
        (("--api-key-file", tmp_path / "none.txt"), 5, "--api-key-file cannot be read"),
        (("--api-key-file", tmp_path), 5, "--api-key-file cannot be read"),
        (("--api-key-file", bytes_file), 5, "not UTF-8"),
        (("--api-key", " "), 2, "an API key is empty"),
        (("--ssl-keyfile", no_pem), 2, "TLS needs a key and a certificate"),
        (("--ssl-keyfile", no_pem, "--ssl-certfile", tmp_path / "none.pem"), 5, "--ssl-certfile cannot be read"),
        (("--ssl-keyfile", no_pem, "--ssl-certfile", no_pem), 5, "TLS cannot be set up"),
        (("--port", 70_000), 2, "port"),
        (("--request-timeout", 0), 2, "request_timeout_s"),
        (("--max-num-queued-reqs", 0), 2, "max_num_queued_requests"),
    ):
        found = gemwright("serve", "no/such-model", *words)
        assert (found.code, found.stdout) == (code, ""), words
        assert message in found.stderr
        assert "Traceback" not in found.stderr


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_own_code(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = subprocess.run(
        [*CHILD, "serve", str(tmp_path), "--port", "0"],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout) == (5, ""), found.stderr
    assert "error: " in found.stderr
