"""Measures what the server costs over the engine it serves: to the first token, and in throughput at 16 streams.

    .venv/bin/python benchmarks/server_overhead.py --output benchmarks/results/server_overhead.json

One engine answers both sides in turn: asked in this process, or through the server by a client in a process of its own.
Prompts are random ids, none asked twice, so that nothing is found in the prefix cache. The default model is measured,
and with an engine whose steps take a fixed time and write a fixed text, since the time of a real model's step varies by
more than what a server costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

MOST_FIRST_TOKEN_MS = 3.0
MOST_THROUGHPUT_LOSS = 0.05
_FIRST_ID = 3
"""Below it are control tokens."""

Prompts = Sequence[Sequence[int]]


class Client:
    """The other process: it opens the connections that a load needs, sends all prompts at once and reads the events."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, __file__, "--client", str(port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, prompts: Prompts, max_tokens: int) -> dict[str, Any]:
        """Return what the load took, as `loaded` does."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def run_client(port: int) -> None:
    """Answer loads from stdin until it ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        bodies = [_request(prompt, asked["max_tokens"]) for prompt in asked["prompts"]]
        print(json.dumps(asyncio.run(_send(port, bodies))), flush=True)


def _request(prompt: Sequence[int], max_tokens: int) -> bytes:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    content = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


async def _send(port: int, requests: Sequence[bytes]) -> dict[str, Any]:
    # As a client that keeps its connections: what opening them costs is no part of an answer.
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in requests]

    async def answer(connection: Any, request: bytes) -> tuple[float, int]:
        reader, writer = connection
        began = time.perf_counter()
        writer.write(request)
        first: float | None = None
        num_tokens = 0
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise SystemExit(f"the server answered: {event['error']}")
            if first is None and event["choices"]:
                first = time.perf_counter() - began
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
        assert first is not None
        return first, num_tokens

    began = time.perf_counter()
    found = await asyncio.gather(*map(answer, connections, requests))
    seconds = time.perf_counter() - began
    for _, writer in connections:
        writer.close()
    return loaded([first for first, _ in found], sum(count for _, count in found), seconds)


def loaded(first_s: list[float], num_tokens: int, seconds: float) -> dict[str, Any]:
    """Return what one load took."""
    return {"first_s": first_s, "num_tokens": num_tokens, "seconds": seconds}


async def ask_engine(engine: Any, prompts: Prompts, max_tokens: int) -> dict[str, Any]:
    """Return what a load takes of an engine in this process."""
    params = engine.llm.sampling_params(max_tokens=max_tokens, temperature=0, ignore_eos=True)

    async def answer(prompt: Sequence[int]) -> tuple[float, int]:
        began = time.perf_counter()
        first: float | None = None
        num_tokens = 0
        async with aclosing(engine.stream(list(prompt), params)) as pieces:
            async for piece in pieces:
                first = first or time.perf_counter() - began
                num_tokens += len(piece.token_ids)
        assert first is not None
        return first, num_tokens

    began = time.perf_counter()
    found = await asyncio.gather(*map(answer, prompts))
    seconds = time.perf_counter() - began
    return loaded([first for first, _ in found], sum(count for _, count in found), seconds)


@contextmanager
def serving(engine: Any) -> Iterator[int]:
    """Serve an engine from a thread of this process, and yield the port."""
    import uvicorn

    from gemwright.server.app import make_app
    from gemwright.server.service import Service
    from gemwright.server.settings import ServerSettings

    service = Service(ServerSettings(), "measured")
    service.set_engine(engine)
    # The protocol is named, as the real server does: else asyncio leaves Nagle's delay on.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(make_app(service), log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def compare(llm: Any, asked: argparse.Namespace) -> dict[str, Any]:
    """Return both measurements of one model, each pair asked in turn; which side comes first alternates."""
    from gemwright.engine.async_engine import AsyncEngine

    generator = np.random.default_rng(0)
    engine = AsyncEngine(llm)

    def prompts(number: int) -> list[list[int]]:
        ids = generator.integers(_FIRST_ID, llm.spec.vocab_size, (number, asked.input_len - 1))
        return [[llm.spec.bos_token_id, *row] for row in ids.tolist()]

    with serving(engine) as port:
        client = Client(port)
        try:

            def pair(index: int, number: int, max_tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
                sides = [
                    lambda: asyncio.run(ask_engine(engine, prompts(number), max_tokens)),
                    lambda: client.ask(prompts(number), max_tokens),
                ]
                order = (0, 1) if index % 2 == 0 else (1, 0)
                found = {side: sides[side]() for side in order}
                return found[0], found[1]

            for index in range(2):
                pair(index, asked.streams, 2)
            firsts = [pair(index, 1, 1) for index in range(asked.first_pairs)]
            loads = [pair(index, asked.streams, asked.output_len) for index in range(asked.load_pairs)]
        finally:
            client.close()
    asyncio.run(engine.stop())
    bare_ms = [1000 * bare["first_s"][0] for bare, _ in firsts]
    served_ms = [1000 * served["first_s"][0] for _, served in firsts]
    rates = [[side["num_tokens"] / side["seconds"] for side in load] for load in loads]
    ratios = [served / bare for bare, served in rates]
    return {
        "model": llm.model,
        "dtype": llm.engine.dtype,
        "first_token": {
            "engine_ms": round(statistics.median(bare_ms), 3),
            "server_ms": round(statistics.median(served_ms), 3),
            "overhead_ms": round(statistics.median(served_ms) - statistics.median(bare_ms), 3),
            "num_pairs": len(firsts),
        },
        "streams": {
            "num_streams": asked.streams,
            "engine_tokens_per_s": [round(bare, 2) for bare, _ in rates],
            "server_tokens_per_s": [round(served, 2) for _, served in rates],
            "ratio": round(statistics.median(ratios), 4),
        },
    }


def fixed_steps(folder: str, seconds_per_step: float, options: dict[str, Any]) -> Any:
    """Return an engine that computes nothing: a step takes so long, and every answer is the same long text."""
    from gemwright.testing import write_tiny_checkpoint
    from gemwright.testing.scripted import answers, scripted_llm

    path = write_tiny_checkpoint("gemma3", folder)
    text = "The river rose slowly through the night. " * 40
    return scripted_llm(path, answers({}, text), seconds_per_step=seconds_per_step, **options)


def main() -> int:
    """Measure, print and write; 1 where the server costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=100)
    parser.add_argument("--first-pairs", type=int, default=40)
    parser.add_argument("--load-pairs", type=int, default=5)
    parser.add_argument("--model-first-pairs", type=int, default=6, help="of the default model, which takes its time")
    parser.add_argument("--model-load-pairs", type=int, default=2)
    parser.add_argument("--model-output-len", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=20, help="a step of the engine with fixed steps; left out, 20")
    parser.add_argument("--threads", type=int, help="of the engine; left out, a core is left to the client")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if asked.client is not None:
        run_client(asked.client)
        return 0
    from gemwright import LLM
    from gemwright.cli.bench.shared import machine_facts

    threads = asked.threads or max(1, len(os.sched_getaffinity(0)) - 1)
    options = {"threads": threads, "max_model_len": 256, "max_num_seqs": asked.streams}
    with tempfile.TemporaryDirectory() as folder:
        fixed = compare(fixed_steps(folder, asked.step_ms / 1000, options), asked)
    asked_of_model = argparse.Namespace(
        streams=asked.streams,
        input_len=asked.input_len,
        output_len=asked.model_output_len,
        first_pairs=asked.model_first_pairs,
        load_pairs=asked.model_load_pairs,
    )
    found = {
        "fixed_steps": {**fixed, "model": f"scripted, {asked.step_ms:g} ms a step"},
        "default_model": compare(LLM(**options), asked_of_model),
    }
    is_within = found["fixed_steps"]["first_token"]["overhead_ms"] < MOST_FIRST_TOKEN_MS and all(
        measured["streams"]["ratio"] > 1 - MOST_THROUGHPUT_LOSS for measured in found.values()
    )
    command = " ".join(["python benchmarks/server_overhead.py", *sys.argv[1:]])
    content = {
        **found,
        "threads": threads,
        "limits": {"first_token_ms": MOST_FIRST_TOKEN_MS, "throughput_loss": MOST_THROUGHPUT_LOSS},
        "is_within": is_within,
        "machine": {**machine_facts(), "command": command},
    }
    text = json.dumps(content, indent=2)
    print(text)
    if asked.output:
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        asked.output.write_text(text + "\n")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
