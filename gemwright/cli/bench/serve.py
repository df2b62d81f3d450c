"""`gemwright bench serve`: load on any server with OpenAI's routes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.bench.serve_options import Limits, serve_options
from gemwright.cli.bench.shared import machine_facts, make_result_folder, save_result
from gemwright.cli.options import SectionCommand, given

if TYPE_CHECKING:
    from gemwright.bench.client import Client, Prompt, Target
    from gemwright.bench.serve import Manner, Served, View

_MOST_USERS = 64
"""How far --find-knee raises where --max-concurrency is left out."""


@click.command(
    cls=SectionCommand,
    short_help="Load on a server over HTTP.",
    epilog="""\b
Examples:
  gemwright bench serve --num-prompts 64 --max-concurrency 8 --ignore-eos
  gemwright bench serve --base-url http://gpu:8000 --request-rate 4 --goodput ttft:500 tpot:50
  gemwright bench serve --endpoint /v1/chat/completions --find-knee --json""",
)
@click.argument("more_limits", nargs=-1, metavar="", type=Limits())
@serve_options
def serve(more_limits: Sequence[tuple[tuple[str, float], ...]], **values: Any) -> None:
    """Send prompts to a running server and say how it answers: time to the first token, between tokens, to the end.

    Any server with OpenAI's routes will do. Tokens are those it counts; a request that fails is counted by what went
    wrong. The knee is the last number of users before latency, throughput or memory bends, or requests fail; memory is
    seen where the server's /metrics tell of it under vLLM's names.
    """
    import asyncio

    from gemwright.bench.client import Client
    from gemwright.cli.run import write_json
    from gemwright.errors import GemwrightError

    target, manner, view = _target(values), _manner(values), _view(values, more_limits)
    _check(values)
    make_result_folder(values)

    async def measure() -> dict[str, Any]:
        async with Client(target) as client:
            return await _measure(client, manner, view, values)

    content = asyncio.run(measure())
    content["machine"] = machine_facts()
    saved = save_result(content, values)
    if values["json"]:
        write_json(content)
    else:
        _show(content)
    if saved is not None:
        print(f"saved as {saved}", file=sys.stderr)
    measured = content.get("points", [content])
    if not any(found["num_completed"] for found in measured):
        first = next(iter(measured[0]["failures"].items()))
        raise GemwrightError(
            "every request failed",
            value=f"{first[0]}: {first[1]['first']}",
            remedy="see whether the server runs, and whether it takes these requests",
        )


async def _measure(client: Client, manner: Manner, view: View, values: dict[str, Any]) -> dict[str, Any]:
    from gemwright.bench.serve import read_process_bytes, run_load, search_knee

    if client.target.model is None:
        client.target = replace(client.target, model=await client.first_model())
    make_prompts = await _prompt_maker(client, values)
    content: dict[str, Any] = {
        "model": client.target.model,
        "base_url": client.target.base_url,
        "endpoint": client.target.endpoint,
        "dataset": values["dataset_name"] or "random",
    }
    if values["find_knee"]:
        most = values["max_concurrency"] or _MOST_USERS
        found = await search_knee(client, make_prompts, most=most, seed=manner.seed, on_point=_show_point)
        content |= found.to_dict(view)
    else:
        count = 100 if values["num_prompts"] is None else values["num_prompts"]
        content |= (await run_load(client, make_prompts(count, 0), manner)).to_dict(view)
    content["process_bytes"] = await read_process_bytes(client)
    return content


async def _prompt_maker(client: Client, values: dict[str, Any]) -> Callable[[int, int], Sequence[Prompt]]:
    """Return what makes so many prompts of a point's number. Asks the server once or twice, which also wakes it.

    Raises GemwrightError where it does not answer."""
    from gemwright.bench.prompts import (
        FEW_WORDS,
        MORE_WORDS,
        WordTokens,
        choose,
        random_prompt,
        random_prompts,
        read_custom,
        read_sharegpt,
    )

    seed = values["seed"] or 0
    name, path = values["dataset_name"] or "random", values["dataset_path"]
    if name == "random":
        input_len = 1024 if values["random_input_len"] is None else values["random_input_len"]
        output_len = 128 if values["random_output_len"] is None else values["random_output_len"]
        few = await _probe(client, random_prompt(FEW_WORDS, seed, 1 << 40))
        more = await _probe(client, random_prompt(MORE_WORDS, seed, (1 << 40) + 1))
        num_words = WordTokens.from_counts(few, more).num_words(input_len)
        return lambda count, point: random_prompts(count, num_words, output_len, seed, first=point << 32)
    if name == "custom":
        prompts = read_custom(path, values["custom_output_len"])
    else:
        prompts = read_sharegpt(path, values["sharegpt_output_len"])
    await _probe(client, random_prompt(FEW_WORDS, seed, 1 << 40))
    given_out = 0

    def take(count: int, point: int) -> Sequence[Prompt]:
        nonlocal given_out
        chosen = choose(prompts, given_out + count, seed, path)[given_out:]
        given_out += count
        return chosen

    return take


async def _probe(client: Client, text: str) -> int:
    """Return how many tokens the server makes of a text."""
    from gemwright.bench.client import Prompt
    from gemwright.errors import GemwrightError

    found = await client.ask(Prompt(text, 2))
    if found.failure is not None:
        raise GemwrightError(
            "the server does not answer a first, short request",
            value=f"{client.target.url(client.target.endpoint)}: {found.failure}: {found.detail}",
            remedy="see whether it runs at --base-url, and whether --endpoint, --model and --api-key are right",
        )
    return found.num_prompt_tokens


def _target(values: dict[str, Any]) -> Target:
    from gemwright.bench.client import Target

    names = ("endpoint", "model", "api_key", "temperature", "ignore_eos")
    timeout = {} if values["request_timeout"] is None else {"request_timeout_s": values["request_timeout"]}
    return Target(values["base_url"] or "http://127.0.0.1:8000", **given(values, names), **timeout)


def _manner(values: dict[str, Any]) -> Manner:
    from gemwright.bench.arrivals import Arrivals, Ramp
    from gemwright.bench.serve import Manner
    from gemwright.errors import RequestError

    parts = [values[name] for name in ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")]
    has_ramp = any(part is not None for part in parts)
    if has_ramp and None in parts:
        raise RequestError("a ramp has three parts: --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps")
    if has_ramp and values["request_rate"] is not None:
        raise RequestError("a ramp says the rate", remedy="leave --request-rate out")
    is_paced = has_ramp or values["request_rate"] not in (None, float("inf"))
    if values["burstiness"] is not None and not is_paced:
        raise RequestError("--burstiness shapes a rate", remedy="give --request-rate or a ramp")
    if is_paced and (values["burst"] or values["find_knee"]):
        flag = "--burst" if values["burst"] else "--find-knee"
        raise RequestError(f"{flag} chooses when requests come", remedy="leave --request-rate and the ramp out")
    if values["burst"] and values["find_knee"]:
        raise RequestError("--find-knee ends with a burst", remedy="leave --burst out")
    rate = {"rate": values["request_rate"]} if values["request_rate"] is not None else {}
    return Manner(
        Arrivals(**rate, **given(values, ("burstiness",)), ramp=Ramp(*parts) if has_ramp else None),
        values["max_concurrency"],
        values["seed"] or 0,
        bool(values["burst"]),
    )


def _view(values: dict[str, Any], more_limits: Sequence[tuple[tuple[str, float], ...]]) -> View:
    from gemwright.bench.serve import View
    from gemwright.errors import RequestError

    if more_limits and not values["goodput"]:
        raise RequestError("limits of good answers follow --goodput", value=f"{more_limits[0][0][0]}:...")
    pairs = [pair for limits in (*values["goodput"], *more_limits) for pair in limits]
    if len(dict(pairs)) < len(pairs):
        raise RequestError("--goodput names a latency twice")
    fields = {"metrics": values["percentile_metrics"], "percentiles": values["metric_percentiles"]}
    chosen = {name: value for name, value in fields.items() if value is not None}
    return View(**chosen, goodput_ms=dict(pairs) or None)


def _check(values: dict[str, Any]) -> None:
    """Raise RequestError for what is out of range, and for what would be taken and change nothing."""
    from gemwright.errors import RequestError

    counts = ("num_prompts", "random_input_len", "random_output_len", "custom_output_len", "sharegpt_output_len")
    for name in counts:
        if values[name] is not None and values[name] < 1:
            raise RequestError(f"--{name.replace('_', '-')}", value=values[name], limit="at least 1")
    if values["find_knee"] and values["num_prompts"] is not None:
        raise RequestError("--find-knee asks each user's two prompts", remedy="leave --num-prompts out")
    chosen = values["dataset_name"] or "random"
    for name in counts[1:]:
        owner = name.partition("_")[0]
        if owner != chosen and values[name] is not None:
            raise RequestError(f"--{name.replace('_', '-')} goes with --dataset-name {owner}", value=chosen)
    if (chosen == "random") != (values["dataset_path"] is None):
        raise RequestError(
            "--dataset-path names the file of --dataset-name custom or sharegpt", value=values["dataset_path"]
        )
    if chosen == "sharegpt" and values["sharegpt_output_len"] is None:
        raise RequestError("--dataset-name sharegpt needs --sharegpt-output-len", remedy="say how long answers may be")
    if not values["save_result"] and any(values[name] is not None for name in ("result_dir", "result_filename")):
        raise RequestError("--result-dir and --result-filename go with --save-result")


def _show_point(found: Served) -> None:
    point = found.to_point()
    failed = f"  {point.num_failed} failed" if point.num_failed else ""
    print(
        f"{point.concurrency:>5} users  {point.tokens_per_s:9.1f} tokens/s  {point.inter_token_ms_p95:9.1f} ms between "
        f"tokens (p95)  {point.ttft_ms_p95:9.1f} ms to the first{failed}",
        file=sys.stderr,
    )


def _show(content: dict[str, Any]) -> None:
    if "knee" in content:
        knee, burst = content["knee"], content["burst"]
        bent = knee["bent"]
        behind = {"nothing": "nothing bent up to there", "failures": "behind it requests fail"}.get(
            bent, f"behind it {bent} bends"
        )
        print(f"knee: {knee['concurrency']} users, {knee['tokens_per_s']:.1f} tokens/s; {behind}")
        print(f"burst from nothing to {burst['burst']['peak']}:")
        content = burst
    print(
        f"{content['num_completed']} answered, {content['num_failed']} failed in {content['seconds']:.2f} s; at most "
        f"{content['peak_concurrency']} at once"
    )
    for kind, failed in content["failures"].items():
        print(f"  {failed['count']} x {kind}: {failed['first']}")
    print(
        f"{content['tokens_per_s']:.1f} tokens/s, {content['requests_per_s']:.2f} requests/s; "
        f"{content['input_tokens']:,} tokens in, {content['output_tokens']:,} out"
    )
    if content["goodput"] is not None:
        good = content["goodput"]
        print(f"goodput {good['requests_per_s']:.2f} requests/s: {good['num_good']} kept to all limits")
    titles = {
        "ttft": "first token",
        "tpot": "a token after it",
        "inter_token": "between pieces",
        "e2e": "whole answer",
        "held_back": "held back here",
    }
    rows = {title: content[name] for name, title in titles.items() if content.get(name) is not None}
    for index, (title, row) in enumerate(rows.items()):
        if index == 0:
            print(f"{'ms':<18}" + "".join(f"{name.removesuffix('_ms'):>12}" for name in row))
        print(f"{title:<18}" + "".join(f"{value:>12.1f}" for value in row.values()))
    worst = content["worst_five_minutes"]
    if worst["num_requests"] < content["num_prompts"]:
        first = (
            "none answered" if worst["ttft"] is None else f"first token {worst['ttft']['mean_ms']:.1f} ms on the mean"
        )
        print(f"worst five minutes, from {worst['begin_s']:.0f} s on: {first}, {worst['num_failed']} failed")
    for name, wave in (("first wave", "first_wave"), ("after it", "after_it")):
        ttft = content.get("burst", {}).get(wave, {}).get("ttft")
        if ttft is not None:
            print(f"{name}: first token {ttft['mean_ms']:.1f} ms on the mean, std {ttft['std_ms']:.1f} ms")
