"""What is served here, as Ollama's clients ask: /api/tags, /api/show, /api/ps, /api/version."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request

from gemwright import __version__
from gemwright.engine.llm import LLM
from gemwright.planner.weights import num_language_parameters
from gemwright.server.errors import FieldError
from gemwright.server.ollama.schema import ShowBody
from gemwright.server.route import body_of, read_body, service_of
from gemwright.server.service import Service

router = APIRouter(tags=["Ollama"])

SPOKEN_VERSION = "0.12.11"
"""The version of Ollama whose interface this is: clients look here for what they may send. The first with logprobs."""

_DTYPES = {"float32": "F32", "bfloat16": "BF16"}
_FOR_EVER = timedelta(days=36_500)
"""How long a model stays loaded that is never unloaded: clients want a date."""


def check_name(service: Service, name: str) -> str:
    """Return the name to put into an answer: a served one, or one with Ollama's tag behind it.

    Raises NotFoundError for any other.
    """
    return service.check_model(name, names=tuple(f"{served}:latest" for served in service.names))


@router.get("/api/tags")
async def list_models(request: Request) -> dict[str, Any]:
    """List the names of the model that is served."""
    service = service_of(request)
    return {"models": [_model(service, name) for name in service.names]}


@router.get("/api/ps")
async def list_running(request: Request) -> dict[str, Any]:
    """List the same while it is loaded, with what it takes."""
    service = service_of(request)
    engine = service.loaded_engine
    if engine is None:
        return {"models": []}
    started = engine.llm.engine
    more = {
        "expires_at": _time(service, _FOR_EVER),
        "size": started.planned_bytes,
        "size_vram": started.planned_bytes if started.plan.free_bytes == 0 else 0,
        "context_length": started.max_model_len,
    }
    models = [{**_model(service, name), **more} for name in service.names]
    return {"models": [{key: value for key, value in model.items() if key != "modified_at"} for model in models]}


@router.post("/api/show", openapi_extra=body_of(ShowBody, {"model": "gemma"}))
async def show_model(request: Request) -> dict[str, Any]:
    """Describe the model under one of its names."""
    service = service_of(request)
    body = await read_body(request, ShowBody)
    name = body.model or body.name
    if name is None:
        raise FieldError("model", "is missing", remedy="send it")
    check_name(service, name)
    llm = service.llm
    spec, family = llm.spec, llm.spec.family
    template = llm.chat_template
    defaults = llm.sampling_defaults()
    return {
        "modelfile": f"# served by Gemwright {__version__}\nFROM {service.model}",
        "parameters": "\n".join(f"{key} {value}" for key, value in defaults.items()),
        "template": "" if template is None else f"# chat template: {template.name}",
        "modified_at": _time(service),
        "details": _details(llm),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": num_language_parameters(spec),
            f"{family}.context_length": llm.engine.max_model_len,
            f"{family}.embedding_length": spec.hidden_size,
            f"{family}.block_count": spec.num_layers,
            f"{family}.attention.head_count": spec.layers[0].num_query_heads,
            f"{family}.attention.head_count_kv": spec.layers[0].num_kv_heads,
            f"{family}.vocab_size": spec.vocab_size,
        },
        "capabilities": [
            "completion",
            *([] if template is None else ["tools"]),
            *(["thinking"] if template is not None and template.can_think else []),
        ],
    }


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Say which Ollama's interface this is, and what serves it."""
    return {"version": SPOKEN_VERSION, "gemwright": __version__}


def _model(service: Service, name: str) -> dict[str, Any]:
    tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    engine = service.loaded_engine
    llm = None if engine is None else engine.llm
    weights = [] if llm is None else [line.planned_bytes for line in llm.engine.lines if line.key[0] == "weights"]
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": _time(service),
        "size": sum(weights),
        "digest": hashlib.sha256(service.model.encode()).hexdigest(),
        "details": _details(llm),
    }


def _details(llm: LLM | None) -> dict[str, Any]:
    family = "" if llm is None else llm.spec.family
    return {
        "parent_model": "",
        "format": "gguf" if llm is not None and llm.model.endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "" if llm is None else _size(num_language_parameters(llm.spec)),
        "quantization_level": "" if llm is None else _DTYPES[llm.engine.dtype],
    }


def _size(num_parameters: int) -> str:
    for unit, size in (("B", 1_000_000_000), ("M", 1_000_000), ("K", 1_000)):
        if num_parameters >= size:
            return f"{num_parameters / size:.1f}{unit}"
    return str(num_parameters)


def _time(service: Service, later: timedelta = timedelta(0)) -> str:
    return (datetime.fromtimestamp(service.created, UTC) + later).isoformat().replace("+00:00", "Z")
