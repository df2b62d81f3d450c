"""`gemwright plan --advise`: writes the report, its pictures, and a row in the table of plans."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemwright.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from gemwright.planner.answers import Plan
    from gemwright.planner.report import LoadTest

FOLDER = "plan-report"
TABLE_NAME = "plans.md"
_LOAD_OUTPUT_TOKENS = 32


def advise(planned: Plan, model: str | None, values: dict[str, Any]) -> list[Path]:
    """Walk the seven steps and write what they find; return where it lies, the report first.

    Raises CheckpointError where it cannot be written.
    """
    from gemwright.planner.devices import this_machine
    from gemwright.planner.picture import stacked_bar, users_curve
    from gemwright.planner.report import memory_parts, report, table_row

    load_test = None
    if values["load_test_result"]:
        load_test = _read_load_test(Path(values["load_test_result"]))
    elif values["load_test"]:
        load_test = _load_test(planned, model, values)
    if planned.settings.device is not None:
        machine = planned.settings.device.name
    else:
        here = this_machine()
        machine = f"{here.processor}, {here.cores.num_allowed} cores"
    date = datetime.now(UTC).date().isoformat()
    folder = Path(values["report"] or FOLDER)
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", f"{planned.header.name}-{planned.estimate.engine}").strip("-.")
    bar, curve = f"{stem}-memory.svg", f"{stem}-users.svg" if planned.curve else None
    phases: dict[str, str] = {planned.ledger.peak_phase: f" ({planned.ledger.peak_phase})", "steady": ""}
    parts = memory_parts(planned.ledger.lines, planned.ledger.place, phases)
    files = {
        f"{stem}.md": report(planned, date=date, machine=machine, bar=bar, curve=curve, load_test=load_test),
        bar: stacked_bar(parts, planned.memory_bytes),
    }
    if curve is not None:
        files[curve] = users_curve(planned.curve)
    note = {None: "", True: "fits", False: "does not fit"}[planned.fits]
    row = table_row(planned, date=date, machine=machine, load_test=load_test, note=note)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        _append(folder / TABLE_NAME, row)
    except OSError as error:
        raise CheckpointError(
            "the report cannot be written", value=error, remedy="name another folder with --report"
        ) from error
    return [folder / name for name in (*files, TABLE_NAME)]


def _append(path: Path, row: str) -> None:
    """Add a row to the table, which is begun where there is none."""
    from gemwright.planner.report import TABLE_HEAD

    before = path.read_text(encoding="utf-8") if path.exists() else ""
    head = "" if TABLE_HEAD[0] in before else "\n".join(TABLE_HEAD) + "\n"
    gap = "\n" if before and not before.endswith("\n") else ""
    path.write_text(f"{before}{gap}{head}{row}\n", encoding="utf-8")


def _read_load_test(path: Path) -> LoadTest:
    """Return what a saved search for the knee found. Raises CheckpointError where it cannot be read, RequestError for
    a file of another kind."""
    from gemwright.planner.report import LoadTest

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError("the result of the load test cannot be read", value=f"{path}: {error}") from error
    try:
        content = json.loads(text)
        knee = content["knee"]
        process_bytes = content["process_bytes"] if "process_bytes" in content else content["memory"]["process_bytes"]
        return LoadTest(
            command=str(content["machine"]["command"]),
            num_users=int(knee["concurrency"]),
            tokens_per_s=float(knee["tokens_per_s"]),
            inter_token_p95_s=float(knee["inter_token_ms_p95"]) / 1000,
            bent=str(knee["bent"]),
            process_bytes=None if process_bytes is None else int(process_bytes),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise RequestError(
            "--load-test-result",
            value=path,
            limit="what --find-knee of `gemwright bench serve` or `bench offline` saved",
            remedy="search the knee with --save-result or --output",
        ) from error


def _load_test(planned: Plan, model: str | None, values: dict[str, Any]) -> LoadTest:
    """Raise the number of users on this machine with our own engine until something bends."""
    from gemwright.bench.offline import Load, run_load, search_knee
    from gemwright.cli.load import load_model
    from gemwright.cli.measuring import measure_run
    from gemwright.planner.report import LoadTest

    if planned.settings.engine != "gemwright":
        raise RequestError(
            "--load-test measures our own engine",
            value=f"--engine {planned.settings.engine}",
            remedy="leave it out, or plan for --engine gemwright",
        )
    print("measuring the knee on this machine ...", file=sys.stderr)
    names = ("dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes")
    options = {name: values[name] for name in names if values[name] is not None}
    llm = load_model(model, revision=values["revision"], offline=values["offline"], options=options)
    length = min(planned.prompt_tokens, llm.engine.max_model_len - _LOAD_OUTPUT_TOKENS)
    load = Load(input_len=max(1, length), output_len=_LOAD_OUTPUT_TOKENS)
    # The first steps of a process set up what later ones find ready.
    run_load(llm, Load(1, min(16, load.input_len), 2, 1, seed=1_000_003))
    found = search_knee(llm, load, most=llm.core.limits.max_num_seqs)
    point = found.knee.point
    return LoadTest(
        command=f"gemwright bench offline --find-knee --input-len {load.input_len} --output-len {load.output_len}",
        num_users=point.concurrency,
        tokens_per_s=point.tokens_per_s,
        inter_token_p95_s=point.inter_token_ms_p95 / 1000,
        bent=found.knee.bent,
        process_bytes=measure_run(llm).peak_process_bytes,
    )
