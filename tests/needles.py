"""Long prompts with a fact to be found again, for the default model: deterministic text, no download."""

from __future__ import annotations

from collections.abc import Callable, Sequence

NEEDLE = "The secret number of the lighthouse keeper is 48213."
QUESTION = "\n\nThe secret number of the lighthouse keeper is"
PLACES = ["the harbor", "the mill", "the old bridge", "a quiet street", "the market", "the north gate", "the orchard"]
THINGS = ["a lantern", "three boats", "a red door", "the morning bread", "a broken clock", "wet ropes", "a tall ladder"]
VERBS = ["saw", "sold", "carried", "painted", "repaired", "counted", "forgot"]
NAMES = ["Anna", "Bertil", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya"]


def needle_ids(encode: Callable[[str], Sequence[int]], length: int) -> list[int]:
    """Return exactly `length` ids: filler with the needle a third of the way in, and the question at the end.

    `encode` must put BOS first.
    """
    sentences = (
        f"On day {day}, {NAMES[day % 11]} {VERBS[day % 7]} {THINGS[(day * 3) % 7]} near {PLACES[(day * 5) % 7]}, "
        f"and {NAMES[(day * 7 + 3) % 11]} wrote it down on page {day * 13 % 997}."
        for day in range(1, length)
    )
    filler = list(encode(" ".join(sentences)))
    needle = list(encode(" " + NEEDLE))[1:]
    question = list(encode(QUESTION))[1:]
    place = length // 3
    rest = length - len(needle) - len(question)
    ids = [*filler[:place], *needle, *filler[place:rest], *question]
    assert len(ids) == length
    return ids
