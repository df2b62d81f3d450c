"""Published memory records of other engines come out within their class, and docs/ledger.md says so."""

from __future__ import annotations

import pytest

from docs.ledger_records import NOT_COMPARED, RATES, READINGS, RECORDS, carry_out, rate_of
from docs.write_ledger import DOCUMENT, document

CLAIMED = ("llamacpp_kv", "vllm_kv", "weights")
BY_ID = {record["id"]: record for record in RECORDS}


def is_claimed(name: str) -> bool:
    record = BY_ID[name]
    return record["category"] in CLAIMED and record["reproduced"]


@pytest.mark.parametrize("name", [name for name in READINGS if is_claimed(name)])
def test_a_reproduced_record_is_within_its_class(name: str) -> None:
    claimed = [result for result in carry_out(READINGS[name]) if result.tolerance is not None]
    assert claimed
    assert not [result for result in claimed if not result.is_met]


def test_kv_and_parameters_are_claimed_exactly() -> None:
    """Only sizes from recipes and numbers from printed GiB may be off, by their stated shares."""
    for name in READINGS:
        for result in carry_out(READINGS[name]):
            is_size = any(word in result.what for word in ("size", "file", "loaded", "ollama ps", "saves"))
            if BY_ID[name]["category"] == "llamacpp_kv" or "parameters" in result.what:
                assert result.tolerance == 0.0
            elif not is_size:
                assert result.tolerance is not None
                assert result.tolerance <= 0.01


def test_every_reproduced_record_is_compared_but_gemma_3n() -> None:
    left_out = {name for name in NOT_COMPARED if is_claimed(name)}
    assert left_out == {"lcpp-3n-32k", "w-google-table-2026b"}
    assert set(BY_ID) == set(READINGS) | set(RATES) | set(NOT_COMPARED)


@pytest.mark.parametrize("name", RATES)
def test_a_published_rate_is_inside_the_band(name: str) -> None:
    low, _, high = rate_of(RATES[name])
    assert low <= RATES[name].tokens_per_s <= high


def test_the_page_is_what_the_planner_says() -> None:
    assert document() == DOCUMENT.read_text(encoding="utf-8"), "run python -m docs.write_ledger"
