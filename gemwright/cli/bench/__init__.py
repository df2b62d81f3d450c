"""`gemwright bench`: measures load, latency and memory."""

from __future__ import annotations

import click

from gemwright.cli.bench.memory import memory
from gemwright.cli.bench.offline import offline
from gemwright.cli.bench.serve import serve


@click.group(
    short_help="Measure load, latency and memory.",
    epilog="""\b
Examples:
  gemwright bench offline --concurrency 8 --input-len 256 --output-len 64
  gemwright bench offline --find-knee
  gemwright bench serve --max-concurrency 8 --ignore-eos
  gemwright bench memory --contexts 512,4096 --loads 1,8""",
)
def bench() -> None:
    """Measure load, latency and memory."""


bench.add_command(offline)
bench.add_command(serve)
bench.add_command(memory)
