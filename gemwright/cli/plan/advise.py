"""`gemwright plan --advise`: writes the report, its pictures, and a row in the table of plans."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemwright.errors import CheckpointError

if TYPE_CHECKING:
    from gemwright.planner.plan import Plan
    from gemwright.planner.report import LoadTest

FOLDER = "plan-report"
TABLE_NAME = "plans.md"


def advise(planned: Plan, model: str | None, values: dict[str, Any]) -> None:
    """Walk the seven steps and write what they find; print where it lies. Raises CheckpointError where it cannot."""
    from gemwright.planner.devices import this_machine
    from gemwright.planner.picture import stacked_bar, users_curve
    from gemwright.planner.report import memory_parts, report, table_row

    load_test = _load_test(planned, model, values) if values["load_test"] else None
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
    for name in (*files, TABLE_NAME):
        print(folder / name)


def _append(path: Path, row: str) -> None:
    """Add a row to the table, which is begun where there is none."""
    from gemwright.planner.report import TABLE_HEAD

    before = path.read_text(encoding="utf-8") if path.exists() else ""
    head = "" if TABLE_HEAD[0] in before else "\n".join(TABLE_HEAD) + "\n"
    gap = "\n" if before and not before.endswith("\n") else ""
    path.write_text(f"{before}{gap}{head}{row}\n", encoding="utf-8")


def _load_test(planned: Plan, model: str | None, values: dict[str, Any]) -> LoadTest:
    """Raise the number of users on this machine with our own engine until something bends."""
    from gemwright.cli.bench import find_knee
    from gemwright.errors import RequestError
    from gemwright.planner.report import to_load_test

    if planned.settings.engine != "gemwright":
        raise RequestError(
            "--load-test measures our own engine",
            value=f"--engine {planned.settings.engine}",
            remedy="leave it out, or plan for --engine gemwright",
        )
    print("measuring the knee on this machine ...", file=sys.stderr)
    found, command = find_knee(model, planned, values)
    return to_load_test(found, command)
