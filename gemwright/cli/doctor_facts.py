"""All that `gemwright doctor` finds out, as one object; what each fact means is left to doctor_findings."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from gemwright.cli.installed import Software, Variable, read_software
from gemwright.config import EngineConfig
from gemwright.errors import GemwrightError
from gemwright.loading.places import HubSettings, Place, hub_settings, model_places
from gemwright.memory.gpus import GpuFacts, read_gpus
from gemwright.memory.machine import CoreFacts, MemoryFacts, allowed_threads, core_facts, memory_facts
from gemwright.ops.backends import MKL_STRICT, Judged, judge_backends
from gemwright.ops.processor import Processor, read_processor
from gemwright.ops.torch_facts import TorchFacts, read_torch

if TYPE_CHECKING:
    from gemwright.engine.assess import Assessment

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", MKL_STRICT[0], "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Facts:
    """A machine, as far as Gemwright depends on it."""

    config: EngineConfig
    settings_error: GemwrightError | None
    """What is wrong with the flags and variables of an engine; `config` then holds the defaults."""
    processor: Processor
    cores: CoreFacts
    threads: int
    """The threads that an engine would start."""
    memory: MemoryFacts
    gpus: GpuFacts
    torch: TorchFacts | None
    """None unless it was asked to start."""
    backends: tuple[Judged, ...]
    software: Software
    places: tuple[Place, ...]
    places_error: GemwrightError | None
    hub: HubSettings
    variables: tuple[Variable, ...]
    other_variables: dict[str, str]
    """Of the variables of other programs that matter to us, those that are set."""
    has_default_model: bool
    """Whether the default model is joined, or its packages are installed."""
    is_default_joined: bool
    """Whether it lies whole in our cache."""
    assessment: Assessment | None


def gather(
    config: EngineConfig,
    settings_error: GemwrightError | None,
    variables: tuple[Variable, ...],
    assessment: Assessment | None,
    *,
    starts_torch: bool,
) -> Facts:
    """Return all facts; only a torch that is to be started takes more than a fraction of a second."""
    from gemwright.loading import default_model

    places: tuple[Place, ...] = ()
    places_error = None
    has_default = is_joined = False
    try:
        places = model_places()
        is_joined = default_model.joined_path() is not None
        has_default = is_joined or default_model.is_installed()
    except GemwrightError as error:
        places_error = error
    return Facts(
        config=config,
        settings_error=settings_error,
        processor=read_processor(),
        cores=core_facts(),
        threads=config.threads or allowed_threads(),
        memory=memory_facts(),
        gpus=read_gpus(),
        torch=read_torch() if starts_torch else None,
        backends=judge_backends(config.kernels, config.device),
        software=read_software(),
        places=places,
        places_error=places_error,
        hub=hub_settings(),
        variables=variables,
        other_variables={name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        has_default_model=has_default,
        is_default_joined=is_joined,
        assessment=assessment,
    )


def kv_budget_bytes(facts: Facts) -> int:
    """Return the most that the K/V pool takes unless a flag says otherwise; 0 where free memory is not known."""
    from gemwright.memory.engine_plan import KV_SHARE

    return facts.memory.free_bytes // KV_SHARE


def to_json(facts: Facts) -> dict[str, Any]:
    """Return the facts for --json; findings are added by the verb."""
    return {
        "processor": asdict(facts.processor),
        "cores": {**asdict(facts.cores), "threads": facts.threads},
        "memory": {**asdict(facts.memory), "kv_budget_bytes": kv_budget_bytes(facts)},
        "gpus": asdict(facts.gpus),
        "torch": None if facts.torch is None else asdict(facts.torch),
        "kernels": [
            {
                "name": judged.backend.name,
                "what": judged.backend.what,
                "devices": list(judged.backend.devices),
                "needs": sorted(judged.backend.features),
                "obstacle": judged.obstacle,
                "is_chosen": judged.is_chosen,
            }
            for judged in facts.backends
        ],
        "software": asdict(facts.software),
        "places": [asdict(place) for place in facts.places],
        "hub": asdict(facts.hub),
        "variables": [asdict(variable) for variable in facts.variables],
        "other_variables": facts.other_variables,
        "has_default_model": facts.has_default_model,
        "model": None if facts.assessment is None else _model_json(facts.assessment),
    }


def _model_json(found: Assessment) -> dict[str, Any]:
    content: dict[str, Any] = {
        "model": found.model,
        "path": None if found.path is None else str(found.path),
        "runs": not found.refusals,
        "kernels": found.backend,
        "notes": list(found.notes),
    }
    content.update(dict.fromkeys(("family", "format", "stored_dtype", "weights_file_bytes", "tokenizer")))
    content.update(dict.fromkeys(("chat_template", "model_context", "dtype", "max_model_len", "lines")))
    content.update(dict.fromkeys(("planned_bytes", "needed_bytes", "free_bytes")))
    if (about := found.description) is not None:
        content |= {
            "family": about.family,
            "format": about.format,
            "stored_dtype": about.stored_dtype,
            "weights_file_bytes": about.weights_bytes,
            "tokenizer": about.has_tokenizer,
            "chat_template": about.has_chat_template,
            "model_context": None if about.spec is None else about.spec.max_context,
        }
    if (plan := found.plan) is not None:
        content |= {
            "dtype": plan.dtype,
            "max_model_len": plan.max_model_len,
            "lines": [{field.name: getattr(line, field.name) for field in fields(line)} for line in plan.lines],
            "planned_bytes": plan.planned_bytes,
            "needed_bytes": plan.needed_bytes,
            "free_bytes": plan.free_bytes,
        }
    return content
