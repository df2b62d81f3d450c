"""`gemwright plan`: what a model will take, whether it fits, and how fast it will be, from headers alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.options import SectionCommand
from gemwright.cli.plan.options import plan_options

if TYPE_CHECKING:
    from gemwright.planner.answers import Plan
    from gemwright.planner.devices import Device


@click.command(
    cls=SectionCommand,
    short_help="Say what a model will take, before it runs.",
    epilog="""\b
Examples:
  gemwright plan google/gemma-4-31B-it --memory 80GiB
  gemwright plan ./gemma-3-4b-it --max-model-len 8192 --max-num-seqs 8
  gemwright plan google/gemma-4-E4B-it --versus google/gemma-4-12B-it
  gemwright plan google/gemma-4-12B-it --engine vllm --device-name H100 --emit vllm
  gemwright plan model.gguf --engine llama.cpp --ctx-size 32768 --assert-fits 12GiB""",
)
@click.argument("model", required=False, metavar="[MODEL]", shell_complete=complete_model)
@plan_options
@click.pass_context
def plan(context: click.Context, /, model: str | None, **values: Any) -> None:
    """Plan a model: memory line by line, what fits, how fast.

    MODEL is a hub id, a folder, a config.json or a .gguf file; left out, the default model. No weight is read and none
    is fetched: a model of the hub costs a few requests for headers, and what Google has published is planned offline
    too. Sizes are in GiB (1024^3 bytes); --memory takes GiB and GB, which is 7 % less.

    The plan goes to stdout, notes to stderr. Exit code 4 says that it does not fit in what --assert-fits names.
    """
    from gemwright.cli.plan.show import show_comparison, show_plan, show_unknown
    from gemwright.cli.run import write_json
    from gemwright.planner.answers import unknown_engine

    _check_outputs(values)
    reason = unknown_engine(values["engine"])
    if reason is not None:
        _refuse_settings_of_unknown(values, reason)
        show_unknown(values["engine"], reason, model=_name(model), as_json=values["json"])
        return
    planned = _plan(model, values)
    others = [_versus(context, words, model) for words in values["versus"]]
    if values["emit"] is not None:
        _emit(planned, values["emit"], as_json=values["json"])
    elif values["advise"]:
        _advise(planned, model, values)
    elif others:
        show_comparison([planned, *others], as_json=values["json"])
    elif values["json"]:
        write_json(_to_dict(planned))
    else:
        show_plan(planned)
    notes = [note for one in (planned, *others) for note in (*one.estimate.notes, *_measured(one, values))]
    for note in dict.fromkeys(notes):
        print(f"note: {note}", file=sys.stderr)
    if values["assert_fits"] is not None:
        for one in (planned, *others):
            _require_fit(one)


def _check_outputs(values: dict[str, Any]) -> None:
    """Raise RequestError for two outputs at once, for flags of an output that is not asked for, and for settings that
    no engine has: all before a model is looked for."""
    from gemwright.errors import RequestError
    from gemwright.planner.answers import known_engine, unknown_engine

    outputs = [f"--{name}" for name in ("emit", "advise", "versus") if values[name]]
    if values["emit"] is not None and "--emit" not in outputs:
        outputs.insert(0, "--emit")
    if len(outputs) > 1:
        first, second = outputs[:2]
        raise RequestError(
            f"{first} and {second} are two different answers", value=" ".join(outputs), remedy=f"leave {second} out"
        )
    of_report = [name for name in ("report", "load_test", "load_test_result") if values[name]]
    if of_report and not values["advise"]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in of_report)
        raise RequestError(
            "--report, --load-test and --load-test-result are of the report of --advise",
            value=names,
            remedy=f"add --advise, or leave {names} out",
        )
    if values["load_test"] and values["load_test_result"]:
        raise RequestError("--load-test measures what --load-test-result would say", remedy="leave one of them out")
    if values["emit"] is not None and unknown_engine(values["engine"]) is None:
        from gemwright.planner.export import check_engine

        check_engine(known_engine(values["emit"]), known_engine(values["engine"]))


def _refuse_settings_of_unknown(values: dict[str, Any], reason: str) -> None:
    """Raise UnsupportedError where more is asked of an engine without a formula than whether it is known."""
    from gemwright.errors import UnsupportedError

    asked = [f"--{name}" for name in ("emit", "advise", "versus") if values[name]]
    if asked:
        raise UnsupportedError(
            f"nothing can be planned for {values['engine']}: {reason}",
            value=" ".join(asked),
            remedy=f"leave {asked[0]} out, or plan for another --engine",
        )


def _name(model: str | None) -> str:
    """Return a model's name as plans have it."""
    from gemwright.loading.default_model import MODEL_NAME

    return MODEL_NAME.removesuffix(".gguf") if model is None else model


def _to_dict(planned: Plan) -> dict[str, Any]:
    """Return a plan's JSON output and, where a device was named or found, what times were told from."""
    device = planned.settings.device
    if device is None:
        return planned.to_dict()
    rates = {
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "peak_flops": dict(device.peak_flops),
        "source": device.source,
    }
    return {**planned.to_dict(), "device": rates}


def _measured(planned: Plan, values: dict[str, Any]) -> list[str]:
    """Return the rates of this machine that times were told from: another load gives others."""
    device = planned.settings.device
    if device is None or not (values["here"] or device.source.startswith("measured now")):
        return []
    rates = [f"{name} {flops / 1e9:,.0f} GFLOP/s" for name, flops in device.peak_flops.items()]
    if device.bandwidth_bytes_per_s is not None:
        rates.insert(0, f"{device.bandwidth_bytes_per_s / 1e9:,.1f} GB/s of memory")
    if not rates:
        return []
    is_measured = device.kind == "cpu"
    busy = "; other programs that run now make them less" if is_measured else ""
    return [f"rates of {device.name}: {', '.join(rates)} ({device.source}){busy}"]


def _plan(model: str | None, values: dict[str, Any]) -> Plan:
    from gemwright.cli.plan.options import plan_fields
    from gemwright.errors import RequestError, UnsupportedError
    from gemwright.planner.answers import DEFAULT_PROMPT_TOKENS, known_engine, make_plan, unknown_engine
    from gemwright.planner.inputs import read_header
    from gemwright.planner.load import parse_mix
    from gemwright.planner.settings import ENGINES, PlanSettings

    reason = unknown_engine(values["engine"])
    if reason is not None:
        raise UnsupportedError(
            f"nothing can be planned for {values['engine']}: {reason}",
            value=f"--engine {values['engine']}",
            remedy=f"compare with one of {', '.join(ENGINES)}",
        )
    values = {**values, "engine": known_engine(values["engine"])}
    if values["engine"] not in ENGINES:
        raise RequestError(
            "unknown engine", value=values["engine"], limit=", ".join(ENGINES), remedy="name one of them"
        )
    if values["shared_prefix"] is not None and values["mix"] is None:
        raise RequestError("--shared-prefix is for --mix", remedy="add --mix p50=2000,p95=8000,max=32000")
    if values["prompt_tokens"] is not None and values["prompt_tokens"] < 1:
        raise RequestError(
            "prompt_tokens",
            value=values["prompt_tokens"],
            limit="an integer of at least 1",
            remedy="raise --prompt-tokens",
        )
    # Settings that are wrong are refused before the hub is asked.
    settings = PlanSettings(engine=values["engine"], **plan_fields(values), **_machine(values))
    mix = None if values["mix"] is None else parse_mix(values["mix"], values["shared_prefix"] or 0)
    header = read_header(
        model,
        revision=values["revision"],
        offline=values["offline"],
        allow_unknown_config_keys=values["allow_unknown_config_keys"],
    )
    prompt_tokens = values["prompt_tokens"] or DEFAULT_PROMPT_TOKENS
    return make_plan(header, settings, prompt_tokens=prompt_tokens, mix=mix)


def _machine(values: dict[str, Any]) -> dict[str, Any]:
    """Return device, memory and calibration: of this machine with --here, else as named."""
    from gemwright.errors import RequestError
    from gemwright.loading.default_model import cache_folder
    from gemwright.memory.holding import expected_holding
    from gemwright.planner.calibration import load_calibration
    from gemwright.planner.devices import find_device, this_machine

    memory_bytes = values["memory"]
    if values["assert_fits"] is not None:
        if memory_bytes not in (None, values["assert_fits"]):
            raise RequestError("--memory and --assert-fits differ", remedy="leave --memory out")
        memory_bytes = values["assert_fits"]
    if values["here"]:
        if values["device_name"] is not None:
            raise RequestError("--here and --device-name name two machines", remedy="leave one of them out")
        machine = this_machine()
        device: Device | None = machine.device(0) if machine.num_devices else machine.cpu(measured=True)
        free = machine.free_bytes(0) if machine.num_devices else machine.free_bytes()
        found: dict[str, Any] = {"device": device, "memory_bytes": memory_bytes or free or None}
        if values["engine"] == "gemwright":
            holding = expected_holding(values["kernels"] or "auto", "cuda" if machine.num_devices else "cpu")
            found["calibration"] = load_calibration(cache_folder(), holding.name)
        return found
    device = None if values["device_name"] is None else find_device(values["device_name"])
    return {"device": device, "memory_bytes": memory_bytes}


def _versus(context: click.Context, words: str, model: str | None) -> Plan:
    """Return the plan of the same command with other words added: flags that replace, or another model."""
    import shlex

    from gemwright.errors import RequestError

    try:
        split = shlex.split(words)
    except ValueError as error:
        raise RequestError("--versus cannot be read", value=words, limit=str(error)) from error
    if not split:
        raise RequestError("--versus is empty", remedy='write --versus "--quantization q4_0", or name a model')
    with context.command.make_context("plan --versus", split, obj=context.obj) as other:
        source = click.core.ParameterSource.COMMANDLINE
        changed = {name: value for name, value in other.params.items() if other.get_parameter_source(name) == source}
    refused = {
        "versus",
        "json",
        "emit",
        "advise",
        "report",
        "load_test",
        "load_test_result",
        "assert_fits",
    } & changed.keys()
    if refused:
        raise RequestError("--versus takes flags that change the plan", value=", ".join(sorted(refused)))
    values = {**context.params, **changed}
    return _plan(values.pop("model"), values)


def _emit(planned: Plan, engine: str, *, as_json: bool) -> None:
    from gemwright.cli.run import write_json
    from gemwright.planner.answers import known_engine
    from gemwright.planner.export import start_settings

    found = start_settings(
        known_engine(engine), planned.header, planned.settings, planned.estimate, planned.memory_bytes
    )
    if as_json:
        write_json({"model": planned.header.name, **found.to_dict(), "fits": planned.fits})
        return
    for line in found.lines():
        print(line)


def _advise(planned: Plan, model: str | None, values: dict[str, Any]) -> None:
    from gemwright.cli.plan.advise import advise
    from gemwright.cli.run import write_json

    paths = advise(planned, model, values)
    if values["json"]:
        report, *others = map(str, paths)
        write_json({**_to_dict(planned), "report": report, "report_files": [report, *others]})
        return
    for path in paths:
        print(path)


def _require_fit(planned: Plan) -> None:
    from gemwright.errors import CapacityError, show_both_bytes

    if planned.fits is not False:
        return
    if planned.pool_reason is not None:
        raise CapacityError(f"{planned.header.name} does not fit: {planned.pool_reason}")
    assert planned.memory_bytes is not None  # nothing else fails to fit
    needed, allowed = show_both_bytes(planned.held_bytes, planned.memory_bytes)
    first = planned.changes[0] if planned.changes else None
    raise CapacityError(
        f"{planned.header.name} does not fit",
        value=f"{needed} needed",
        limit=f"{allowed} allowed",
        remedy="allow more memory" if first is None else f"{first.flags} ({first.cost})",
    )
