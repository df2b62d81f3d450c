"""`gemwright doctor`: what this machine offers, what will run on it, and whether a model fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    SectionCommand,
    backend_options,
    batch_options,
    dtype_option,
    engine_options,
    option,
    output_options,
    revision_option,
    unknown_keys_option,
)

if TYPE_CHECKING:
    from gemwright.cli.doctor_facts import Facts
    from gemwright.cli.doctor_findings import Finding
    from gemwright.engine.assess import Assessment

_NAME_WIDTH = 18
_PACKAGE_WIDTH = 26
_STATE_WIDTH = 9


@click.command(
    cls=SectionCommand,
    short_help="Show what this machine offers and what runs on it.",
    epilog="""\b
Examples:
  gemwright doctor
  gemwright doctor google/gemma-3-1b-it --dtype bfloat16
  gemwright doctor model.gguf --json""",
)
@click.argument("model", required=False, metavar="[MODEL]", shell_complete=complete_model)
@option("Checks", "--full", "Start torch too, and measure what only it can tell; takes some seconds.", is_flag=True)
@revision_option
@unknown_keys_option
@dtype_option
@backend_options
@batch_options
@output_options
def doctor(model: str | None, **values: Any) -> None:
    """Show this machine as Gemwright sees it: processor, cores, memory, GPUs, kernels, packages, caches, settings.

    With MODEL, which is not fetched, also whether and how it would run with these flags: its dtype, context, and what
    it takes of the memory. Without, the default model where that is at hand. No weights are read, no network is used.

    Each check ends as ok, as a warning, or as a problem, with what to do about it. The exit code is 0 unless there is a
    problem; then it is that with which `gemwright run` would end for the first one: 1 a damaged installation, 2 a bad
    setting, 3 not supported, 4 does not fit, 5 a missing or damaged file.
    """
    from gemwright.cli.doctor_facts import gather, to_json
    from gemwright.cli.doctor_findings import exit_code, find
    from gemwright.cli.installed import known_variables, set_variables
    from gemwright.cli.run import write_json
    from gemwright.config import EngineConfig
    from gemwright.errors import GemwrightError

    context = click.get_current_context()
    program = context.find_root().command
    assert isinstance(program, click.Group)
    settings_error = None
    try:
        config = EngineConfig(**engine_options(values))
    except GemwrightError as error:
        config, settings_error = EngineConfig(), error
    facts = gather(
        config,
        settings_error,
        tuple(set_variables(known_variables(program))),
        _assess(model, config, values["revision"]),
        starts_torch=values["full"],
    )
    findings = find(facts)
    if values["json"]:
        import dataclasses

        write_json({**to_json(facts), "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        for line in report(facts, findings):
            print(line)
    if code := exit_code(findings):
        context.exit(code)


def _assess(model: str | None, config: Any, revision: str | None) -> Assessment | None:
    """Return what is to be said of a model; without one, of the default model if it can be seen without joining it."""
    from gemwright.engine.assess import assess_model
    from gemwright.errors import GemwrightError
    from gemwright.loading.default_model import joined_path

    if model is not None:
        return assess_model(model, config, revision=revision)
    try:
        joined = joined_path()
    except GemwrightError:  # the cache's name is no path: a finding of its own
        return None
    return None if joined is None else assess_model(None, config, revision=revision, reads_tokenizer=False)


def report(facts: Facts, findings: tuple[Finding, ...]) -> list[str]:
    """Return the report for people: facts by section, then the checks."""
    lines: list[str] = []
    for name, texts in (
        ("processor", _processor(facts)),
        ("memory", _memory(facts)),
        ("GPU", _gpus(facts)),
        ("kernels", _kernels(facts)),
        ("installed", _installed(facts)),
        ("models lie in", _places(facts)),
        ("settings", _settings(facts)),
        (f"model {facts.assessment.model}" if facts.assessment else "model", _model(facts)),
    ):
        own = list(texts)
        if own:
            lines += [name, *(f"  {key:<{_NAME_WIDTH}}{text}".rstrip() for key, text in own), ""]
    lines.append("checks")
    for finding in findings:
        lines.append(f"  {finding.state:<{_STATE_WIDTH}}{finding.name}: {finding.what}")
        for word, text in (("value", finding.value), ("limit", finding.limit), ("remedy", finding.remedy)):
            if text is not None:
                lines.append(f"  {'':<{_STATE_WIDTH}}  {word}: {text}")
    counts = {state: sum(finding.state == state for finding in findings) for state in ("problem", "warning")}
    lines += ["", ", ".join(f"{number} {state}{'' if number == 1 else 's'}" for state, number in counts.items())]
    return lines


def _processor(facts: Facts) -> Iterator[tuple[str, str]]:
    processor, cores = facts.processor, facts.cores
    yield "name", f"{processor.name or 'not told'} ({processor.architecture})"
    yield "features", ", ".join(processor.features) or "none of those that kernels ask for"
    if processor.missing_features:
        yield "missing", ", ".join(processor.missing_features)
    physical = "" if processor.num_physical_cores is None else f" ({processor.num_physical_cores} physical)"
    quota = "no quota" if cores.quota is None else f"a quota of {cores.quota:g}"
    yield "cores", f"{cores.num_machine}{physical}, {cores.num_allowed} allowed to this process, {quota}"
    if (processor.num_memory_nodes or 1) > 1:
        yield "memory nodes", f"{processor.num_memory_nodes}, on {processor.num_sockets or '?'} sockets"
    yield "threads", f"{facts.threads} will compute"


def _memory(facts: Facts) -> Iterator[tuple[str, str]]:
    from gemwright.cli.doctor_facts import kv_budget_bytes
    from gemwright.errors import show_bytes

    memory = facts.memory
    yield "total", f"{show_bytes(memory.total_bytes)}, {show_bytes(memory.available_bytes)} available"
    limit = memory.group_limit_bytes
    yield "control group", "no limit" if limit is None else f"limit {show_bytes(limit)}"
    yield "for this process", show_bytes(memory.free_bytes)
    yield "K/V cache", f"at most {show_bytes(kv_budget_bytes(facts))} of it, unless --kv-cache-memory-bytes says more"
    swap = f"{show_bytes(memory.swap_free_bytes)} free of {show_bytes(memory.swap_total_bytes)}"
    yield "swap", swap if memory.swap_total_bytes else "none"
    pages = f"{memory.num_huge_pages} of {show_bytes(memory.huge_page_bytes)} set aside"
    yield "huge pages", f"{pages}, transparent ones: {memory.transparent_huge_pages or 'not told'}"
    space, locked = memory.address_space_limit_bytes, memory.locked_limit_bytes
    yield (
        "limits",
        f"address space {'none' if space is None else show_bytes(space)}, "
        f"locked memory {'none' if locked is None else show_bytes(locked)}",
    )


def _gpus(facts: Facts) -> Iterator[tuple[str, str]]:
    from gemwright.errors import show_bytes

    found = facts.gpus
    for gpu in found.gpus:
        sizes = [show_bytes(size) for size in (gpu.free_bytes, gpu.total_bytes) if size is not None]
        told = [gpu.name, " free of ".join(sizes)]
        told += [f"driver {gpu.driver}"] if gpu.driver else []
        told += [f"compute capability {gpu.compute_capability}"] if gpu.compute_capability else []
        told += ["cut into instances (MIG)"] if gpu.mig == "Enabled" else []
        yield "?" if gpu.index is None else f"cuda:{gpu.index}", ", ".join(filter(None, told))
        for process in gpu.processes:
            size = "" if process.used_bytes is None else f", {show_bytes(process.used_bytes)}"
            yield "", f"used by process {process.pid}, {process.name}{size}"
        for part in gpu.instances:
            sizes = [show_bytes(size) for size in (part.free_bytes, part.total_bytes) if size is not None]
            yield "", f"instance {part.index}, {part.profile or 'profile unknown'}, {' free of '.join(sizes)}"
    if found.gpus and found.visible is not None:
        yield "visible", f"CUDA_VISIBLE_DEVICES={found.visible}"
    if not found.gpus:
        yield "none", "of NVIDIA's driver"


def _kernels(facts: Facts) -> Iterator[tuple[str, str]]:
    for judged in facts.backends:
        state = "runs" if judged.obstacle is None else judged.obstacle
        state = "chosen" if judged.is_chosen else state
        yield judged.backend.name, f"{state}; {judged.backend.what} ({', '.join(judged.backend.devices)})"


def _installed(facts: Facts) -> Iterator[tuple[str, str]]:
    from gemwright.cli.installed import OPTIONAL_PACKAGES

    software = facts.software
    yield f"{'gemwright':<{_PACKAGE_WIDTH}}", software.gemwright
    yield f"{'python':<{_PACKAGE_WIDTH}}", f"{software.python}, {software.python_path}"
    yield f"{'system':<{_PACKAGE_WIDTH}}", ", ".join(filter(None, (software.system, software.kernel, software.libc)))
    for name, version in software.packages.items():
        extra = OPTIONAL_PACKAGES.get(name)
        absent = "not installed" if extra is None else f"not installed (extra {extra})"
        built = "" if name != "torch" or version is None else f", CUDA {facts.gpus.torch_cuda or 'none'}"
        yield f"{name:<{_PACKAGE_WIDTH}}", f"{version or absent}{built}"


def _places(facts: Facts) -> Iterator[tuple[str, str]]:
    from gemwright.errors import show_bytes

    for place in facts.places:
        held = f"{show_bytes(place.used_bytes)}, {place.num_models} model{'' if place.num_models == 1 else 's'}"
        free = "" if place.free_bytes is None else f", {show_bytes(place.free_bytes)} free"
        yield place.name, place.path
        yield "", f"{held if place.exists else 'made when it is needed'}{free}"
        for name, value in place.moved_by.items():
            yield "", f"{name}={value}"


def _settings(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "hub", facts.hub.endpoint + (", offline" if facts.hub.is_offline else "")
    token = "none" if facts.hub.token_from is None else f"from {facts.hub.token_from}"
    yield "hub token", token
    pairs = {**facts.hub.variables, **facts.other_variables}
    pairs |= {variable.name: variable.value for variable in facts.variables}
    for index, (name, value) in enumerate(pairs.items()):
        yield "variables" if index == 0 else "", f"{name}={value}"


def _model(facts: Facts) -> Iterator[tuple[str, str]]:
    from gemwright.errors import show_bytes

    found = facts.assessment
    if found is None:
        return
    yield "path", "not on this machine" if found.path is None else str(found.path)
    if (about := found.description) is not None:
        yield "family", f"{about.family}, {about.format}, stored in {about.stored_dtype or '?'}"
        yield "files", show_bytes(about.weights_bytes)
        yield "tokenizer", "yes" if about.has_tokenizer else "none: ids only"
        yield "chat template", "yes" if about.has_chat_template else "none in its files"
    if (plan := found.plan) is None:
        return
    yield "computed in", f"{plan.dtype} by {found.backend or 'nothing that is here'} on {facts.config.device}"
    context = found.description.spec.max_context if found.description and found.description.spec else plan.max_model_len
    yield "context", f"{plan.max_model_len} tokens of the model's {context}"
    for line in plan.lines:
        yield "" if line is not plan.lines[0] else "takes", f"{line.name:<44}{show_bytes(line.planned_bytes):>12}"
    yield "", f"{'for the time of an operation':<44}{show_bytes(plan.workspace.scratch_bytes):>12}"
    free = f"  of {show_bytes(plan.free_bytes)} free" if plan.free_bytes else ""
    yield "", f"{'in all':<44}{show_bytes(plan.needed_bytes):>12}{free}"
