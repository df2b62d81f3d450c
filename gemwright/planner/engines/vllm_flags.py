"""The flags of vLLM for what is planned beside a model: media, a drafter, adapters."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from gemwright.errors import UnsupportedError
from gemwright.planner.drafters import find_drafter
from gemwright.planner.engines.versions import parse_version
from gemwright.planner.media import AUDIO_CLIP_SECONDS
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader

DRAFTED_TOKENS: Final = 4
"""What a plan's speed is told for where nobody says."""
_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""What --max-lora-rank takes."""
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
"""Names that a plan takes and --dtype does not."""
_DRAFTERS_SINCE: Final = (0, 21, 0)
"""0.20.1 refuses the drafters of Gemma 4, 0.21.0 takes them (vllm-project/vllm, issue 42005 and PR 42180)."""


def vllm_dtype(name: str) -> str:
    """Return a dtype as --dtype spells it."""
    return _DTYPES.get(name.lower(), name.lower())


def media_flags(settings: PlanSettings) -> dict[str, Any]:
    """Return the most items of one request: vLLM refuses more."""
    limits = {"image": settings.num_images, "audio": math.ceil(settings.audio_seconds / AUDIO_CLIP_SECONDS)}
    limits = {name: count for name, count in limits.items() if count}
    words: dict[str, Any] = {"--limit-mm-per-prompt": json.dumps(limits)} if limits else {}
    if settings.num_images and settings.image_tokens is not None:
        words["--mm-processor-kwargs"] = json.dumps({"max_soft_tokens": settings.image_tokens})
    return words


def drafter_flags(header: ModelHeader, settings: PlanSettings) -> dict[str, Any]:
    """Return what starts the published drafter beside the model. Raises UnsupportedError where vLLM or the model has
    none, or tokens are drafted by nobody."""
    if not settings.draft:
        if settings.num_speculative_tokens is not None:
            raise UnsupportedError(
                "drafted tokens need a drafter",
                value=f"--num-speculative-tokens {settings.num_speculative_tokens}",
                remedy="add --draft",
            )
        return {}
    if parse_version(settings.engine_version, "vLLM") < _DRAFTERS_SINCE:
        raise UnsupportedError(
            "this version of vLLM runs no drafter of Gemma 4",
            value=f"--draft --engine-version {settings.engine_version}",
            limit="from 0.21.0 on",
            remedy="plan for a newer --engine-version, or without --draft",
        )
    drafter = {
        "method": "mtp",
        "model": find_drafter(header.spec)[0],
        "num_speculative_tokens": settings.num_speculative_tokens or DRAFTED_TOKENS,
    }
    return {"--speculative-config": json.dumps(drafter)}


def adapter_flags(settings: PlanSettings) -> dict[str, Any]:
    """Return what keeps room for adapters: of the next rank that vLLM has. Raises UnsupportedError above the last."""
    asked = settings.lora_rank
    if asked is None:
        return {}
    rank = next((rank for rank in _RANKS if rank >= asked), None)
    if rank is None:
        raise UnsupportedError(
            "vLLM runs no adapters of such a rank",
            value=f"--lora-rank {asked}",
            limit=_RANKS[-1],
            remedy="lower --lora-rank",
        )
    return {"--enable-lora": True, "--max-lora-rank": rank, "--max-loras": settings.num_loras or 1}
