"""The report of `gemwright plan --advise`: seven steps from config to settings, as Markdown; and the table of plans.

Refuses to write files and to measure: it is told what a load test found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gemwright.errors import GemwrightError, show_bytes
from gemwright.planner.answers import Plan, show_conditions, show_fact, show_users
from gemwright.planner.export import emit
from gemwright.planner.ledger import Line
from gemwright.planner.settings import flag
from gemwright.planner.weights import num_language_parameters, num_parameters
from gemwright.spec.model_spec import LayerSpec

TABLE_HEAD: Final = (
    "| date | model | machine | engine | settings | planned | measured | knee | note |",
    "|---|---|---|---|---|---|---|---|---|",
)

SAFETY_SHARE: Final = 0.1
"""Of the memory named, left free by the settings that are advised."""


@dataclass(frozen=True, slots=True)
class LoadTest:
    """What a load test found, on this machine or a server."""

    command: str
    num_users: int
    """At the knee: the most at once before latency or memory bends."""
    tokens_per_s: float
    inter_token_p95_s: float
    bent: str
    """What bent behind the knee: "latency", "throughput", "memory", "failures"; "nothing" up to where it was raised."""
    process_bytes: int | None
    """The most that the process held; None where the server does not tell."""


def report(planned: Plan, *, date: str, machine: str, bar: str, curve: str | None, load_test: LoadTest | None) -> str:
    """Return the report. `bar` and `curve` name the pictures beside it."""
    steps = (
        ("Config: what the model is", _config(planned)),
        ("Static: what the weights take", _static(planned, bar)),
        ("Dynamic: what requests take", _dynamic(planned, curve)),
        ("Bandwidth: how fast it can be", _bandwidth(planned)),
        (f"Engine: what {planned.estimate.engine} makes of it", _engine(planned)),
        ("Load test", _load_test(load_test)),
        ("Settings, with margin", _settings(planned, load_test)),
    )
    lines = [
        f"# {planned.header.name} on {machine}",
        "",
        f"Planned on {date} by `gemwright plan --advise`. Sizes are binary: 1 GiB is 1024^3 bytes.",
        "",
        f"**{_verdict(planned)}**",
    ]
    for index, (title, body) in enumerate(steps, 1):
        lines += ["", f"## {index}. {title}", "", *body]
    return "\n".join(lines) + "\n"


def table_row(planned: Plan, *, date: str, machine: str, load_test: LoadTest | None, note: str) -> str:
    """Return the row of one plan for the table that is kept."""
    knee = "" if load_test is None else f"{load_test.num_users} users, {load_test.tokens_per_s:.1f} tokens/s"
    cells = (
        date,
        planned.header.name,
        machine,
        planned.estimate.engine,
        settings_text(planned),
        show_bytes(planned.ledger.total_bytes),
        "" if load_test is None or load_test.process_bytes is None else show_bytes(load_test.process_bytes),
        knee,
        note,
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def settings_text(planned: Plan) -> str:
    """Return what was asked, the memory among it, as flags; length and users as planned where they were not asked."""
    found = planned.estimate
    parts = [f"{found.max_num_seqs} x {found.max_model_len} tokens"]
    if planned.memory_bytes is not None:
        parts.append(f"{flag('memory_bytes')} {show_bytes(planned.memory_bytes).replace(' ', '')}")
    quantization = planned.settings.quantization or planned.header.quantization
    parts += [quantization] if quantization else []
    for name in ("dtype", "kv_cache_dtype", "max_num_batched_tokens", "tensor_parallel_size", "engine_version"):
        value = getattr(planned.settings, name)
        if value not in (None, "auto", 1):
            parts.append(f"{flag(name)} {value}")
    return ", ".join(parts)


def _verdict(planned: Plan) -> str:
    if planned.pool_reason is not None:
        return f"It does NOT fit: {planned.pool_reason}."
    if planned.memory_bytes is None or planned.spare_bytes is None:
        return f"It takes {show_bytes(planned.held_bytes)}; no memory was named, so whether it fits is not said."
    held, budget = show_bytes(planned.held_bytes), show_bytes(planned.memory_bytes)
    bar = f" (error bar {show_bytes(planned.ledger.error_bytes)})"
    if planned.fits:
        return (
            f"It fits{show_conditions(planned)}: {held} of {budget}{bar}, {show_bytes(planned.spare_bytes)} to spare."
        )
    return f"It does NOT fit: {held} of {budget}{bar}, {show_bytes(-planned.spare_bytes)} too much."


def _config(planned: Plan) -> Iterator[str]:
    spec = planned.header.spec
    yield f"- {num_language_parameters(spec):,} parameters in the language model, {num_parameters(spec):,} in all"
    yield f"- {spec.num_layers} layers of width {spec.hidden_size:,}, {spec.vocab_size:,} tokens in the vocabulary"
    yield f"- a context of {spec.max_context:,} tokens"
    kinds: dict[tuple[object, ...], list[LayerSpec]] = {}
    for layer in spec.layers:
        kinds.setdefault((layer.kind, layer.window, layer.num_kv_heads, layer.head_dim, layer.owns_kv), []).append(
            layer
        )
    for layers in kinds.values():
        first = layers[0]
        reach = "full attention" if first.window is None else f"sliding over {first.window:,} tokens"
        own = (
            f"{first.num_kv_heads} K/V heads x {first.head_dim}"
            if first.owns_kv
            else "K/V of an earlier layer, so none"
        )
        yield f"- {len(layers)} layers: {reach}, {own}"
    for note in planned.header.notes:
        yield f"- {note}"


def _static(planned: Plan, bar: str) -> Iterator[str]:
    yield "| part | parameters | bytes | how |"
    yield "|---|---|---|---|"
    for part in planned.estimate.weights:
        size = _with_bar(part.size_bytes, part.error_bytes)
        yield f"| {part.name} | {part.num_parameters:,} | {size} | {part.formula} |"
    yield ""
    yield f"![memory, stacked]({bar})"


def _dynamic(planned: Plan, curve: str | None) -> Iterator[str]:
    found = planned.estimate
    yield (
        f"One request of {found.max_model_len:,} tokens takes {show_bytes(found.kv.bytes_per_sequence)}: "
        f"{show_bytes(found.kv.sliding_bytes_per_sequence)} in sliding layers, however long it grows, and "
        f"{show_bytes(found.kv.bytes_per_token_full)} a token in full layers."
    )
    yield ""
    yield "| line | bytes | place | when | how | from |"
    yield "|---|---|---|---|---|---|"
    for line in planned.ledger.lines:
        yield (
            f"| {line.name} | {_with_bar(line.size_bytes, line.error_bytes)} | {line.place} | {line.phase} | "
            f"{line.formula} | {line.source} |"
        )
    if planned.load is not None:
        yield ""
        use = planned.load
        hold = "user of the mix holds" if use.num_users == 1 else "users of the mix hold"
        yield (
            f"{use.num_users:,} {hold} {show_bytes(use.p50_bytes)} (median), {show_bytes(use.p95_bytes)} "
            f"(95 %), {show_bytes(use.p99_bytes)} (99 %) of {show_bytes(use.pool_bytes)}; chance of preemption "
            f"{use.preemption_probability:.2%}."
        )
    if curve is not None:
        yield ""
        yield f"![context against users]({curve})"
        yield ""
        yield "| context | users |"
        yield "|---|---|"
        for tokens, users in planned.curve:
            yield f"| {tokens:,} | {show_users(users)} |"


def _bandwidth(planned: Plan) -> Iterator[str]:
    if planned.time is None:
        yield "No device with a known bandwidth was named (--device-name, or --here)."
        return
    for text in planned.time.describe():
        yield f"- {text}"


def _engine(planned: Plan) -> Iterator[str]:
    for name, facts in planned.estimate.engine_facts.items():
        for key, value in facts.items():
            yield f"- {name}: {key.replace('_', ' ')}: {show_fact(value)}"
    for note in planned.estimate.notes:
        yield f"- {note}"
    for change in planned.changes:
        yield f"- would make it fit: {change.describe()}"
    yield f"- the most is held while {planned.ledger.peak_phase}: {show_bytes(planned.ledger.total_bytes)}"


def _load_test(found: LoadTest | None) -> Iterator[str]:
    if found is None:
        yield (
            "Not run. `--load-test` raises the number of users on this machine until latency or memory bends; "
            "`--load-test-result` takes what `gemwright bench serve --find-knee` found on a server."
        )
        return
    yield f"`{found.command}`"
    yield ""
    behind = {"nothing": "nothing bent up to there", "failures": "behind it requests fail"}
    held = "" if found.process_bytes is None else f" The process held {show_bytes(found.process_bytes)}."
    yield (
        f"Knee at {found.num_users} users: {found.tokens_per_s:.1f} tokens/s, 95 % of tokens within "
        f"{1000 * found.inter_token_p95_s:.0f} ms; {behind.get(found.bent, f'behind it {found.bent} bends')}.{held}"
    )


def _settings(planned: Plan, load_test: LoadTest | None) -> Iterator[str]:
    budget = None if planned.memory_bytes is None else int(planned.memory_bytes * (1 - SAFETY_SHARE))
    if budget is not None:
        yield f"With {SAFETY_SHARE:.0%} of {show_bytes(planned.memory_bytes or 0)} left free:"
        yield ""
    try:
        lines = emit(planned.settings.engine, planned.header, planned.settings, planned.estimate, budget)
    except GemwrightError as error:
        # The other six steps stand without it.
        yield f"None can be written: {error.what} ({error.value}); {error.remedy}."
        return
    yield "```"
    yield from lines
    yield "```"
    if load_test is not None and load_test.num_users < planned.estimate.max_num_seqs:
        yield ""
        yield f"The load test bent at {load_test.num_users} users: --max-num-seqs {load_test.num_users} keeps latency."


def memory_parts(lines: Sequence[Line], place: str, phases: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the sizes of a stacked bar: a section each, passing phases by their names in `phases`."""
    sizes: dict[str, int] = {}
    for line in lines:
        if line.place != place or line.phase not in phases:
            continue
        name = f"{line.section}{phases[line.phase]}"
        sizes[name] = sizes.get(name, 0) + line.size_bytes
    return list(sizes.items())


def _with_bar(size_bytes: int, error_bytes: int) -> str:
    return show_bytes(size_bytes) + (f" +- {show_bytes(error_bytes)}" if error_bytes else "")
