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

    def push(self, text: str) -> str:
        """Take text; return what no stop string can begin in any more."""
        if not self._stop or self.found is not None:
            return "" if self.found is not None else text
        text = self._held + text
        self._held = ""
        begins = [(text.find(stop), stop) for stop in self._stop]
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
