"""`gemwright parse`: outputs of a model, one a line, to thoughts, answers and calls, with the events of streaming."""

from __future__ import annotations

import sys

import click

from gemwright.cli.options import SectionCommand, debug_option, option


@click.command(
    cls=SectionCommand,
    short_help="Read model output: thoughts, answer, tool calls.",
    epilog="""\b
Example:
  echo '{"id": 1, "text": "<|channel>thought\\nEasy.<channel|>Blue."}' | gemwright parse --family gemma4""",
)
@option("Parse", "--family", "Whose output it is: gemma2, gemma3 or gemma4.", required=True)
@debug_option
def parse(family: str) -> None:
    """Read one JSON object a line from stdin and write one a line to stdout.

    A line holds "id" and "text", if wanted "stream_splits" (offsets of characters at which chunks end) or
    "stream_byte_splits" (of UTF-8 bytes), "finish_reason" (what the engine reported: "stop" or "length"; "tool_calls"
    counts as "stop") and "context" with "prompt_tail" (does the prompt end inside a thought?) and "tools" (their
    schemas decide types). Other fields are passed over.

    A line out holds "id", "reasoning_content", "content", "tool_calls", "finish_reason", "unfinished_calls", "warnings"
    and "events". An event names the chunk that made it certain; those of the end have the number after the last.

    A line that cannot be read is answered with its "error" and the others go on; the exit code is then 2.
    """
    from gemwright.cli.parse_lines import parse_lines

    out = sys.stdout.buffer  # UTF-8, whatever the terminal's encoding
    for line in parse_lines(sys.stdin.buffer, family):
        out.write(line.encode())
        out.flush()
