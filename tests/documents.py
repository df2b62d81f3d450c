"""Reads README.md and docs/*.md the way a reader with a terminal does: which commands and programs they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])

OUR_COLUMN = "Gemwright"
"""Tables that set programs side by side have a column of this name; what stands in the others is another program's."""

_FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_HEREDOC = re.compile(r"(?<!<)<<-?(?!<)\s*['\"]?(\w+)['\"]?")
_EXPECTED_CODE = re.compile(r"#\s*exit code (\d+)$")


@dataclass(frozen=True)
class Command:
    """One command of a document, as it would be typed: one line, or several that belong together."""

    document: str
    line: int
    text: str
    is_side_by_side: bool = False
    """Whether it stands in our column of a table that sets programs side by side."""

    @property
    def where(self) -> str:
        """Return where a person finds it."""
        return f"{self.document}, line {self.line}"

    @property
    def expected_code(self) -> int:
        """The exit code that a comment behind the command tells, such as "# exit code 3"; 0 without one."""
        found = _EXPECTED_CODE.search(self.text.partition("\n")[0])
        return int(found[1]) if found else 0

    def programs(self) -> list[list[str]]:
        """Return the words of each program that it starts, without redirections and variables set for it."""
        return simple_commands(self.text)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        """Return where a person finds it."""
        return f"{self.document}, line {self.line}"

    def commands(self) -> list[Command]:
        """Return the commands of a bash or console block; none for other languages."""
        if self.language == "bash":
            lines = self.text.splitlines()
        elif self.language == "console":
            lines = list(_typed(self.text))
        else:
            return []
        return [Command(self.document, self.line, text) for text in _whole_commands(lines)]


def blocks(document: Path) -> list[Block]:
    """Return the fenced blocks in order."""
    text = document.read_text()
    found = []
    for match in _FENCE.finditer(text):
        indent = len(match[1])
        body = "".join(line[indent:] if line.strip() else line for line in match[3].splitlines(keepends=True))
        found.append(Block(document.name, text.count("\n", 0, match.start()) + 1, match[2], body))
    return found


def prose(document: Path) -> str:
    """Return the text around the fenced blocks, each block replaced by as many empty lines."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), document.read_text())


def is_ours(span: Command) -> bool:
    """Whether inline code is a command of ours, or a pattern of such."""
    return re.match(r"(\.venv/bin/)?gemwright \S", span.text) is not None


def spans(document: Path) -> list[Command]:
    """Return the inline code of a document that is ours: in tables with our column, that column alone."""
    found = []
    column: int | None = None
    in_table = False
    for number, line in enumerate(prose(document).splitlines(), start=1):
        cells = _cells(line)
        if not cells:
            column, in_table = None, False
        elif not in_table:
            column = cells.index(OUR_COLUMN) if OUR_COLUMN in cells else None
            in_table = True
            continue
        shown = line if column is None else cells[column] if column < len(cells) else ""
        for text in _SPAN.findall(shown):
            found.append(Command(document.name, number, text, is_side_by_side=column is not None))
    return found


def is_pattern(text: str) -> bool:
    """Whether inline code is a pattern of commands rather than a command: it holds placeholders, choices or dots."""
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
    return bool(re.search(r"\.\.\.|\[|\w\|\w|<[a-z]+>|(?<![\w/.@:-])[A-Z]+\b(?![/\w-])", unquoted))


def simple_commands(text: str) -> list[list[str]]:
    """Return the words of each program in a shell command, without redirections, comments and variables set for it."""
    first = _HEREDOC.sub("", text.partition("\n")[0] if _HEREDOC.search(text) else text.replace("\\\n", " "))
    first = re.sub(r"(?<=\s)\d(?=[<>])", "", first)
    lexer = shlex.shlex(first, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    programs: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if skip:
            skip = False
        elif set(word) <= set("<>&") and set(word) & set("<>"):
            skip = True
        elif set(word) <= set("|&;"):
            programs.append([])
        elif programs[-1] or not re.match(r"\w+=", word):
            programs[-1].append(word)
    return [words for words in programs if words]


def _cells(line: str) -> list[str]:
    """Return the cells of a table's row; none where the line is no row."""
    if not line.startswith("|"):
        return []
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _typed(text: str) -> Iterator[str]:
    """Yield the lines a reader types in a console block: behind "$ ", and what a backslash carries on."""
    goes_on = False
    for line in text.splitlines():
        if line.startswith("$ ") or goes_on:
            yield line.removeprefix("$ ")
            goes_on = line.endswith("\\")


def _whole_commands(lines: list[str]) -> Iterator[str]:
    """Yield commands with the lines that belong to them: after a backslash, and up to the end of a here-document."""
    waiting: list[str] = []
    end: str | None = None
    for line in lines:
        if end is None and not waiting and (not line.strip() or line.lstrip().startswith("#")):
            continue
        waiting.append(line)
        if end is not None:
            if line != end:
                continue
        elif heredoc := _HEREDOC.search(line):
            end = heredoc[1]
            continue
        elif line.endswith("\\"):
            continue
        yield "\n".join(waiting)
        waiting, end = [], None
    assert not waiting, f"this command does not end: {waiting}"
