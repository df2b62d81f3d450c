"""What a model's own configs say about generating: where it stops, how it samples, which tokens it never gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemwright.engine.request import SamplingParams
from gemwright.errors import CheckpointError, RequestError


def stop_ids(generation_config: Mapping[str, Any], spec_eos: Sequence[int]) -> tuple[int, ...]:
    """Return every id the model itself stops at: those of the generation config and those of the config. Raises
    CheckpointError for what is no id."""
    return tuple(dict.fromkeys([*_ids(generation_config, "eos_token_id"), *spec_eos]))


def suppressed_ids(generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids that the generation config's `suppress_tokens` forbids everywhere in an answer, as transformers
    does. Raises CheckpointError for what is no id."""
    return tuple(dict.fromkeys(_ids(generation_config, "suppress_tokens")))


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields a generation config sets; temperature 0 unless it says do_sample. Raises
    CheckpointError for a value that cannot be used."""
    samples = generation_config.get("do_sample")
    if samples not in (True, False, None):
        raise CheckpointError("the model's generation defaults: do_sample", value=samples, limit="true or false")
    defaults: dict[str, Any] = {"temperature": 1.0 if samples else 0.0}
    drawing = ("temperature", "top_k", "top_p", "min_p") if samples else ()
    for name in (*drawing, "repetition_penalty"):
        if generation_config.get(name) is not None:
            defaults[name] = generation_config[name]
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise CheckpointError(
            f"the model's generation defaults: {error.what}", value=error.value, limit=error.limit
        ) from None
    return defaults


def _ids(generation_config: Mapping[str, Any], name: str) -> list[int]:
    listed = generation_config.get(name)
    ids = listed if isinstance(listed, list) else [] if listed is None else [listed]
    if any(type(token_id) is not int or token_id < 0 for token_id in ids):
        raise CheckpointError(f"the model's generation defaults: {name}", value=listed, limit="token ids")
    return ids
