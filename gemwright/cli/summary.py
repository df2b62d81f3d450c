"""The closing block of `run`: speed, memory planned beside measured, notes, and the default model's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemwright.errors import show_bytes

if TYPE_CHECKING:
    from gemwright.engine.llm import LLM
    from gemwright.engine.result import Completion

TERMS_ONLINE = "https://ai.google.dev/gemma/terms"


def summary_lines(llm: LLM, completion: Completion) -> list[str]:
    """Return speed and memory, one fact a line."""
    timing, memory = completion.timing, completion.memory
    speed = timing.decode_tokens_per_s
    rate = "" if speed is None else f" at {speed:.1f} tokens/s"
    lines = [
        f"{completion.usage.completion_tokens} tokens{rate}, first token after {timing.ttft_s:.2f} s, "
        f"loaded in {timing.load_s:.1f} s, {llm.engine.dtype}",
    ]
    lines += ["memory", *memory_lines(llm, memory.process_bytes)]
    return lines


def memory_lines(llm: LLM, process_bytes: int) -> list[str]:
    """Return the ledger, planned beside measured, one line each."""
    engine = llm.engine
    rows = [(line.name, line.planned_bytes) for line in engine.lines]
    rows += [("planned", engine.planned_bytes), ("measured", engine.measured_bytes)]
    width = max(len(name) for name, _ in rows) + 2
    lines = [f"  {name:<{width}}{show_bytes(size):>12}" for name, size in rows]
    lines.append(
        f"  {'process':<{width}}{show_bytes(process_bytes):>12}"
        "  (resident: the program itself, and of the K/V cache what was used)"
    )
    return lines


def note_lines(llm: LLM, *, is_default_model: bool) -> list[str]:
    """Return what was chosen, lowered or dropped at the start, and where the default model's terms stand."""
    lines = [f"note: {note}" for note in llm.engine.notes]
    if is_default_model:
        lines.append(f"Gemma 3 270M is used under the Gemma terms: {_terms()}")
    return lines


def _terms() -> str:
    from gemwright.errors import CheckpointError
    from gemwright.loading.default_model import terms_path

    try:
        return str(terms_path())
    except CheckpointError:
        # The joined model outlives its packages in our cache.
        return TERMS_ONLINE
