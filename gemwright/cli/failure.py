"""What a user sees when something goes wrong: one short block on stderr, and the exit code."""

from __future__ import annotations

import sys
import traceback

import click

from gemwright.errors import CapacityError, CheckpointError, GemwrightError


def report_failure(error: Exception, *, debug: bool) -> int:
    """Print what went wrong, with the traceback if `debug`, and return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show(file=sys.stderr)
        return error.exit_code
    if debug:
        traceback.print_exception(error)
    if isinstance(error, MemoryError):
        error = CapacityError("memory ran out", remedy="use a smaller model, --dtype bfloat16 or a shorter context")
    if isinstance(error, OSError):
        error = _file_error(error)
    if isinstance(error, GemwrightError):
        print(f"error: {error.describe()}", file=sys.stderr)
        return error.exit_code
    remedy = "" if debug else "\n  remedy: --debug shows where"
    print(f"error: unforeseen {type(error).__name__}: {_first_line(error)}{remedy}", file=sys.stderr)
    return GemwrightError.exit_code


def _file_error(error: OSError) -> GemwrightError:
    """Say which file could not be read, or that the answer could not be written."""
    if error.filename is not None:
        return CheckpointError(
            f"{error.filename} cannot be read or written",
            value=error.strerror,
            remedy="look at the path, its permissions and the space on its disk",
        )
    return GemwrightError("the output cannot be written", value=error.strerror, remedy="look at where stdout goes")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
