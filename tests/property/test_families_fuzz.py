"""Whatever stands in a config or in GGUF metadata, the answer is a spec or an error of ours, and never a crash."""

from __future__ import annotations

import copy
import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemwright.errors import GemwrightError
from gemwright.spec.families import read_config, read_gguf_metadata
from gemwright.spec.model_spec import ModelSpec
from tests.published_configs import SUPPORTED, load_config

ODD_VALUES = st.sampled_from(
    [0, -1, 1, 2, 3, 7, 2**31, 10**30, 10**400, 1.5, -2.5, 5e-324, 1e308, math.nan, math.inf, True, False, None,
     "", "x", "linear", "vision", [], [1], [True], [[1]], ["full_attention"], ["sliding_attention"] * 60, {}, {"a": 1},
     {"0": {}}, {"rope_type": "linear"}, {"full_attention": None}, {"full_attention": 3}, {"head_dim": 2}]
).map(copy.deepcopy)  # fmt: skip
ABSENT = object()


def check(spec: ModelSpec) -> None:
    """What every reader after this one takes for granted of a spec."""
    for layer in spec.layers:
        assert layer.num_query_heads % layer.num_kv_heads == 0
        assert layer.head_dim % 2 == 0
        assert layer.window is None or layer.window > 0
        assert math.isfinite(layer.attention_scale)
        assert layer.attention_scale > 0
        if layer.kv_source is not None:
            source = spec.layers[layer.kv_source]
            assert source.owns_kv
            assert source.index <= layer.index
            assert (source.kind, source.num_kv_heads, source.head_dim) == (
                layer.kind,
                layer.num_kv_heads,
                layer.head_dim,
            )


def paths(config: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [(*before, key) for key in config]
    for key, value in config.items():
        if isinstance(value, dict):
            found += paths(value, (*before, key))
    return found


@settings(max_examples=400)
@given(data=st.data(), name=st.sampled_from(SUPPORTED), num_changes=st.integers(1, 3), allow=st.booleans())
def test_a_config_with_odd_values_reads_or_is_refused(data: st.DataObject, name: str, num_changes: int, allow: bool):
    config = load_config(name)
    for _ in range(num_changes):
        *parents, last = data.draw(st.sampled_from(paths(config)))
        place = config
        for parent in parents:
            place = place[parent]
        value = data.draw(ODD_VALUES | st.just(ABSENT))
        if value is ABSENT:
            del place[last]
        else:
            place[last] = value
    try:
        spec = read_config(config, allow_unknown_keys=allow)
    except GemwrightError:
        return
    check(spec)


GGUF_KEYS = (
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
    "attention.shared_kv_layers", "attention.sliding_window", "attention.sliding_window_pattern", "block_count",
    "context_length", "embedding_length", "expert_count", "feed_forward_length", "rope.freq_base", "rope.scaling.type",
)  # fmt: skip
SMALL = {
    "block_count": 3,
    "context_length": 64,
    "embedding_length": 8,
    "feed_forward_length": 16,
    "attention.head_count": 2,
    "attention.key_length": 4,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 5,
    "rope.freq_base": 1e6,
}
SHAPES = {"token_embd.weight": (32, 8)} | {f"blk.{layer}.attn_v.weight": (8, 8) for layer in range(3)}


@settings(max_examples=400)
@given(
    architecture=st.sampled_from(["gemma2", "gemma3", "gemma4"]),
    changes=st.dictionaries(st.sampled_from(GGUF_KEYS), ODD_VALUES, max_size=3),
    allow=st.booleans(),
)
@example(architecture="gemma3", changes={}, allow=False)
def test_gguf_metadata_with_odd_values_reads_or_is_refused(architecture: str, changes: dict[str, Any], allow: bool):
    keys = {f"{architecture}.{name}": value for name, value in (SMALL | changes).items()}
    try:
        spec = read_gguf_metadata(
            {"general.architecture": architecture} | keys,
            tensor_shapes=SHAPES,
            rope_freqs=None,
            source="m.gguf",
            allow_unknown_keys=allow,
        )
    except GemwrightError:
        assert changes or architecture == "gemma4"  # which needs more keys than these
        return
    check(spec)
