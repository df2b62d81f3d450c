"""The flags of `gemwright bench serve`, under the names that vLLM's users know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gemwright.cli.options import option, output_options

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_JUDGED = ("ttft", "tpot", "e2el")


class CommaFloats(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """Percentiles with commas between: 50,99.9."""

    name = "percentiles"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the percentiles, or fail as a usage error."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(float(part) for part in value.split(","))
        except ValueError:
            found = ()
        if not found or not all(0 <= part <= 100 for part in found):
            self.fail(f"{value!r} is no list of percentiles such as 50,99.9", param, ctx)
        return found


class Metrics(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """Names of latencies with commas between."""

    name = "metrics"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the names, or fail as a usage error."""
        if isinstance(value, tuple):
            return value
        found = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
        if not set(found) <= set(_LATENCIES):
            self.fail(f"{value!r} is no list of {', '.join(_LATENCIES)}", param, ctx)
        return found


class Limits(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """Limits of good answers in milliseconds: ttft:200, or several with commas between."""

    name = "limits"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, float], ...]:
        """Return pairs of name and milliseconds, or fail as a usage error."""
        if isinstance(value, tuple):
            return value
        pairs = []
        for part in value.split(","):
            name, _, text = part.partition(":")
            try:
                limit = float(text)
            except ValueError:
                limit = -1.0
            if name not in _JUDGED or not limit > 0:
                self.fail(f"{part!r} is no limit such as ttft:200, of {', '.join(_JUDGED)} in ms", param, ctx)
            pairs.append((name, limit))
        return tuple(pairs)


_OPTIONS = (
    option("Server", "--base-url", "Where the server is; left out, http://127.0.0.1:8000."),
    option(
        "Server",
        "--endpoint",
        "Its route; left out, /v1/completions.",
        type=click.Choice(("/v1/completions", "/v1/chat/completions")),
    ),
    option("Server", "--model", "What the server calls the model; left out, the first one it lists."),
    option("Server", "--api-key", "Its key."),
    option("Server", "--request-timeout", "Seconds after which an answer is given up; left out, 600.", type=float),
    option("Load", "--num-prompts", "Requests in all; left out, 100.", type=int),
    option("Load", "--request-rate", "Requests a second; left out, inf: all at once.", type=float),
    option("Load", "--burstiness", "1 (left out): Poisson; below: in bunches; above: more even.", type=float),
    option("Load", "--max-concurrency", "The most at once; others wait here. Left out, no limit.", type=int),
    option(
        "Load",
        "--ramp-up-strategy",
        "How the rate goes from the first request to the last.",
        type=click.Choice(("linear", "exponential")),
    ),
    option("Load", "--ramp-up-start-rps", "The rate at the first request.", type=float),
    option("Load", "--ramp-up-end-rps", "The rate at the last.", type=float),
    option("Load", "--burst", "From nothing to --max-concurrency at once; the first wave is told apart.", is_flag=True),
    option(
        "Load",
        "--find-knee",
        "Double the users from 1 to --max-concurrency (left out, 64) until something bends, then burst to the most.",
        is_flag=True,
    ),
    option("Load", "--seed", "Of prompts and arrivals; left out, 0.", type=int),
    option(
        "Prompts",
        "--dataset-name",
        'random (left out): words; custom: JSON lines {"prompt", "output_tokens"}; sharegpt: first questions.',
        type=click.Choice(("random", "custom", "sharegpt")),
    ),
    option("Prompts", "--dataset-path", "The file of custom or sharegpt.", type=click.Path(path_type=Path)),
    option("Prompts", "--random-input-len", "Tokens of a prompt, to about a word; left out, 1024.", type=int),
    option("Prompts", "--random-output-len", "Most tokens of an answer; left out, 128.", type=int),
    option("Prompts", "--custom-output-len", "The same; left out, the output_tokens of each line.", type=int),
    option("Prompts", "--sharegpt-output-len", "The same.", type=int),
    option("Prompts", "--ignore-eos", "Answers go on to their most tokens; not every server knows it.", is_flag=True),
    option("Prompts", "--temperature", "Left out, 0: greedy.", type=float),
    option(
        "Output",
        "--goodput",
        "What answers must keep to, in ms, of ttft, tpot and e2el: ttft:200 tpot:50.",
        type=Limits(),
        multiple=True,
    ),
    option("Output", "--percentile-metrics", "Latencies to show; left out, ttft,tpot,itl,e2el.", type=Metrics()),
    option("Output", "--metric-percentiles", "Percentiles of them; left out, 50,95,99.", type=CommaFloats()),
    option("Output", "--save-result", "Write the JSON to a file too.", is_flag=True),
    option("Output", "--result-dir", "Its folder; left out, this one.", type=click.Path(path_type=Path)),
    option("Output", "--result-filename", "Its name; left out, made of model, load and time."),
    output_options,
)


def serve_options(function: Decorated) -> Decorated:
    """Add all flags, in the order in which the help lists them."""
    for add in reversed(_OPTIONS):
        function = add(function)
    return function
