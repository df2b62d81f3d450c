"""Writes docs/ledger.md: what the ledger counts, how exact each line is, and every published record beside our number.

    .venv/bin/python -m docs.write_ledger

The records stand in tests/data/memory_records.json, how they are read in docs/ledger_records.py; the tests compare the
page and hold every record to its class.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docs.ledger_records import NOT_COMPARED, RATES, READINGS, RECORDS, Result, carry_out, rate_of

DOCUMENT = Path(__file__).with_name("ledger.md")


def document() -> str:
    """Return docs/ledger.md."""
    return f"""# The ledger

`gemwright plan MODEL` says what a model will take before it runs: from headers alone, without torch. The first line
below, with --offline, is answered in 0.3 s, the start of Python included (median of eight on two cores of a server;
0.6 s where Python keeps no compiled files). A hub that is asked adds its client, 0.4 s, and its answers. For our own
engine the plan is the allocation (`memory/engine_plan.py`): `run` and `batch` print it beside what was allocated and
what is in use. For other engines it follows their published rules, version by version.

```bash
gemwright plan google/gemma-4-31B-it --memory 80GiB
gemwright plan google/gemma-4-12B-it --engine vllm --device-name H100 --emit vllm
gemwright plan google/gemma-4-E4B-it --versus google/gemma-4-12B-it --offline
gemwright plan --here --advise
```

## What is counted, and how exactly

| line | how | error |
|---|---|---|
| parameters | every tensor of the spec | exact |
| weights, from a header | the header's own sizes, fetched by ranges | exact |
| weights, from a recipe | the type of each tensor, its fallback where rows do not divide | 0.5 %; K-quants 2 % |
| K/V of gemwright | the blocks that the engine allocates | exact |
| K/V of vLLM | pages, padded groups, batches in flight, by version | exact from bytes; 0.1 % from printed GiB |
| K/V of llama.cpp and Ollama | cells, slots, windows, types | exact to the printed 0.01 MiB |
| workspace of gemwright | the buffers that the engine allocates | exact |
| process of gemwright | in use before; Python, torch or kernels, tokenizer | 5 % or 64 MiB; calibrated, 1 % or 16 MiB |
| compute buffers, contexts, graphs of others | fitted to published logs | the bar on the line |
| decode and prefill time | roofline with a measured share of it | the band beside the number |

Every line of `--json` has its bytes, place, phase, formula, source and error bar. Sizes are binary: 1 GiB is 1024^3
bytes, and `--memory` takes both GiB and GB. A gate for builds is `--assert-fits 24GiB`: exit code 4 says that it does
not fit. An engine without a confirmed formula, such as TGI, is answered with UNKNOWN and why, which is no failure.

A run on a CPU keeps what its process took beside the ledger (below `calibration/` in Gemwright's cache folder, the last
20 runs of this machine, these versions and one backend), and `--here` plans with it. `GEMWRIGHT_NO_CALIBRATION=1`
switches that off. `gemwright bench memory [MODEL]` measures it on purpose.

`--advise` walks from config to settings and writes a report with pictures; its table of plans is meant to be kept
beside your code.

## Published records

{len(RECORDS)} records of other engines, from public logs and issues. "exact" is equal to the last printed digit. Of
what is compared by share, {summary()}.

| record | number | published | ours | error | verdict |
|---|---|---|---|---|---|
{table()}

## Records without a comparison

| record | why |
|---|---|
{absent()}

## Published speed

| record | published tokens/s | ours (band) | verdict |
|---|---|---|---|
{rates()}
"""


def results() -> Iterator[tuple[str, bool, Result]]:
    """Yield every number: the record's id, whether the record reproduces, and the number beside ours."""
    reproduced = {record["id"]: bool(record["reproduced"]) for record in RECORDS}
    for name, reading in READINGS.items():
        for result in carry_out(reading):
            yield name, reproduced[name], result


def summary() -> str:
    """Return the mean signed error and the worst of each sign."""
    errors = [
        (result.error, f"{name} ({result.what})") for name, _, result in results() if result.ours != result.published
    ]
    mean = sum(error for error, _ in errors) / len(errors)
    low, high = min(errors), max(errors)
    return (
        f"the mean signed error is {mean:+.2%}, the largest under-prediction {low[0]:+.2%} in {low[1]}, the largest "
        f"over-prediction {high[0]:+.2%} in {high[1]}; predicting too little is the worse mistake"
    )


def table() -> str:
    """Return the rows of the comparison."""
    rows = []
    for name, _, result in results():
        ours = f"{result.ours:,.{result.digits}f}"
        rows.append(
            f"| {name} | {result.what} | {result.published:,.{result.digits}f} | {ours} | {result.error:+.3%} | "
            f"{_verdict(result)} |"
        )
    return "\n".join(rows)


def _verdict(result: Result) -> str:
    if round(result.ours, result.digits) == result.published:
        return "exact"
    if result.tolerance is None:
        return "shown"
    return f"within {result.tolerance:.1%}" if result.is_met else "MISSED"


def absent() -> str:
    """Return the rows of what is not compared."""
    return "\n".join(f"| {name} | {reason} |" for name, reason in NOT_COMPARED.items())


def rates() -> str:
    """Return the rows of speed."""
    rows = []
    for name, rate in RATES.items():
        low, middle, high = rate_of(rate)
        verdict = "inside" if low <= rate.tokens_per_s <= high else "OUTSIDE"
        rows.append(f"| {name} | {rate.tokens_per_s:g} | {middle:.1f} ({low:.1f} to {high:.1f}) | {verdict} |")
    return "\n".join(rows)


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
