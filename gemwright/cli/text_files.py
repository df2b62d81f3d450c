"""Texts on the command line that may lie in a file: @FILE stands for what FILE holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gemwright.errors import CheckpointError


class TextOrFile(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """A text, or @FILE to read it from a file of UTF-8."""

    name = "text|@file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. Raises CheckpointError for a file that cannot be read as text."""
        if not isinstance(value, str) or not value.startswith("@"):
            return str(value)
        path = Path(value[1:])
        if not path.is_file():
            raise CheckpointError("the file is missing", value=path, remedy="look at what follows the @")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path} is not UTF-8 text", value=error.reason, remedy="write it as UTF-8") from None
