"""The plan beside live processes: models under load in children of their own, before and after calibration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemwright import errors
from gemwright.config import EngineConfig
from gemwright.errors import GemwrightError, RequestError

BEFORE_SHARE: Final = 0.05
BEFORE_BYTES: Final = 64 << 20
AFTER_SHARE: Final = 0.01
AFTER_BYTES: Final = 16 << 20
"""How far off the process may be: the larger of share and bytes, before and after calibration."""

_CHILD: Final = """
import json, sys
from gemwright.bench.memory import answer_child
print(json.dumps(answer_child(json.loads(sys.argv[1]))))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One model, context and number of users."""

    model: str | None
    context: int
    num_users: int
    options: Mapping[str, Any]
    """Engine options, those of length and users apart."""

    def __post_init__(self) -> None:
        if self.context < 2:
            raise RequestError("context", value=self.context, limit="at least 2: one token of a prompt, one more")
        if self.num_users < 1:
            raise RequestError("num_users", value=self.num_users, limit="at least 1")


def require_cases(cases: Sequence[Case]) -> None:
    """Raise what a start would refuse in any of the cases, before the first is measured; only headers are read."""
    from gemwright.engine.start import plan_engine
    from gemwright.loading.checkpoint import open_checkpoint
    from gemwright.loading.resolve import resolve_model

    for case in cases:
        config = EngineConfig(max_model_len=case.context, max_num_seqs=case.num_users, **case.options)
        allow = config.allow_unknown_config_keys
        path = resolve_model(case.model, revision=None, offline=True, allow_unknown_config_keys=allow)
        checkpoint = open_checkpoint(path, allow_unknown_config_keys=allow, must_answer=True)
        plan_engine(checkpoint, config).require_fit()


def run_child(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Load a model, put a case's load on it, and return what was planned and measured. For a process of its own."""
    from gemwright.bench.offline import Load, run_load
    from gemwright.engine.llm import LLM

    context, users = asked["context"], asked["num_users"]
    llm = LLM(asked["model"], max_model_len=context, max_num_seqs=users, **asked["options"])
    output_len = min(4, context - 1)
    run_load(llm, Load(users, context - output_len, output_len, users))
    found = llm.measure()
    lines = [line.to_dict() for line in found.lines]
    return {
        "model": llm.model,
        "context": context,
        "num_users": users,
        "lines": lines,
        "backend": llm.engine.plan.holding.name,
        "is_on_cpu": found.is_on_cpu,
        "touched_bytes": found.touched_bytes,
        "beside_bytes": found.beside_bytes,
        "runtime_bytes": found.measured_runtime_bytes,
        "planned_process_bytes": found.planned_process_bytes,
        "process_bytes": found.process_bytes,
        "peak_process_bytes": found.peak_process_bytes,
        "kv_planned_bytes": sum(line["planned_bytes"] for line in lines if line["name"].startswith("K/V")),
        "kv_measured_bytes": sum(line["measured_bytes"] for line in lines if line["name"].startswith("K/V")),
    }


def answer_child(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `run_child` does, or the error that it raised on purpose, as `measure_case` raises it again."""
    try:
        return run_child(asked)
    except GemwrightError as error:
        fields = (error.what, error.value, error.limit, error.remedy)
        what, value, limit, remedy = (None if field is None else str(field) for field in fields)
        return {"error": {"type": type(error).__name__, "what": what, "value": value, "limit": limit, "remedy": remedy}}


def measure_case(case: Case) -> dict[str, Any]:
    """Return what a fresh process measures for a case. Raises what it raised on purpose, and GemwrightError where it
    ended with anything else."""
    asked = {
        "model": case.model,
        "context": case.context,
        "num_users": case.num_users,
        "options": dict(case.options),
    }
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(asked)],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    if done.returncode:
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        last = done.stderr.strip().splitlines()[-1:] or [ended]
        raise GemwrightError("a measuring process ended with an error", value=last[0][:300])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in found:
        error = found["error"]
        kind = getattr(errors, error.pop("type"), GemwrightError)
        raise kind(error.pop("what"), **error)
    return found


def judge(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases with their errors: before calibration, and after one by the runs of the other cases.

    A case is never judged by a calibration that has seen it.
    """
    judged = []
    for index, case in enumerate(cases):
        others = sorted(other["runtime_bytes"] for place, other in enumerate(cases) if place != index)
        middle = others[len(others) // 2] if others else None
        before = case["planned_process_bytes"] - case["process_bytes"]
        after = None if middle is None else middle - case["runtime_bytes"]
        judged.append(
            {
                **case,
                "kv_is_exact": case["kv_planned_bytes"] == case["kv_measured_bytes"],
                "error_before_bytes": before,
                "is_within_before": _is_within(before, case["process_bytes"], BEFORE_SHARE, BEFORE_BYTES),
                "error_after_bytes": after,
                "is_within_after": None
                if after is None
                else _is_within(after, case["process_bytes"], AFTER_SHARE, AFTER_BYTES),
            }
        )
    return judged


def _is_within(error_bytes: int, size_bytes: int, share: float, least_bytes: int) -> bool:
    return abs(error_bytes) <= max(share * size_bytes, least_bytes)
