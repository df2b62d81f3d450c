"""Compares plans with live processes: the default model and every tiny family, contexts and loads, each in a process.

    .venv/bin/python benchmarks/memory.py --output benchmarks/results/memory.json
    .venv/bin/python benchmarks/memory.py --default-cases 512x1,4096x8 --without-tiny

A case is context x users. Each is judged before calibration, and after one by the other cases of the same run. The
calibration that is kept for this machine is neither read nor written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from gemwright.bench.memory import Case, judge, measure_case
from gemwright.cli.bench.shared import machine_facts
from gemwright.planner.calibration import OFF_VARIABLE
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint

DEFAULT_CASES = ((256, 1), (256, 4), (1024, 1))
"""Of the default model; larger ones by --default-cases, where the processor reads fast enough."""
TINY_CASES = ((64, 1), (128, 4))


def main() -> int:
    """Measure, print and write; 1 where a line of acceptance does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--default-cases", type=_read_cases, default=DEFAULT_CASES, metavar="512x1,4096x8")
    parser.add_argument("--without-tiny", action="store_true", help="measure the default model alone")
    asked = parser.parse_args()
    output = asked.output
    os.environ[OFF_VARIABLE] = "1"
    cases: list[tuple[str | None, Case]] = [
        (None, Case(None, context, users, {})) for context, users in asked.default_cases
    ]
    with tempfile.TemporaryDirectory() as folder:
        for tiny in () if asked.without_tiny else TINY_CONFIGS:
            path = write_tiny_checkpoint(tiny, Path(folder, tiny))
            cases += [(tiny, Case(str(path), context, users, {})) for context, users in TINY_CASES]
        measured = []
        for name, case in cases:
            found = measure_case(case)
            measured.append({**found, "model": name or found["model"]})
            print(f"{measured[-1]['model']}: {case.context} tokens x {case.num_users}", file=sys.stderr, flush=True)
    judged = judge(measured)
    summary = {
        "num_cases": len(judged),
        "kv_exact": sum(case["kv_is_exact"] for case in judged),
        "within_before": sum(case["is_within_before"] for case in judged),
        "within_after": sum(case["is_within_after"] for case in judged),
        "worst_before_bytes": max((case["error_before_bytes"] for case in judged), key=abs),
        "worst_after_bytes": max((case["error_after_bytes"] for case in judged), key=abs),
    }
    machine = {**machine_facts(), "command": " ".join(["python benchmarks/memory.py", *sys.argv[1:]])}
    content = {"summary": summary, "machine": machine, "cases": judged}
    print(json.dumps(summary, indent=2))
    if output is not None:
        output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(min(summary["kv_exact"], summary["within_before"], summary["within_after"]) < len(judged))


def _read_cases(text: str) -> tuple[tuple[int, int], ...]:
    """Return the cases of 512x1,4096x8. Raises ValueError, which argparse reports."""
    pairs = tuple(tuple(int(number) for number in part.split("x")) for part in text.split(","))
    if any(len(pair) != 2 or min(pair) < 1 for pair in pairs):
        raise ValueError(text)
    return tuple((context, users) for context, users in pairs)


if __name__ == "__main__":
    sys.exit(main())
