"""Every error Gemwright raises on purpose, and the one table that turns it into an exit code and an HTTP status.

An error names four things where it can: what is wrong, the value met, the limit, and a remedy.
"""

from __future__ import annotations


class GemwrightError(Exception):
    """Base of all errors raised on purpose.

    `what` names the field, file or tensor; `value` and `limit` are printed as given; `remedy` says what to do next, and
    is that of the class where it is left out.
    """

    exit_code = 1
    http_status = 500
    default_remedy = "--debug shows where"

    def __init__(
        self,
        what: str,
        *,
        value: object = None,
        limit: object = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.value = value
        self.limit = limit
        self.remedy = remedy or self.default_remedy
        super().__init__(what)

    def __str__(self) -> str:
        return self.describe()

    def describe(self) -> str:
        """Return the message as a short block of lines, one fact a line."""
        lines = [self.what]
        if self.value is not None:
            lines.append(f"value: {self.value}")
        if self.limit is not None:
            lines.append(f"limit: {self.limit}")
        lines.append(f"remedy: {self.remedy}")
        return "\n  ".join(lines)


def show_bytes(size: int) -> str:
    """Return a size for people: GiB, MiB or KiB from one of them on, else bytes."""
    for unit, name, digits in ((30, "GiB", 2), (20, "MiB", 1), (10, "KiB", 1)):
        if size >= 1 << unit:
            return f"{size / (1 << unit):.{digits}f} {name}"
    return f"{size} bytes"


def show_both_bytes(size: int, limit: int) -> tuple[str, str]:
    """Return two sizes for people, with their exact bytes where they would read the same."""
    texts = show_bytes(size), show_bytes(limit)
    if texts[0] != texts[1] or size == limit:
        return texts
    return f"{texts[0]} ({size} bytes)", f"{texts[1]} ({limit} bytes)"


class RequestError(GemwrightError):
    """The request or the command line is wrong: bad ids, empty prompt, prompt over the context."""

    exit_code = 2
    http_status = 400
    default_remedy = "change the request to keep to what is allowed"


class PromptTooLongError(RequestError):
    """The prompt leaves no room for an answer in the context."""


class UnsupportedError(GemwrightError):
    """The model, the file or the option is understood and refused."""

    exit_code = 3
    http_status = 400
    default_remedy = "use one of the models and options that README names"


class CapacityError(GemwrightError):
    """It does not fit in the memory that is there or was allowed."""

    exit_code = 4
    http_status = 503
    default_remedy = "allow more memory, or ask for less"


class CheckpointError(GemwrightError):
    """A file is missing, damaged, or says something that cannot be true."""

    exit_code = 5
    http_status = 500
    default_remedy = "fetch the file again, or write it anew"
