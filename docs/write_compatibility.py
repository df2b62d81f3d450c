"""Writes docs/compatibility.md: what works, what is refused and why, from the declarations and the refusals themselves.

    .venv/bin/python -m docs.write_compatibility

The rows stand in docs/compatibility_rows.py; the tests compare the page and try every row.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from docs import compatibility_rows as rows
from docs.compatibility_rows import Row

DOCUMENT = Path(__file__).with_name("compatibility.md")

MATRIX_COLUMNS = ("safetensors, float32", "safetensors, bfloat16", "GGUF, float32", "GGUF, bfloat16", "float16")
MATRIX_ROWS = {
    "Gemma 2": "gemma2",
    "Gemma 3, sizes below 4B": "gemma3",
    "Gemma 3 from 4B on": "gemma3-linear",
    "Gemma 4 E2B, E4B": "gemma4-e",
    "Gemma 4 12B": "gemma4-unified",
    "Gemma 4 26B-A4B": "gemma4-moe",
    "Gemma 4 31B": "gemma4-k-equals-v",
}
"""Which tiny model shows the cells of a row."""


def document() -> str:
    """Return docs/compatibility.md."""
    return f"""# What works and what is refused

Nothing is accepted and ignored: what Gemwright cannot do right it refuses, before it loads anything, with the value,
the limit and a way out. Written by `python -m docs.write_compatibility`: reasons and remedies are those of the errors,
which are raised while this page is written, and a test tries every row. `gemwright doctor MODEL` says the same of one
model on one machine.

"refused" ends a command with exit code 3, or 5 where a file is missing. "not there" means that there is no flag for it.

## Families

{table(rows.FAMILIES)}

In every format and dtype:

{matrix()}

Models that were made of these:

{table(rows.RELATIVES)}

Models that are known by their `model_type` in config.json, or by their architecture in GGUF:

{by_type()}

Classes in `architectures` that are no language model:

{table(rows.BY_CLASS)}

## Changed models

A config that asks for what no published Gemma has is another model:

{table(rows.CHANGES)}

## File formats

{table(rows.FORMATS)}

Encodings of tensors:

| File | Read | Refused |
| --- | --- | --- |
| GGUF | {listed(rows.GGUF_READ)} | {listed(rows.GGUF_REFUSED)} |
| safetensors | {listed(rows.SAFETENSORS_READ)} | {listed(rows.SAFETENSORS_REFUSED)} |

GGUF files called Q4_K_M, Q5_K_S and so on are mixtures of these encodings.

## Dtypes

{table(rows.COMPUTED_IN)}

## Devices and kernels

{table(rows.DEVICES_AND_KERNELS)}

## Features

{table(rows.FEATURES)}
"""


def table(found: Iterable[Row]) -> str:
    """Return a table of rows: what, state, and why with its remedy, or how far."""
    lines = ["| What | State | Why, or how far | What to do |", "| --- | --- | --- | --- |"]
    for row in found:
        why, remedy = reason(row)
        lines.append(f"| {' | '.join(cell(text) for text in (row.name, row.state, why, remedy))} |")
    return "\n".join(lines)


def reason(row: Row) -> tuple[str, str]:
    """Return why a row is refused and what to do, from its error; for others the note."""
    if row.state == "not there":
        return "", row.note
    if row.refusal is None:
        return row.note, ""
    error = row.error()
    what = error.what
    for source in ("config.json: ", "model.gguf: ", "the folder: ", "the folder/"):
        what = what.removeprefix(source)
    limit = "" if error.limit is None else f" (possible: {error.limit})"
    return what + limit, error.remedy


def by_type() -> str:
    """Return the table of models that are refused by their type."""
    lines = ["| Model | Known as | Why | What to do |", "| --- | --- | --- | --- |"]
    for row, types in rows.BY_TYPE:
        why, remedy = reason(row)
        named = ", ".join(f"`{name}`" for name in types)
        lines.append(f"| {cell(row.name)} | {named} | {cell(why)} | {cell(remedy)} |")
    return "\n".join(lines)


def matrix() -> str:
    """Return the table of families by format and dtype."""
    lines = [f"| | {' | '.join(MATRIX_COLUMNS)} |", f"| --- {'| --- ' * len(MATRIX_COLUMNS)}|"]
    for name in MATRIX_ROWS:
        cells = ["refused" if column in rows.REFUSED_DTYPES else "works" for column in MATRIX_COLUMNS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def listed(names: Iterable[str]) -> str:
    """Return names with commas between."""
    return ", ".join(sorted(names))


def cell(text: str) -> str:
    """Return a text as one cell can hold it."""
    return text.replace("|", r"\|").replace("\n", " ")


if __name__ == "__main__":
    DOCUMENT.write_text(document())
