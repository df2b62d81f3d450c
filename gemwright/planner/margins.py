"""Margins: an estimate in which parts of the ledger are larger by a factor, for those who want room.

Every answer of a plan goes through here, so that what fits, how long, how many and what would help say the same.
"""

from __future__ import annotations

from dataclasses import replace

from gemwright.planner.estimate import Estimate, estimate
from gemwright.planner.ledger import Ledger, section_key
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader

_CACHE = "K/V cache"


def estimate_with_margin(header: ModelHeader, settings: PlanSettings) -> Estimate:
    """Return what the engine will hold, with the margins of `settings`. Raises what an estimate raises."""
    return with_margin(estimate(header, settings), settings)


def with_margin(found: Estimate, settings: PlanSettings) -> Estimate:
    """Return an estimate with the margins of `settings` in its ledger and in the bytes needed.

    A margin for a part that this ledger does not have changes nothing: `Ledger.with_margin` refuses it. What is needed
    grows by the margin of K/V as far as the requests asked for need K/V, however large the pool is. vLLM's cache is the
    rest of a share, so that it shrinks by what the margins add around it.
    """
    parts = {section_key(section) for section in found.ledger.sections()}
    margin = {name: factor for name, factor in settings.margin.items() if name in parts}
    if not margin:
        return found
    whole = found.ledger.with_margin(margin)
    if found.needed_bytes == found.ledger.total_bytes:
        return replace(found, ledger=whole, needed_bytes=whole.total_bytes)
    factor = margin.get("kv", 1.0)
    least_bytes = found.kv.bytes_per_sequence * (settings.max_num_seqs or 1)
    plain_bytes = _with_cache(found.ledger, least_bytes).total_bytes
    least = _with_cache(whole, round(least_bytes * factor))
    # Where only a share of the memory may be taken, the bytes needed are more than the lines, in this proportion.
    needed_bytes = -(-found.needed_bytes * least.total_bytes // plain_bytes)
    if _is_rest(found, settings):
        around_bytes = least.total_bytes - cache_bytes(least) - plain_bytes + least_bytes
        rest_bytes = cache_bytes(found.ledger) - around_bytes
        whole = _with_cache(whole, max(cache_bytes(least), rest_bytes), "the rest, less what margins add")
    return replace(found, ledger=whole, needed_bytes=needed_bytes)


def cache_bytes(ledger: Ledger) -> int:
    """Return the K/V cache in the ledger's own place."""
    return sum(line.size_bytes for line in ledger.select(_CACHE) if line.place == ledger.place)


def _is_rest(found: Estimate, settings: PlanSettings) -> bool:
    facts = found.engine_facts.get("vllm")
    return facts is not None and facts["available_kv_bytes"] is not None and settings.available_kv_bytes is None


def _with_cache(ledger: Ledger, size_bytes: int, formula: str | None = None) -> Ledger:
    """Return the ledger with a K/V cache of another size in its first line of one, and none in the others."""
    lines = []
    left_bytes = size_bytes
    for line in ledger.lines:
        if line.section == _CACHE and line.place == ledger.place:
            line, left_bytes = replace(line, size_bytes=left_bytes, formula=formula or line.formula), 0
        lines.append(line)
    return replace(ledger, lines=tuple(lines))
