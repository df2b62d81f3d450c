"""Emitted settings as tests read them back: by our own parser, and by the flags that others document."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from gemwright.cli.options import Settings, engine_options
from gemwright.cli.program import program
from gemwright.planner.devices import Device
from gemwright.planner.estimate import estimate
from gemwright.planner.export import emit
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader
from tests.planned_models import GIB

PROCESSOR = Device("a processor", "cpu", 64 * GIB, None, {}, "test")
VLLM_FLAGS = {
    "--max-model-len": int,
    "--max-num-seqs": int,
    "--max-num-batched-tokens": int,
    "--kv-cache-memory-bytes": int,
    "--kv-cache-dtype": str,
    "--block-size": int,
    "--dtype": str,
    "--tensor-parallel-size": int,
    "--no-async-scheduling": None,
    "--language-model-only": None,
    "--revision": str,
    "--limit-mm-per-prompt": json.loads,
    "--mm-processor-kwargs": json.loads,
    "--speculative-config": json.loads,
    "--enable-lora": None,
    "--max-lora-rank": int,
    "--max-loras": int,
    "--gpu-memory-utilization": float,
}
LLAMA_FLAGS = {
    "-m": str, "-hf": str, "-c": int, "-np": int, "-ub": int, "-ctk": str, "-ctv": str, "-fa": str, "-ngl": int,
    "--kv-unified": None, "--swa-full": None, "--mmproj": str, "--no-mmproj": None, "--image-max-tokens": int,
    "-sm": str, "-ts": str, "--spec-type": str, "-md": str, "--spec-draft-n-max": int, "-ngld": int, "--lora": str,
}  # fmt: skip


def emitted(header: ModelHeader, left_bytes: int | None = None, /, **asked: Any) -> list[str]:
    settings = PlanSettings(**asked)
    return emit(settings.engine, header, settings, estimate(header, settings), left_bytes)


def command(lines: list[str]) -> list[str]:
    """The words of the one line that is no comment."""
    (line,) = (line for line in lines if not line.startswith("#"))
    return shlex.split(line)


def read_flags(words: list[str], known: dict[str, Any]) -> dict[str, Any]:
    """Read words as flags with a value of a type, or as switches; what is not known fails."""
    found: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        assert word not in found
        found[word] = True if known[word] is None else known[word](next(rest))
    return found


def read_ours(words: list[str]) -> tuple[str | None, dict[str, Any]]:
    """Read words with the program's own parser: the model, and the fields of EngineConfig."""
    assert words[:2] == ["gemwright", "serve"]
    serve = program.get_command(click.Context(program), "serve")
    assert serve is not None
    with serve.make_context("serve", words[2:], obj=Settings()) as context:
        return context.params["word"], engine_options(context.params)
