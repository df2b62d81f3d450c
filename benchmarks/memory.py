"""Compares plans with live processes: the default model and every tiny family, contexts and loads, each in a process.

    .venv/bin/python benchmarks/memory.py --output benchmarks/results/memory.json

Each case is judged before calibration, and after one by the other cases of the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from gemwright.bench.memory import Case, judge, measure_case
from gemwright.cli.bench.shared import machine_facts
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint

CONTEXTS = (512, 4096)
LOADS = (1, 8)
TINY_CASES = ((64, 1), (128, 4))


def main() -> int:
    """Measure, print and write; 1 where a line of acceptance does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    cases: list[tuple[str | None, Case]] = [
        (None, Case(None, context, users, {})) for context in CONTEXTS for users in LOADS
    ]
    with tempfile.TemporaryDirectory() as folder:
        for tiny in TINY_CONFIGS:
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
    machine = {**machine_facts(), "command": "python benchmarks/memory.py"}
    content = {"summary": summary, "machine": machine, "cases": judged}
    print(json.dumps(summary, indent=2))
    if output is not None:
        output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(min(summary["kv_exact"], summary["within_before"], summary["within_after"]) < len(judged))


if __name__ == "__main__":
    sys.exit(main())
