"""`gemwright bench offline`: load on the engine itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.bench.shared import machine_facts, require_writable, write_result
from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    SectionCommand,
    backend_options,
    batch_options,
    dtype_option,
    engine_options,
    found_model_options,
    given,
    option,
    output_options,
)

if TYPE_CHECKING:
    from gemwright.bench.offline import Measured


@click.command(
    cls=SectionCommand,
    short_help="Load on the engine itself.",
    epilog="""\b
Examples:
  gemwright bench offline --concurrency 8 --input-len 256 --output-len 64
  gemwright bench offline --find-knee --max-num-seqs 32 --json""",
)
@click.argument("word", required=False, metavar="[MODEL]", shell_complete=complete_model)
@option("Load", "--num-prompts", "Requests in all; left out, 16, or as many as --concurrency.", type=int)
@option("Load", "--input-len", "Tokens of each prompt; left out, 128.", type=int)
@option("Load", "--output-len", "Tokens of each answer; left out, 64.", type=int)
@option("Load", "--concurrency", "Requests asked for at once, of which --max-num-seqs run; left out, 4.", type=int)
@option("Load", "--seed", "Of the random prompts; left out, 0.", type=int)
@option("Load", "--burst", "Send all requests at once.", is_flag=True)
@option(
    "Load",
    "--find-knee",
    "Double the users from 1 to --max-num-seqs until latency, throughput or memory bends, then send the most at once.",
    is_flag=True,
)
@option("Output", "--output", "Write the result to this file too.", type=click.Path())
@found_model_options
@dtype_option
@backend_options
@batch_options
@output_options
@click.pass_context
def offline(context: click.Context, /, word: str | None, **values: Any) -> None:
    """Answer random prompts and say how fast: tokens a second, time to the first token and between tokens.

    The knee is the last number of users before memory bends (a preemption, or 95 % of the K/V pool held), latency (the
    95th percentile between tokens more than doubles) or throughput (a doubling brings less than a tenth more).
    """
    from gemwright.bench.offline import CONCURRENCY, NUM_PROMPTS, Load, run_load, search_knee
    from gemwright.cli.asked import choose_model
    from gemwright.cli.load import load_model
    from gemwright.cli.measuring import measure_run
    from gemwright.cli.run import write_json
    from gemwright.errors import RequestError

    names = ("num_prompts", "input_len", "output_len", "concurrency", "seed")
    asked = given(values, names)
    if values["num_prompts"] is not None:
        # Left out, no more at once than there are.
        asked.setdefault("concurrency", max(1, min(CONCURRENCY, values["num_prompts"])))
    elif values["concurrency"] is not None:
        asked["num_prompts"] = max(NUM_PROMPTS, values["concurrency"])
    load = Load(**asked)
    if values["find_knee"] and (values["concurrency"] is not None or values["num_prompts"] is not None):
        raise RequestError("--find-knee chooses how many at once", remedy="leave --concurrency and --num-prompts out")
    if values["find_knee"] and values["burst"]:
        raise RequestError("--find-knee ends with a burst of its own", remedy="leave --burst out")
    if values["burst"] and values["concurrency"] is not None:
        raise RequestError("--burst sends all requests at once", remedy="leave --concurrency out; --num-prompts counts")
    require_writable(values["output"])
    llm = load_model(
        choose_model(word, context),
        revision=values["revision"],
        offline=values["offline"],
        options=engine_options(values),
    )
    # The first steps of a process set up what later ones find ready.
    run_load(llm, Load(1, min(16, load.input_len), 2, 1, seed=load.seed + 1_000_003))
    if values["find_knee"]:
        found = search_knee(llm, load, most=llm.core.limits.max_num_seqs, on_point=_show_point)
        content = {"model": llm.model, **found.to_dict()}
    else:
        content = {"model": llm.model, **run_load(llm, load, burst=values["burst"]).to_dict()}
    memory = measure_run(llm).to_dict()
    content["memory"] = {**memory, "process_bytes": memory["process"]["peak_bytes"]}
    content["machine"] = machine_facts()
    write_result(content, values["output"])
    if values["json"]:
        write_json(content)
    else:
        _show(content)


def _show_point(found: Measured) -> None:
    point = found.to_point()
    print(
        f"{point.concurrency:>5} users  {point.tokens_per_s:9.1f} tokens/s  {point.inter_token_ms_p95:9.1f} ms between "
        f"tokens (p95)  {point.ttft_ms_p95:9.1f} ms to the first  {point.num_preemptions} preempted",
        file=sys.stderr,
    )


def _show(content: dict[str, Any]) -> None:
    if "knee" in content:
        knee, burst = content["knee"], content["burst"]
        bent = knee["bent"]
        behind = "nothing bent up to there" if bent == "nothing" else f"behind it {bent} bends"
        print(f"knee: {knee['concurrency']} users, {knee['tokens_per_s']:.1f} tokens/s; {behind}")
        print(f"burst of {burst['concurrency']}: first token within {burst['ttft']['p95_ms']:.0f} ms for 95 %")
        return
    at_once, asked = content["max_running"], content["concurrency"]
    waited = "" if at_once == asked else f" of {asked} asked for"
    print(f"{content['tokens_per_s']:.1f} tokens/s, {at_once} at once{waited}, {content['seconds']:.2f} s in all")
    for name, title in (("ttft", "first token"), ("inter_token", "between tokens")):
        row = content[name]
        if row is not None:
            print(
                f"{title:<16}p50 {row['p50_ms']:.1f}  p95 {row['p95_ms']:.1f}  p99 {row['p99_ms']:.1f}  "
                f"std {row['std_ms']:.1f} ms"
            )
    print(f"preempted {content['num_preemptions']}, at most {content['pool_share']:.1%} of the K/V pool held")
