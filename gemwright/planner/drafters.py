"""Which drafter belongs to a model, and what its weights take: from the published configs."""

from __future__ import annotations

from functools import cache

from gemwright.errors import UnsupportedError
from gemwright.planner.published import find_published, list_published
from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec

_SUFFIX = "-assistant"


@cache
def _drafters() -> tuple[tuple[str, ModelSpec], ...]:
    found = []
    for hub_id in list_published():
        published = find_published(hub_id) if hub_id.endswith(_SUFFIX) else None
        if published is not None:
            found.append((hub_id, read_config(published.config, source=hub_id)))
    return tuple(found)


def find_drafter(spec: ModelSpec) -> tuple[str, ModelSpec]:
    """Return hub id and spec of the published drafter for a model: the one that reads its hidden states and heads.

    Raises UnsupportedError for models that have none.
    """
    if spec.family == "gemma4":
        for hub_id, drafter in _drafters():
            assert drafter.drafter is not None
            heads = {(layer.kind, layer.num_kv_heads, layer.head_dim) for layer in spec.layers}
            read = {(layer.kind, layer.num_kv_heads, layer.head_dim) for layer in drafter.layers}
            if drafter.drafter.target_hidden_size == spec.hidden_size and read <= heads:
                return hub_id, drafter
    raise UnsupportedError(
        "no drafter is published for this model",
        value=f"{spec.family}, hidden size {spec.hidden_size}",
        limit="the five sizes of Gemma 4",
        remedy="leave --draft out",
    )
