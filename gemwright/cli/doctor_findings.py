"""What the facts of `gemwright doctor` mean: checks, each ok, a warning or a problem, with value, limit and remedy.

A problem is what `gemwright run` would end with; a warning is what it would go on in spite of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gemwright.cli.doctor_facts import Facts
from gemwright.cli.installed import BASE_PACKAGES
from gemwright.errors import CapacityError, CheckpointError, GemwrightError, UnsupportedError, show_bytes
from gemwright.ops.backends import AUTO, MKL_STRICT

LOW_BYTES = 1 << 30
"""Less free memory or disk than this is worth a warning: the smallest Gemma takes about half of it."""

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check."""

    name: str
    state: State
    what: str
    value: str | None = None
    limit: str | None = None
    remedy: str | None = None
    exit_code: int = 0
    """For a problem, the exit code of a run that met it."""


def find(facts: Facts) -> tuple[Finding, ...]:
    """Return every check in the order of the report."""
    return tuple(
        finding
        for check in (_settings, _kernels, _row_law, _threads, _memory, _gpus, _packages, _places, _hub, _variables)
        for finding in check(facts)
    ) + tuple(_model(facts))


def exit_code(findings: tuple[Finding, ...]) -> int:
    """Return 0, or the exit code of the first problem."""
    return next((finding.exit_code for finding in findings if finding.state == "problem"), 0)


def _problem(name: str, error: GemwrightError) -> Finding:
    value = None if error.value is None else str(error.value)
    limit = None if error.limit is None else str(error.limit)
    return Finding(name, "problem", error.what, value, limit, error.remedy, error.exit_code)


def _settings(facts: Facts) -> Iterator[Finding]:
    if facts.settings_error is not None:
        yield _problem("settings", facts.settings_error)


def _kernels(facts: Facts) -> Iterator[Finding]:
    chosen = next((judged.backend for judged in facts.backends if judged.is_chosen), None)
    if chosen is None:
        asked = [judged for judged in facts.backends if facts.config.kernels in (AUTO, judged.backend.name)]
        yield Finding(
            "kernels",
            "problem",
            f"the {asked[-1].backend.name} backend cannot run here: {asked[-1].obstacle}",
            value=f"--kernels {facts.config.kernels}, --device {facts.config.device}",
            remedy=asked[-1].remedy,
            exit_code=UnsupportedError.exit_code,
        )
        return
    others = [judged for judged in facts.backends if not judged.is_chosen and judged.obstacle is not None]
    why = [chosen.what, *(f"{judged.backend.name} cannot: {judged.obstacle}" for judged in others)]
    yield Finding("kernels", "ok", f"{chosen.name} runs on {facts.config.device}: {'; '.join(why)}")
    if facts.torch is not None and facts.torch.problem is not None:
        yield Finding(
            "torch",
            "problem",
            "torch is installed and does not start",
            value=facts.torch.problem,
            remedy="pip install --force-reinstall torch",
            exit_code=GemwrightError.exit_code,
        )


def _row_law(facts: Facts) -> Iterator[Finding]:
    name, wanted = MKL_STRICT
    value = facts.other_variables.get(name)
    measured = None if facts.torch is None else facts.torch.rows_are_independent
    if measured is False or (measured is None and value is not None and "STRICT" not in value):
        yield Finding(
            "row law",
            "warning",
            "float32 results are the same in any company, but only for one number of threads",
            value=f"{name}={value}" if value is not None else "this torch has no MKL in strict mode",
            limit=f"{name}={wanted}",
            remedy=f"leave {name} unset: Gemwright sets it" if value is not None else "always use the same --threads",
        )
    elif measured:
        yield Finding("row law", "ok", "measured: float32 rows are the same in any company and with any threads")
    else:
        told = f"{name}={value}" if value is not None else f"{name} is set to {wanted} at the start"
        yield Finding("row law", "ok", f"{told}; --full measures whether it holds")


def _threads(facts: Facts) -> Iterator[Finding]:
    cores = facts.cores
    allowed = cores.num_allowed if cores.quota is None else min(cores.num_allowed, cores.quota)
    if facts.threads > allowed:
        limited = "" if cores.quota is None else f", {cores.quota:g} by the control group's quota"
        yield Finding(
            "threads",
            "warning",
            "more threads than cores: they wait for each other",
            value=f"{facts.threads} threads",
            limit=f"{cores.num_allowed} cores allowed{limited}",
            remedy="lower --threads or OMP_NUM_THREADS, or leave both out",
        )
    else:
        yield Finding("threads", "ok", f"{facts.threads} of {cores.num_machine} cores")


def _memory(facts: Facts) -> Iterator[Finding]:
    memory = facts.memory
    if not memory.free_bytes:
        yield Finding(
            "memory",
            "warning",
            "nobody tells how much memory is free, so no model can be refused for its size",
            remedy="look at /proc/meminfo: it should have MemAvailable",
        )
    elif memory.free_bytes < LOW_BYTES:
        yield Finding(
            "memory",
            "warning",
            "little memory is free",
            value=show_bytes(memory.free_bytes),
            limit=f"{show_bytes(LOW_BYTES)} for the smallest models",
            remedy="end other programs, or raise the limit of the control group",
        )
    else:
        yield Finding("memory", "ok", f"{show_bytes(memory.free_bytes)} free for this process")
    if memory.address_space_limit_bytes is not None:
        yield Finding(
            "address space",
            "warning",
            "the shell limits the address space, in which model files are mapped too",
            value=show_bytes(memory.address_space_limit_bytes),
            remedy="ulimit -v unlimited",
        )


def _gpus(facts: Facts) -> Iterator[Finding]:
    found = facts.gpus
    wants_gpu = facts.config.device != "cpu"
    if found.problem is not None:
        yield Finding("GPU", "warning", "the driver cannot be asked", value=found.problem, remedy="run nvidia-smi")
    if not found.gpus and not wants_gpu:
        return
    has_torch = facts.software.packages["torch"] is not None
    if wants_gpu and facts.torch is not None and facts.torch.num_cuda_devices == 0:
        yield Finding(
            "GPU",
            "problem",
            "torch can use no GPU",
            value=f"--device {facts.config.device}",
            remedy="use --device cpu, or install a torch for this GPU's driver",
            exit_code=UnsupportedError.exit_code,
        )
    elif has_torch and found.torch_cuda is None:
        yield Finding(
            "GPU",
            "problem" if wants_gpu else "warning",
            "the installed torch is built for the CPU alone",
            value=f"torch {facts.software.packages['torch']}",
            remedy="install a torch with CUDA, or use --device cpu",
            exit_code=UnsupportedError.exit_code if wants_gpu else 0,
        )
    elif not found.gpus:
        yield Finding(
            "GPU",
            "problem",
            "no GPU of NVIDIA's driver is here",
            value=f"--device {facts.config.device}",
            remedy="use --device cpu",
            exit_code=UnsupportedError.exit_code,
        )
    elif found.problem is None:
        some = "" if wants_gpu else "; --device cuda uses one, unasked the CPU computes"
        yield Finding("GPU", "ok", f"{len(found.gpus)} found{some}")


def _packages(facts: Facts) -> Iterator[Finding]:
    missing = [name for name in BASE_PACKAGES if facts.software.packages[name] is None]
    if missing:
        yield Finding(
            "packages",
            "problem",
            "packages that Gemwright needs are not installed",
            value=", ".join(missing),
            remedy=f"pip install {' '.join(missing)}",
            exit_code=GemwrightError.exit_code,
        )
    else:
        yield Finding("packages", "ok", "all that the base package needs is installed")


def _places(facts: Facts) -> Iterator[Finding]:
    if facts.places_error is not None:
        yield _problem("caches", facts.places_error)
    for place in facts.places:
        variable = "HF_HOME" if place.name == "hub cache" else "GEMWRIGHT_CACHE"
        if place.obstacle is not None:
            yield Finding(
                place.name,
                "warning",
                "nothing can be written there: what it holds runs, and no model is added",
                value=place.obstacle,
                remedy=f"look at its permissions and the room on its disk, or set {variable} to another folder",
            )
        elif place.free_bytes is not None and place.free_bytes < LOW_BYTES:
            yield Finding(
                place.name,
                "warning",
                "its disk is nearly full",
                value=f"{show_bytes(place.free_bytes)} free",
                limit=show_bytes(LOW_BYTES),
                remedy=f"gemwright rm MODEL frees space, or set {variable} to a folder on another disk",
            )
        else:
            free = "" if place.free_bytes is None else f", {show_bytes(place.free_bytes)} free"
            yield Finding(place.name, "ok", f"can be written{free}")
    obstacle = next((place.obstacle for place in facts.places if place.name == "own cache"), None)
    if facts.has_default_model and not facts.is_default_joined and obstacle is not None:
        is_asked = facts.assessment is None
        yield Finding(
            "default model",
            "problem" if is_asked else "warning",
            "is installed, and cannot be joined in the own cache",
            value=obstacle,
            remedy="set GEMWRIGHT_CACHE to a folder that can be written, or name a MODEL",
            exit_code=CheckpointError.exit_code if is_asked else 0,
        )
    elif facts.has_default_model:
        yield Finding("default model", "ok", "is here: gemwright run PROMPT uses it")
    else:
        yield Finding("default model", "ok", "is not installed (extra demo), so commands need a MODEL")


def _hub(facts: Facts) -> Iterator[Finding]:
    token = "no token" if facts.hub.token_from is None else f"a token from {facts.hub.token_from}"
    if facts.hub.is_offline:
        yield Finding("hub", "ok", f"offline: models are not fetched; {token}")
    else:
        yield Finding("hub", "ok", f"{facts.hub.endpoint}, {token} (not asked: doctor uses no network)")


def _variables(facts: Facts) -> Iterator[Finding]:
    unknown = [variable for variable in facts.variables if not variable.is_known]
    for variable in unknown:
        correct = "take it away; `gemwright run --help` names those there are"
        yield Finding(
            "variables",
            "warning",
            f"{variable.name} is not read by anything",
            value=variable.value,
            remedy=correct if variable.meant is None else f"did you mean {variable.meant}?",
        )
    if not unknown:
        number = len(facts.variables)
        yield Finding("variables", "ok", f"{number} of ours set" if number else "none of ours set")


def _model(facts: Facts) -> Iterator[Finding]:
    found = facts.assessment
    if found is None:
        return
    name = f"model {found.model}"
    # What holds for any model is a finding of its own already.
    own = [error for error in found.refusals if not _is_of_the_machine(error, facts)]
    for error in own:
        yield _problem(name, error)
    if not own and (plan := found.plan) is not None:
        gpu = _too_large_for_gpu(facts, plan.needed_bytes)
        if gpu is not None:
            yield _problem(name, gpu)
        elif found.refusals:
            yield Finding(name, "warning", "would run, but for the problem above")
        else:
            free = f" of {show_bytes(plan.free_bytes)} free" if plan.free_bytes else ""
            yield Finding(
                name,
                "ok",
                f"runs in {plan.dtype} with a context of {plan.max_model_len} tokens, "
                f"and takes {show_bytes(plan.needed_bytes)}{free}",
            )
    for note in found.notes:
        yield Finding(name, "ok", note)
    if found.description is not None and not found.description.has_tokenizer:
        yield Finding(
            name,
            "warning",
            "has no tokenizer files: it takes and gives token ids only",
            remedy="fetch the model again, or put the tokenizer.json of its publisher beside it",
        )


def _is_of_the_machine(error: GemwrightError, facts: Facts) -> bool:
    return any(judged.obstacle is not None and judged.obstacle in error.what for judged in facts.backends)


def _too_large_for_gpu(facts: Facts, needed_bytes: int) -> CapacityError | None:
    """Return the error for a model that the GPU asked for cannot hold, as far as its driver tells."""
    kind, _, number = facts.config.device.partition(":")
    devices = facts.gpus.devices()
    if kind != "cuda" or int(number or 0) >= len(devices):
        return None
    gpu = devices[int(number or 0)]
    if gpu.free_bytes is None or needed_bytes <= gpu.free_bytes:
        return None
    return CapacityError(
        f"the model does not fit on {gpu.name}",
        value=f"{show_bytes(needed_bytes)} needed",
        limit=f"{show_bytes(gpu.free_bytes)} free",
        remedy="use --device cpu, a smaller model, or lower --max-num-seqs and --max-model-len",
    )
