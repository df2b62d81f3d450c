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
    timing = completion.timing
    speed = timing.decode_tokens_per_s
    rate = "" if speed is None else f" at {speed:.1f} tokens/s"
    lines = [
        f"{completion.usage.completion_tokens} tokens{rate}, first token after {timing.ttft_s:.2f} s, "
        f"loaded in {timing.load_s:.1f} s, {llm.engine.dtype}",
    ]
    lines += ["memory", *memory_lines(llm)]
    return lines


def memory_lines(llm: LLM) -> list[str]:
    """Return the ledger of the live process, a line each: planned, allocated, and in use so far."""
    from gemwright.cli.measuring import measure_run

    found = measure_run(llm)
    rows = [(line.name, line.planned_bytes, line.measured_bytes, line.touched_bytes) for line in found.lines]
    allocated = sum(line.measured_bytes for line in found.lines)
    rows.append(("in all", sum(line.planned_bytes for line in found.lines), allocated, found.touched_bytes))
    width = max(len(name) for name, *_ in rows) + 2
    lines = [f"  {'':<{width}}{'planned':>12}{'measured':>12}{'in use':>12}"]
    lines += [
        f"  {name:<{width}}{show_bytes(planned):>12}{show_bytes(measured):>12}{show_bytes(touched):>12}"
        for name, planned, measured, touched in rows
    ]
    planned, measured = show_bytes(found.planned_process_bytes), show_bytes(found.process_bytes)
    lines.append(f"  {'process':<{width}}{planned:>12}{measured:>12}  (what is in use, and the program itself)")
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
