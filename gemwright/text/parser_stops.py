"""Stop strings in text that comes in pieces. Knows nothing of what the text is."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Lets text through up to a stop string, and holds back what may begin one.

    The stop string that is complete first ends the text, the longest one if several are complete with the same
    character: so where the text ends does not depend on how it is cut.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Take text; return what no stop string can begin in any more.

        may_stop: False lets stop strings that are complete in this text through; one may still begin in it.
        """
        if not self._stop or self.found is not None:
            return "" if self.found is not None else text
        num_held = len(self._held)
        text = self._held + text
        self._held = ""
        # What is complete in the text held back was let through.
        begins = [(text.find(stop, max(0, num_held - len(stop) + 1)), stop) for stop in self._stop if may_stop]
        complete = [(begin + len(stop), begin, stop) for begin, stop in begins if begin >= 0]
        if complete:
            _, begin, self.found = min(complete)
            return text[:begin]
        keep = self._begun(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Return what is held back, since no more text can complete it."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """Return where the longest tail starts that begins a stop string, the text's length if there is none."""
        first = max(0, len(text) - self._longest + 1)
        found = len(text)
        for stop in self._stop:
            place = text.find(stop[0], max(first, len(text) - len(stop) + 1))
            while 0 <= place < found:
                if stop.startswith(text[place:]):
                    found = place
                    break
                place = text.find(stop[0], place + 1)
        return found
