"""What was once worked out of a model's header, for planners that ask the same of it again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from gemwright.spec.model_header import ModelHeader

_MOST_KEPT: Final = 64

Found = TypeVar("Found")


class Kept(Generic[Found]):
    """Answers about headers, each worked out once; all are forgotten where they become too many."""

    def __init__(self) -> None:
        # The header stays with what was found, so that its id stays its own.
        self._answers: dict[tuple[object, ...], tuple[ModelHeader, Found]] = {}

    def find(self, header: ModelHeader, asked: tuple[object, ...], work_out: Callable[[], Found]) -> Found:
        """Return what is known of a header for `asked`, all that the answer depends on beside it."""
        key = (id(header), *asked)
        kept = self._answers.get(key)
        if kept is None:
            if len(self._answers) == _MOST_KEPT:
                self._answers.clear()
            kept = self._answers[key] = header, work_out()
        return kept[1]
