"""GET /v1/ledger: what was planned beside what the live process holds, and who still fits.

Numbers alone: no word of a prompt or an answer passes here. They are read while the engine may be in the middle of a
step, each of them whole; two of them may be a step apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from gemwright.engine.async_engine import AsyncEngine
from gemwright.engine.llm import LLM
from gemwright.engine.request import Request as EngineRequest
from gemwright.planner.ledger import Line, Place
from gemwright.server.route import service_of
from gemwright.server.service import Answering, Service

router = APIRouter(tags=["Status"])


@router.get("/v1/ledger")
async def ledger(request: Request) -> dict[str, Any]:
    """The plan, line by line, beside what is allocated and in use, the K/V blocks, and the requests that run."""
    service = service_of(request)
    # An engine that drains or has failed still holds its memory, so it is shown; only one that is not there is refused.
    engine = service.loaded_engine or service.engine
    now = time.perf_counter()
    live = [_live(answering, now) for answering in service.live.values()]
    # Apart, since the system is asked for what the process holds.
    found = await asyncio.to_thread(read_ledger, engine, service.settings.planned_runtime_bytes)
    return {"model": service.names[0], "state": _state(service, engine), **found, "live": live}


def read_ledger(engine: AsyncEngine, runtime_bytes: int | None = None) -> dict[str, Any]:
    """Return the ledger of a live engine; any thread may ask, and the engine goes on meanwhile.

    `runtime_bytes` is what the process is planned to take beside the engine's lines; None: as seen elsewhere.
    """
    llm = engine.llm
    found = llm.measure() if runtime_bytes is None else llm.measure(runtime_bytes=runtime_bytes)
    place: Place = "ram" if found.is_on_cpu else "gpu"
    lines = [
        {
            **Line(line.name, line.planned_bytes, place, "steady", line.formula, line.source).to_dict(),
            "measured_bytes": measured.measured_bytes,
            "touched_bytes": measured.touched_bytes,
        }
        for line, measured in zip(llm.engine.lines, found.lines, strict=True)
    ]
    held = _live_requests(llm)
    return {
        "lines": lines,
        "total": {
            "planned_bytes": llm.engine.planned_bytes,
            "measured_bytes": llm.engine.measured_bytes,
            "touched_bytes": found.touched_bytes,
        },
        "process": {
            **found.to_dict()["process"],
            "planned_runtime_bytes": found.runtime_bytes,
            "beside_bytes": found.beside_bytes,
        },
        "kv": {"share_held": llm.core.blocks.share_held, "groups": _groups(llm)},
        "requests": {"num_running": engine.num_running, "num_waiting": engine.num_waiting},
        "max_context_tokens": llm.engine.max_model_len,
        "max_num_seqs": llm.core.limits.max_num_seqs,
        "num_more_users": num_more_users(llm, held),
    }


def num_more_users(llm: LLM, held: Sequence[EngineRequest]) -> int:
    """Return how many more requests of the full context fit beside those of `held`, even if each of these grows as long
    as it may: none of them would ever have to give way.

    Blocks that requests share are counted for each of them, so that there may be room for more.
    """
    core = llm.core
    most = core.limits.max_num_seqs - len(held)
    for group in llm.engine.layout.groups:
        step_tokens = llm.engine.step_tokens
        taken = sum(group.blocks_for_request(request.max_num_tokens, step_tokens) for request in held)
        each = group.blocks_for_request(core.limits.max_model_len, step_tokens)
        most = min(most, (group.num_blocks - taken) // each)
    return max(0, most)


def _live_requests(llm: LLM) -> tuple[EngineRequest, ...]:
    """Return the requests that run or wait. Each list is copied in one go, between two changes of the worker's; one
    that moves from the first to the second meanwhile is counted once."""
    scheduler = llm.core.scheduler
    found = (*tuple(scheduler.waiting), *tuple(scheduler.running))
    return tuple({request.request_id: request for request in found}.values())


def _groups(llm: LLM) -> list[dict[str, Any]]:
    groups = []
    for group, pool in zip(llm.engine.layout.groups, llm.core.blocks.pools, strict=True):
        num_held = group.num_blocks - pool.num_free
        groups.append(
            {
                "kind": group.kind,
                "window": group.window,
                "num_layers": len(group.layers),
                "block_size": group.block_size,
                "block_bytes": group.block_bytes,
                "num_blocks": group.num_blocks,
                "num_held_blocks": num_held,
                "num_touched_blocks": pool.num_touched,
                "held_bytes": num_held * group.block_bytes,
                "total_bytes": group.total_bytes,
            }
        )
    return groups


def _live(answering: Answering, now: float) -> dict[str, Any]:
    return {
        "prompt_tokens": answering.asked.num_prompt_tokens,
        "completion_tokens": answering.num_tokens,
        "max_tokens": answering.asked.params.max_tokens,
        "seconds": round(now - answering.arrived_at, 3),
        "has_begun": answering.first_piece_at is not None,
    }


def _state(service: Service, engine: AsyncEngine) -> str:
    return "failed" if engine.failure is not None else service.state
