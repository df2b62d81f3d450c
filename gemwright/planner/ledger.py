"""The ledger: what something holds, line by line, with where each number comes from and how far off it may be.

Refuses to know what a model is; estimates make the lines, this adds, compares and shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemwright.errors import RequestError, show_bytes
from gemwright.planner.settings import MOST_MARGIN

Place = Literal["gpu", "ram", "mmap", "disk"]
"""gpu: memory of each accelerator. ram: memory of the process. mmap: pages of a file that the system may drop. disk."""

Phase = Literal["steady", "load", "capture", "step", "request"]
"""steady: held while the engine lives. The others come on top for a while: while loading, while graphs are captured,
during a step, while a request's media are encoded."""

PART_SEPARATOR = ": "
"""A line's name is its section, this, and what is meant: "weights: embedding"."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that takes memory."""

    name: str
    """Section and subject: "weights: embedding", "K/V cache: 3 full layers"."""
    size_bytes: int
    place: Place
    phase: Phase
    formula: str
    """How the size comes about, with its numbers: "262144 x 640 x 2 B"."""
    source: str
    """Where these numbers stand: a config key, a tensor, a header, a measurement."""
    error_bytes: int = 0
    """How far off it may be, either way; 0: exact."""

    @property
    def section(self) -> str:
        """What the line belongs to: "weights", "K/V cache", "workspace"..."""
        return self.name.partition(PART_SEPARATOR)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "name": self.name,
            "bytes": self.size_bytes,
            "place": self.place,
            "phase": self.phase,
            "formula": self.formula,
            "source": self.source,
            "error_bytes": self.error_bytes,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """What changes in one line between two ledgers; None on the side that has no such line."""

    name: str
    before: Line | None
    after: Line | None

    @property
    def change_bytes(self) -> int:
        """Bytes more (or, below zero, less) in the second ledger."""
        return (self.after.size_bytes if self.after else 0) - (self.before.size_bytes if self.before else 0)

    @property
    def reason(self) -> str:
        """The two formulas beside each other."""
        if self.before is None or self.after is None:
            only = self.after or self.before
            return "" if only is None else f"{'new' if self.before is None else 'gone'}: {only.formula}"
        return f"{self.before.formula} -> {self.after.formula}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """All lines of one plan. `place` is the memory that the question "does it fit" is about."""

    lines: tuple[Line, ...]
    place: Place = "ram"

    def add(self, *lines: Line) -> Ledger:
        """Return the ledger with more lines."""
        return replace(self, lines=self.lines + lines)

    def select(self, section: str) -> tuple[Line, ...]:
        """Return the lines of a section, such as "weights"."""
        return tuple(line for line in self.lines if line.section == section)

    def sections(self) -> tuple[str, ...]:
        """Return the sections in the order in which they first appear."""
        return tuple(dict.fromkeys(line.section for line in self.lines))

    def steady_bytes(self, place: Place | None = None) -> int:
        """Return what is held all the time in a place, the ledger's own where none is named."""
        return self._sum("steady", place or self.place)

    @property
    def total_bytes(self) -> int:
        """The most held at once in the ledger's place: what is steady, and the largest of the passing phases."""
        return max(self.held_bytes(phase) for phase in (*_PASSING, "steady"))

    @property
    def peak_phase(self) -> Phase:
        """The phase in which the most is held."""
        phases: tuple[Phase, ...] = ("steady", *_PASSING)
        return max(phases, key=self.held_bytes)

    def held_bytes(self, phase: Phase) -> int:
        """Return what is held in the ledger's place during a phase; while a model is loaded neither its cache nor the
        buffers of a step are there."""
        passing = 0 if phase == "steady" else self._sum(phase, self.place)
        if phase != "load":
            return self.steady_bytes() + passing
        later = sum(
            line.size_bytes
            for line in self.lines
            if line.phase == "steady" and line.place == self.place and line.section in _AFTER_LOAD
        )
        return self.steady_bytes() - later + passing

    @property
    def error_bytes(self) -> int:
        """How far off the total may be: the sum of the error bars of the lines that make it up."""
        counted = {"steady", self.peak_phase}
        return sum(line.error_bytes for line in self.lines if line.place == self.place and line.phase in counted)

    def with_margin(self, margin: Mapping[str, float]) -> Ledger:
        """Return the ledger with sections multiplied, such as {"weights": 1.1, "kv": 1.5}.

        Names are sections, in lower case and without "/ cache": weights, kv, workspace, runtime... Raises RequestError
        for a section that no line has, and for a factor beyond MOST_MARGIN.
        """
        for name, factor in margin.items():
            if not 0 < factor <= MOST_MARGIN:
                raise RequestError(
                    "--margin is no factor for room",
                    value=f"{name}={factor:g}",
                    limit=f"above 0, at most {MOST_MARGIN}",
                    remedy="write --margin weights=1.1,kv=1.5",
                )
        keys = {section: section_key(section) for section in self.sections()}
        unknown = sorted(set(margin) - set(keys.values()))
        if unknown:
            raise RequestError(
                "--margin names a part that the ledger does not have",
                value=", ".join(unknown),
                limit=", ".join(dict.fromkeys(keys.values())),
                remedy="write --margin weights=1.1,kv=1.5",
            )
        return replace(self, lines=tuple(_scaled(line, margin.get(keys[line.section], 1.0)) for line in self.lines))

    def difference(self, other: Ledger) -> tuple[Difference, ...]:
        """Return what changes from this ledger to another, line by line, the largest change first.

        Lines pair up by section and subject without their counts, so that "26 sliding layers" meets "29 sliding
        layers".
        """
        before = {_pairing(line.name): line for line in self.lines}
        after = {_pairing(line.name): line for line in other.lines}
        rows = [Difference(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
        return tuple(sorted((row for row in rows if row.before != row.after), key=lambda row: -abs(row.change_bytes)))

    def table(self) -> list[str]:
        """Return the lines for people, one each, with the sums below."""
        shown = [*self.lines]
        width = max((len(line.name) for line in shown), default=0) + 2
        rows = [
            f"{line.name:<{width}}{show_bytes(line.size_bytes):>12}{_bar(line.error_bytes):>14}  "
            f"{line.place:<5}{'' if line.phase == 'steady' else line.phase:<8} {line.formula}"
            for line in shown
        ]
        total = f"{'in all':<{width}}{show_bytes(self.total_bytes):>12}{_bar(self.error_bytes):>14}  {self.place}"
        peak = "" if self.peak_phase == "steady" else f", most while a {_PHASE_WORDS[self.peak_phase]}"
        return [*rows, f"{total}{peak}"]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the lines as the JSON output has them."""
        return [line.to_dict() for line in self.lines]

    def _sum(self, phase: Phase, place: Place) -> int:
        return sum(line.size_bytes for line in self.lines if line.phase == phase and line.place == place)


_PASSING: tuple[Phase, ...] = ("load", "capture", "step", "request")
_AFTER_LOAD = ("K/V cache", "workspace", "host")
_PHASE_WORDS: Mapping[Phase, str] = {
    "load": "model is loaded",
    "capture": "graph is captured",
    "step": "step runs",
    "request": "request's media are encoded",
}


def section_key(section: str) -> str:
    """Return the short name of a section, as `--margin` takes it: "K/V cache" is kv."""
    return "kv" if section == "K/V cache" else section.lower().replace(" ", "_")


def join(ledgers: Iterable[Ledger], place: Place) -> Ledger:
    """Return one ledger with the lines of several."""
    return Ledger(tuple(line for ledger in ledgers for line in ledger.lines), place)


def _scaled(line: Line, factor: float) -> Line:
    if factor == 1.0:
        return line
    return replace(line, size_bytes=round(line.size_bytes * factor), formula=f"{factor:g} x ({line.formula})")


def _bar(error_bytes: int) -> str:
    return f"+-{show_bytes(error_bytes)}" if error_bytes else ""


def _pairing(name: str) -> str:
    return " ".join(word for word in name.split() if not word.replace(",", "").isdigit())
