"""The command line: `main` runs a verb and turns whatever it raises into a short message and an exit code.

Each verb is one small file and imports what it needs when it runs, so that `--help` is instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the signal's number, as shells count."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gemwright` with these words (left out: the process's own) and return the exit code."""
    # Inside the try, since an interrupt may come while modules are being imported.
    debug = False
    if sys.stderr is None:  # closed by whoever started us
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # open as long as the process
    if sys.stdout is None:
        print("error: stdout is closed, and the answer goes there\n  remedy: open it", file=sys.stderr)
        return 1
    try:
        from gemwright.cli.completion import answer_shell
        from gemwright.cli.options import Settings
        from gemwright.cli.program import program

        settings = Settings()
        try:
            _write_what_the_terminal_cannot_show_as_question_marks()
            if arguments is None and (code := answer_shell(program, settings)) is not None:
                return code
            words = sys.argv[1:] if arguments is None else list(arguments)
            with program.make_context("gemwright", words, obj=settings) as context:
                program.invoke(context)
            sys.stdout.flush()
        finally:
            debug = settings.debug
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return 1
    except Exception as error:
        from gemwright.cli.failure import report_failure

        return report_failure(error, debug=debug)
    return 0


def _write_what_the_terminal_cannot_show_as_question_marks() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _drop_stdout() -> None:
    """Whoever read our output has gone: let Python's own last flush go nowhere instead of complaining."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
