"""Times the output parser token by token, over growing outputs, to see that its cost is linear and small.

python benchmarks/parser.py --output benchmarks/results/parser.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gemwright import __version__
from gemwright.loading.checkpoint import open_checkpoint
from gemwright.loading.default_model import cache_folder, default_model_path
from gemwright.text.parser import OutputParser, TokenReader
from gemwright.text.tokenizer import load_tokenizer

LENGTHS = (25_000, 50_000, 100_000)
ROUNDS = 5
WORDS = "The tide tables for Brest say high water at six, and the library closes at nine on weekdays. "


def shapes() -> dict[str, Callable[[int], str]]:
    """Return texts of about four characters a token, by what they exercise."""

    def filled(number: int) -> str:
        return (WORDS * (4 * number // len(WORDS) + 1))[: 4 * number]

    return {
        "answer": filled,
        "thought, then answer": lambda n: f"<|channel>thought\n{filled(n // 2)}<channel|>{filled(n // 2)}",
        "one long string argument": lambda n: f'<|tool_call>call:write{{text:<|"|>{filled(n)}<|"|>}}<tool_call|>',
        "many arguments": lambda n: (
            "<|tool_call>call:set{" + ",".join(f"key{i}:{i}" for i in range(4 * n // 14)) + "}<tool_call|>"
        ),
        "many calls": lambda n: '<|tool_call>call:get{place:<|"|>Brest<|"|>}<tool_call|>' * (4 * n // 52),
    }


def seconds_of(push: Callable[[Any], Any], pieces: Iterable[Any], finish: Callable[[str], Any]) -> float:
    """Return how long it takes to push all pieces."""
    begin = time.perf_counter()
    for piece in pieces:
        push(piece)
    finish("stop")
    return time.perf_counter() - begin


def row(name: str, times: dict[int, list[float]]) -> dict[str, Any]:
    per_token = {length: statistics.median(found) / length * 1e6 for length, found in times.items()}
    first, last = per_token[LENGTHS[0]], per_token[LENGTHS[-1]]
    return {
        "name": name,
        "microseconds_per_token": {str(length): round(value, 2) for length, value in per_token.items()},
        "ratio_of_longest_to_shortest": round(last / first, 3),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--output", type=Path)
    options = arguments.parse_args()
    rows = []
    for name, make in shapes().items():
        times: dict[int, list[float]] = {length: [] for length in LENGTHS}
        for _ in range(ROUNDS):
            for length in LENGTHS:
                text = make(length)
                pieces = [text[place : place + 4] for place in range(0, len(text), 4)]
                parser = OutputParser("gemma4")
                times[length].append(seconds_of(parser.push_text, pieces, parser.finish))
        rows.append(row(f"gemma4, text: {name}", times))
    checkpoint = open_checkpoint(default_model_path(None))
    tokenizer = load_tokenizer(
        checkpoint.folder, gguf_metadata=checkpoint.gguf_metadata, cache_dir=cache_folder() / "tokenizers"
    )
    assert tokenizer is not None
    ids = tokenizer.encode(WORDS * (LENGTHS[-1] // 10))[: LENGTHS[-1]]
    times = {length: [] for length in LENGTHS}
    for _ in range(ROUNDS):
        for length in LENGTHS:
            reader = TokenReader(tokenizer, OutputParser("gemma3"))
            times[length].append(seconds_of(reader.push, [(token,) for token in ids[:length]], reader.finish))
    rows.append(row("gemma3, ids of the default model: answer", times))
    result = {
        "command": "python benchmarks/parser.py",
        "machine": {"platform": platform.platform(), "python": platform.python_version()},
        "version": __version__,
        "rounds": ROUNDS,
        "rows": rows,
    }
    for line in rows:
        print(f"{line['name']:<45} {line['microseconds_per_token']}  x{line['ratio_of_longest_to_shortest']}")
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
