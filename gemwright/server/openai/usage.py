"""Token counts as OpenAI's clients read them, with the details that vLLM's users know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemwright.server.service import Answering


def usage_of(answering: Answering, num_cached: int = 0) -> dict[str, Any]:
    """Return the usage of a request as far as it has come; `num_cached` tokens of its prompt were in the cache, as long
    as it is not at its end.

    What is written into the cache are the whole blocks that were not in it before: the end of a prompt that fills no
    block is neither found there nor written.
    """
    completion = answering.completion
    num_prompt = answering.asked.num_prompt_tokens
    num_completion = answering.num_tokens if completion is None else completion.usage.completion_tokens
    num_written = sum(answering.kept_tokens.values())
    num_cached = num_cached if completion is None else completion.usage.cached_tokens
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {
            "cached_tokens": num_cached,
            "created_cache_tokens": num_written,
            "cache_write_tokens": num_written,
            "audio_tokens": 0,
            "image_tokens": 0,
            "text_tokens": num_prompt,
        },
        "completion_tokens_details": {
            "reasoning_tokens": answering.num_reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def added(usages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the usage of all prompts of one request."""
    return {
        name: added([usage[name] for usage in usages]) if isinstance(value, dict) else sum(u[name] for u in usages)
        for name, value in usages[0].items()
    }
