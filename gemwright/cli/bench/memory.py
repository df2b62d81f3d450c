"""`gemwright bench memory`: the plan beside live processes."""

from __future__ import annotations

from typing import Any

import click

from gemwright.cli.bench.shared import Counts, machine_facts, require_writable, write_result
from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    SectionCommand,
    backend_options,
    dtype_option,
    engine_options,
    found_model_options,
    option,
    output_options,
)


@click.command(
    cls=SectionCommand,
    short_help="The plan beside live processes.",
    epilog="""\b
Examples:
  gemwright bench memory
  gemwright bench memory ./gemma-3-1b-it --contexts 1024,8192 --loads 1,4 --json""",
)
@click.argument("word", required=False, metavar="[MODEL]", shell_complete=complete_model)
@option("Load", "--contexts", "Tokens of each request; left out, 512,4096.", type=Counts())
@option("Load", "--loads", "Requests at once; left out, 1,8.", type=Counts())
@option("Output", "--output", "Write the result to this file too.", type=click.Path())
@found_model_options
@dtype_option
@backend_options
@output_options
@click.pass_context
def memory(context: click.Context, /, word: str | None, **values: Any) -> None:
    """Load a model in fresh processes, fill them with requests, and compare what they hold with the plan.

    Each process is compared twice: with what runs take on other machines, and with what the other runs took here. Its
    measurement is kept, so that later plans on this machine are nearer (docs/ledger.md).
    """
    from gemwright.bench.memory import Case, judge, measure_case, require_cases
    from gemwright.cli.asked import choose_model
    from gemwright.cli.load import fetch_model, progress_bar
    from gemwright.cli.run import write_json
    from gemwright.errors import show_bytes
    from gemwright.loading.default_model import cache_folder
    from gemwright.loading.resolve import resolve_model
    from gemwright.planner.calibration import note_run

    require_writable(values["output"])
    options = engine_options(values)
    model = choose_model(word, context)
    fetch_model(model, revision=values["revision"], offline=values["offline"], options=options)
    path = resolve_model(model, revision=values["revision"], offline=True)
    name = model or path.name
    cases = [
        Case(str(path), tokens, users, options)
        for tokens in values["contexts"] or (512, 4096)
        for users in values["loads"] or (1, 8)
    ]
    require_cases(cases)
    measured = []
    with progress_bar("measuring") as progress:
        for index, case in enumerate(cases):
            found = measure_case(case)
            measured.append({**found, "model": name})
            if found["is_on_cpu"]:
                note_run(cache_folder(), found["backend"], found["runtime_bytes"])
            if progress is not None:
                progress(index + 1, len(cases))
    judged = judge(measured)
    content = {"model": name, "cases": judged, "machine": machine_facts()}
    write_result(content, values["output"])
    if values["json"]:
        write_json(content)
        return
    print(
        f"{'context':>9}{'users':>7}{'K/V planned':>14}{'K/V measured':>14}{'process':>12}{'before':>14}{'after':>14}"
    )
    for found in judged:
        after = found["error_after_bytes"]
        print(
            f"{found['context']:>9,}{found['num_users']:>7}{show_bytes(found['kv_planned_bytes']):>14}"
            f"{show_bytes(found['kv_measured_bytes']):>14}{show_bytes(found['process_bytes']):>12}"
            f"{_signed(found['error_before_bytes']):>14}{'' if after is None else _signed(after):>14}"
        )
    print("before and after calibration: planned less measured; a process planned too small is the worse error")


def _signed(size_bytes: int) -> str:
    from gemwright.errors import show_bytes

    return f"{'+' if size_bytes >= 0 else '-'}{show_bytes(abs(size_bytes))}"
