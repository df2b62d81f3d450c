"""docs/compatibility.md is what the declarations and the refusals say now; tests/end_to_end tries each of its rows."""

from __future__ import annotations

import pytest

from docs import compatibility_rows as rows
from docs.compatibility_rows import Row
from docs.write_compatibility import DOCUMENT, document
from gemwright.cli.program import program
from gemwright.config import EngineConfig
from gemwright.engine.request import SamplingParams
from gemwright.errors import CheckpointError, UnsupportedError

TABLES = (
    *(rows.FAMILIES, rows.RELATIVES, rows.BY_CLASS, rows.CHANGES, rows.FORMATS, rows.COMPUTED_IN),
    *(rows.DEVICES_AND_KERNELS, rows.FEATURES, tuple(row for row, _ in rows.BY_TYPE)),
)
ROWS = [row for table in TABLES for row in table]


def name_of(row: Row) -> str:
    return row.name


def test_the_page_is_what_the_declarations_say() -> None:
    assert DOCUMENT.read_text() == document(), "write it anew: python -m docs.write_compatibility"


@pytest.mark.parametrize("row", [row for row in ROWS if row.state == "refused"], ids=name_of)
def test_what_is_refused_says_what_to_do(row: Row) -> None:
    error = row.error()
    assert isinstance(error, UnsupportedError | CheckpointError)
    assert error.what
    assert error.remedy not in ("", UnsupportedError.default_remedy, CheckpointError.default_remedy)


@pytest.mark.parametrize("row", [row for row in ROWS if row.state == "not there"], ids=name_of)
def test_what_is_not_there_has_no_flag_and_no_verb(row: Row) -> None:
    # `plan` also weighs what other engines would run, and what this one does not run yet.
    verbs = {name: command for name, command in program.commands.items() if name != "plan"}
    flags = {flag for command in verbs.values() for parameter in command.params for flag in parameter.opts}
    fields = {*EngineConfig.__dataclass_fields__, *SamplingParams.__dataclass_fields__}
    named = {name.removeprefix("--").replace("-", "_") for name in row.absent}
    assert not {*flags, *verbs} & set(row.absent)
    assert not fields & named
    assert row.note, "what stands in its place"


def test_no_two_rows_of_a_table_have_one_name() -> None:
    for table in TABLES:
        assert len({row.name for row in table}) == len(table)
