"""Shows a plan on the terminal: the ledger, then the answers, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gemwright.errors import show_bytes
from gemwright.planner.answers import show_conditions, show_fact, show_users
from gemwright.planner.weights import num_language_parameters, num_parameters

if TYPE_CHECKING:
    from gemwright.planner.answers import Plan

_NAME_WIDTH = 16


def show_plan(planned: Plan) -> None:
    """Print one plan."""
    for name, text in _head(planned):
        print(f"{name:<{_NAME_WIDTH}}{text}")
    print()
    for line in planned.ledger.table():
        print(line)
    print()
    for name, text in _answers(planned):
        print(f"{name:<{_NAME_WIDTH}}{text}")


def show_comparison(plans: Sequence[Plan], *, as_json: bool) -> None:
    """Print several plans side by side, and for two what changes line by line and why."""
    from gemwright.cli.run import write_json
    from gemwright.planner.compare import compare

    comparison = compare(plans)
    if as_json:
        write_json({"plans": [planned.to_dict() for planned in plans], **comparison.to_dict()})
        return
    rows = [_column(found) for found in comparison.to_dict()["models"]]
    for name in rows[0]:
        print(f"{name:<{_NAME_WIDTH}}" + "".join(f"{row[name]:>26}" for row in rows))
    if comparison.differences:
        print("\nwhat changes, and why")
    for found in comparison.differences:
        change = found.difference.change_bytes
        print(f"{'+' if change >= 0 else '-'}{show_bytes(abs(change)):>11}  {found.difference.name}: {found.reason}")


def _column(found: dict[str, Any]) -> dict[str, str]:
    sizes = {
        "in all": "total_bytes",
        "needed": "needed_bytes",
        "weights": "weights_bytes",
        "K/V a token": "bytes_per_token_full",
        "K/V sliding": "sliding_bytes_per_sequence",
        "K/V a request": "bytes_per_sequence",
    }
    column = {"model": found["model"][-25:], "engine": found["engine"]}
    column["memory"] = "" if found["memory_bytes"] is None else show_bytes(found["memory_bytes"])
    column["fits"] = {None: "", True: "yes", False: "NO"}[found["fits"]]
    column |= {name: show_bytes(found[key]) for name, key in sizes.items()}
    for name, key in (("longest context", "max_context_tokens"), ("most users", "max_num_seqs")):
        column[name] = "" if found[key] is None else f"{found[key]:,}"
    return column


def show_unknown(engine: str, reason: str, *, model: str, as_json: bool) -> None:
    """Say that there is no formula for an engine, which is no failure."""
    from gemwright.cli.run import write_json

    content: dict[str, Any] = {"model": model, "engine": engine, "fits": None, "unknown": reason}
    if as_json:
        write_json(content)
    else:
        print(f"UNKNOWN for {engine}: {reason}")


def _head(planned: Plan) -> Iterator[tuple[str, str]]:
    spec, found = planned.header.spec, planned.estimate
    yield "model", f"{planned.header.name} ({_ORIGINS[planned.header.origin]})"
    language, whole = num_language_parameters(spec), num_parameters(spec)
    towers = "" if whole == language else f", {whole:,} with its towers"
    yield "parameters", f"{language:,}{towers}"
    version = planned.settings.engine_version
    yield "engine", found.engine + (f" {version}" if version else "")
    stored = planned.settings.quantization or planned.header.quantization or spec.stored_dtype
    yield "weights", f"{show_bytes(found.weights_bytes)} loaded" + (f", stored as {stored}" if stored else "")
    kv, pool = found.kv, planned.settings.kv_cache_memory_bytes
    num_held = found.max_num_seqs if pool is None else min(found.max_num_seqs, pool // max(1, kv.bytes_per_sequence))
    others = "" if num_held == found.max_num_seqs else f", of which the K/V pool holds {num_held:,} at once"
    yield "planned for", f"{_plural(found.max_num_seqs, 'request')} of {found.max_model_len:,} tokens{others}"
    yield (
        "K/V cache",
        f"{show_bytes(kv.bytes_per_token_full)} a token and {show_bytes(kv.sliding_bytes_per_sequence)} a request: "
        f"{show_bytes(kv.bytes_per_sequence)} for one of this length",
    )


_ORIGINS = {
    "hub": "headers at the hub",
    "cache": "in the local cache",
    "folder": "local folder",
    "file": "local file",
    "published": "config that comes with Gemwright",
}


def _answers(planned: Plan) -> Iterator[tuple[str, str]]:
    if planned.fits is not None:
        yield "fits", _verdict(planned)
    if planned.curve:
        yield "longest context", f"{planned.max_context_tokens:,} tokens for {_plural(_asked_users(planned), 'user')}"
        yield "most users", f"{show_users(planned.max_num_seqs)} at {planned.estimate.max_model_len:,} tokens each"
        for index, (tokens, count) in enumerate(planned.curve):
            noun = "user" if count == 1 else "users"
            yield "users by context" if index == 0 else "", f"{tokens:>9,} tokens  {show_users(count):>9} {noun}"
        gain = planned.marginal
        if gain is not None:
            yield (
                "1 GiB more buys",
                f"{gain.num_more_context_tokens:,} tokens of context or {_plural(gain.num_more_users, 'user')}",
            )
    for index, change in enumerate(planned.changes):
        yield "to make it fit" if index == 0 else "", change.describe()
    if planned.fits is False and planned.pool_reason is None and not planned.changes:
        yield "to make it fit", f"no single setting of {planned.estimate.engine} does"
    for name, facts in planned.estimate.engine_facts.items():
        for index, (key, value) in enumerate(facts.items()):
            yield name if index == 0 else "", f"{key.replace('_', ' ')}: {show_fact(value)}"
    if planned.placement is not None:
        for index, kind in enumerate(planned.placement.kinds):
            copies = "" if kind.num_copies == 1 else f", each on {kind.num_copies} of them"
            text = (
                f"{kind.num_layers} {kind.kind} layers: {kind.num_query_heads} query and {kind.num_kv_heads} K/V heads"
            )
            yield "placement" if index == 0 else "", f"{text} on each device{copies}"
    if planned.load is not None:
        use = planned.load
        sizes = f"{show_bytes(use.p50_bytes)}, {show_bytes(use.p95_bytes)}, {show_bytes(use.p99_bytes)}"
        hold = "holds" if use.num_users == 1 else "hold"
        yield "mix of lengths", f"{_plural(use.num_users, 'user')} {hold} {sizes} (50, 95, 99 % of moments)"
        yield "", f"of a pool of {show_bytes(use.pool_bytes)}: {use.preemption_probability:.2%} chance of preemption"
        if planned.users_of_mix is not None:
            most = _plural(planned.users_of_mix, "user")
            yield "", f"at most {most} with one chance in a hundred of preemption"
            if planned.fits is False and planned.users_of_mix >= use.num_users:
                length = f"{planned.estimate.max_model_len:,} tokens"
                yield "", f"these share a pool; the verdict is for {_plural(_asked_users(planned), 'user')} of {length}"
    if planned.time is not None:
        for index, text in enumerate(planned.time.describe()):
            yield "time" if index == 0 else "", text


def _verdict(planned: Plan) -> str:
    if planned.pool_reason is not None:
        return f"NO: {planned.pool_reason}"
    assert planned.memory_bytes is not None
    assert planned.spare_bytes is not None
    of = f"{show_bytes(planned.held_bytes)} of {show_bytes(planned.memory_bytes)}"
    close = f", but the error bar is {show_bytes(planned.ledger.error_bytes)}" if planned.is_close else ""
    if planned.fits:
        return f"yes{show_conditions(planned)}: {of}, {show_bytes(planned.spare_bytes)} to spare{close}"
    return f"NO: {of}, {show_bytes(-planned.spare_bytes)} too much{close}"


def _asked_users(planned: Plan) -> int:
    return planned.settings.max_num_seqs or planned.settings.parallel or 1


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
