"""llama.cpp's K/V cache: cells, their bytes, and what changed from version to version. Knows no weights.

A model with sliding layers has two caches: one for full layers with a cell for every token of the context, and one for
sliding layers whose cells hold the window and one batch. Ollama's runner follows the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.planner.engines.layer_kinds import KindOfLayer
from gemwright.planner.engines.versions import too_old

DEFAULT_UBATCH: Final = 512
DEFAULT_BATCH: Final = 2048
"""Of the server's --batch-size, which a micro-batch cannot go beyond."""
_BLOCK_VALUES: Final = 32
CACHE_TYPES: Final[Mapping[str, int]] = {
    "f32": 128, "f16": 64, "bf16": 64, "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18,
}  # fmt: skip
"""Bytes of 32 values by the name of a cache type: quantized types have scales in them."""
_PLAIN_TYPES: Final = frozenset({"f32", "f16", "bf16"})
_OTHER_NAMES: Final = {"float32": "f32", "float16": "f16", "fp16": "f16", "half": "f16", "bfloat16": "bf16"}

_BUILD: Final = re.compile(r"b?(\d{3,6})", re.ASCII)
_DATE: Final = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?", re.ASCII)
_YEAR: Final = re.compile(r"20\d\d", re.ASCII)
_NEWEST_NAMES: Final = frozenset({"master", "main", "latest"})


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What a version of llama.cpp does."""

    has_window: bool = True
    """Sliding layers have a cache of their own size (PR 13194, 20 May 2025); before, all layers kept all tokens."""
    pads_alike: bool = True
    """256 cells always (PR 17046, 7 November 2025); before, 32 where flash attention is off."""
    has_streams: bool = True
    """A cache for each slot is possible, and the default where --parallel is given; before, one for all."""
    default_slots: int = 4
    """What the server takes without --parallel."""
    max_slots: int = 256
    """What it refuses to go beyond (PR 15916, 9 September 2025); before, 64."""


NEWEST_RULES: Final = CacheRules()

_Moment = tuple[tuple[int, int, int], int]
"""A date, and a build of about that date."""
_WINDOW_BEGINS: Final[_Moment] = ((2025, 5, 20), 5401)
_WINDOW_SETTLED: Final[_Moment] = ((2025, 6, 1), 5554)
_STREAMS: Final[_Moment] = ((2025, 7, 17), 5900)
_MORE_SLOTS: Final[_Moment] = ((2025, 9, 9), 6430)
_PADS_ALIKE: Final[_Moment] = ((2025, 11, 8), 7000)
_AUTOMATIC_SLOTS: Final[_Moment] = ((2025, 12, 1), 7200)
_NEWEST_KNOWN: Final[_Moment] = ((2026, 11, 30), 12_200)

_FIRST: Final[Mapping[str, _Moment]] = {
    "gemma2": ((2024, 6, 28), 3259),
    "gemma3": ((2025, 3, 12), 4875),
    "gemma4": ((2026, 4, 2), 8636),
}
"""What runs a family first: PR 8156, 12343, 21309."""


def cache_rules(version: str | None) -> CacheRules:
    """Return the rules of a version: a build such as "b5554", a date such as "2026-08"; None or "master": the newest.

    Raises UnsupportedError for what is neither, and for the builds of late May 2025, between two changes of the size of
    sliding caches. Limits between builds are exact to some tens of builds.
    """
    if version is None or version.strip().lower() in _NEWEST_NAMES:
        return NEWEST_RULES
    earliest, latest = _span(version)

    def since(moment: _Moment) -> bool:
        return earliest >= (moment[0] if len(earliest) == 3 else (moment[1],))

    def until(moment: _Moment) -> bool:
        return latest < (moment[0] if len(latest) == 3 else (moment[1],))

    if not since(_WINDOW_SETTLED) and not until(_WINDOW_BEGINS):
        raise UnsupportedError(
            "llama.cpp changed the size of sliding caches twice in these days, and no record tells which rule holds",
            value=version,
            limit="before 2025-05-20 (b5400), or from 2025-06 (b5554) on",
            remedy="name another version with --engine-version, or leave it out for the newest known",
        )
    return CacheRules(
        has_window=since(_WINDOW_SETTLED),
        pads_alike=since(_PADS_ALIKE),
        has_streams=since(_STREAMS),
        default_slots=4 if since(_AUTOMATIC_SLOTS) else 1,
        max_slots=256 if since(_MORE_SLOTS) else 64,
    )


def check_build(version: str | None, family: str) -> list[str]:
    """Return a note where a version is newer than all whose rules are known; else nothing.

    Raises UnsupportedError for one from before the family.
    """
    if version is None or version.strip().lower() in _NEWEST_NAMES:
        return []
    earliest, latest = _span(version)
    place = 0 if len(latest) == 3 else 1
    first, newest = ((moment[0], (moment[1],))[place] for moment in (_FIRST[family], _NEWEST_KNOWN))
    if latest < first:
        (year, month, day), build = _FIRST[family]
        raise too_old("llama.cpp", version, family, f"from b{build}, {year}-{month:02}-{day:02}, on")
    if earliest <= newest:
        return []
    return [f"the newest llama.cpp whose rules are known is of November 2026: {version} may size its memory otherwise"]


def _span(version: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the earliest and the latest point that a version may mean: dates of three numbers, builds of one."""
    date = _DATE.fullmatch(version.strip())
    if date is not None and 1 <= int(date[2]) <= 12:
        year, month, day = int(date[1]), int(date[2]), int(date[3] or 0)
        return (year, month, day or 1), (year, month, day or 31)
    if _YEAR.fullmatch(version.strip()) is not None:
        raise UnsupportedError(
            "a year alone is no version of llama.cpp",
            value=version,
            limit='a build such as "b5554", or a date such as "2026-08"',
            remedy=f"add the month, such as --engine-version {version.strip()}-08",
        )
    build = _BUILD.fullmatch(version.strip().lower())
    if build is not None:
        return (int(build[1]),), (int(build[1]),)
    raise UnsupportedError(
        "not a version of llama.cpp",
        value=version,
        limit='a build such as "b5554", or a date such as "2026-08"',
        remedy="change --engine-version, or leave it out for the newest known",
    )


def cache_type(name: str, flag: str) -> str:
    """Return the name of a cache type as llama.cpp spells it. Raises UnsupportedError for others."""
    found = _OTHER_NAMES.get(name.lower(), name.lower())
    if found not in CACHE_TYPES:
        raise UnsupportedError(
            "llama.cpp has no such cache type", value=name, limit=", ".join(CACHE_TYPES), remedy=f"change {flag}"
        )
    return found


def is_quantized(name: str) -> bool:
    """Return whether a cache type has less than 16 bits a value."""
    return name not in _PLAIN_TYPES


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What decides the cells, each decided."""

    n_ctx: int
    """Tokens of all slots together, as `-c` has it."""
    num_slots: int
    is_unified: bool
    """One cache for all slots; else each has its own, with its share of the context."""
    ubatch_size: int
    swa_full: bool
    flash_attention: bool
    type_k: str
    type_v: str
    rules: CacheRules


@dataclass(frozen=True, slots=True)
class CellCounts:
    """Cells of one layer, over all slots."""

    full: int
    sliding: int
    tokens_per_slot: int
    """The longest request that one slot can have, while the others leave it room."""


def count_cells(settings: CacheSettings, window: int | None) -> CellCounts:
    """Return the cells of a full and of a sliding layer. The context is rounded up first, then each slot's share."""
    step = 256 if settings.flash_attention or settings.rules.pads_alike else 32
    total = _pad(settings.n_ctx, 256)
    streams = 1 if settings.is_unified else settings.num_slots
    base = _pad(total // streams, 256)
    sliding = base
    if window is not None and settings.rules.has_window and not settings.swa_full:
        reach = window * (settings.num_slots if settings.is_unified else 1) + settings.ubatch_size
        sliding = min(_pad(min(base, reach), step), base)
    return CellCounts(base * streams, sliding * streams, base)


def cell_bytes(kind: KindOfLayer, settings: CacheSettings, widest: int) -> int:
    """Return the bytes of one cell in one layer, K and V together.

    Without flash attention V lies transposed, and then every layer's is as wide as the widest layer's. K equal to V
    saves nothing. Raises UnsupportedError for rows that a quantized type cannot hold.
    """
    value_width = kind.kv_width if settings.flash_attention else widest
    return _row_bytes(kind.kv_width, settings.type_k) + _row_bytes(value_width, settings.type_v)


def _row_bytes(width: int, name: str) -> int:
    if is_quantized(name) and width % _BLOCK_VALUES:
        raise UnsupportedError(
            "a row of the cache does not divide into blocks of this type",
            value=f"{width} values, {name}",
            limit=f"a multiple of {_BLOCK_VALUES} values",
            remedy="use --cache-type-k f16 --cache-type-v f16",
        )
    return width * CACHE_TYPES[name] // _BLOCK_VALUES


def _pad(number: int, step: int) -> int:
    return -(-number // step) * step
