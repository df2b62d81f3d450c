"""What vLLM holds on each device beside K/V: its share of the weights, and what a start-up's profile run finds.

Published logs show 0.4 to 11 GiB beside weights and K/V. That cannot be told from a config to better than about 1 GiB,
so every line but the weights has a wide error bar.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gemwright.planner.engines.versions import Version
from gemwright.planner.engines.vllm_pages import TOKENS_BY_CONCURRENCY_SINCE
from gemwright.planner.ledger import Line, Place
from gemwright.planner.media import image_tokens, media_lines
from gemwright.planner.placement import Placement
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import WeightPart
from gemwright.spec.model_spec import ModelSpec

MIB: Final = 1 << 20
GIB: Final = 1 << 30

_LARGE_DEVICE_BYTES: Final = 70 * GIB
"""From here on vLLM's defaults are those of large devices, A100 excepted (engine/arg_utils.py)."""
_BUFFERS_ERROR_BYTES: Final = GIB // 4
"""0.2 to 0.7 GiB are seen beside the checkpoint, of which the rotary tables explain most."""
_CONTEXT_BYTES: Final = 200 * MIB
_CONTEXT_ERROR_BYTES: Final = 150 * MIB
_GRAPHS_BYTES: Final = 150 * MIB
"""Of CUDA graphs, counted from 0.21 on."""
_COMMUNICATION_BYTES: Final = 256 * MIB
_DEFAULT_BUDGET: Final = 2048
_LARGE_BUDGET: Final = 8192
_MULTIMODAL_BUDGET: Final = 2496
"""Seen for Gemma 4 12B, 26B-A4B and 31B: positions of one item see each other both ways, so that no step may cut it."""
_PROFILED_AUDIO_SECONDS: Final = 30.0


def is_multimodal(spec: ModelSpec, settings: PlanSettings) -> bool:
    """Return whether the towers are loaded."""
    return bool(spec.towers) and not settings.language_model_only


def device_memory_bytes(settings: PlanSettings) -> int | None:
    """Return the memory planned for on each device; None where none was named."""
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    return None if settings.device is None else settings.device.memory_bytes


def is_large_device(settings: PlanSettings) -> bool:
    """Return whether vLLM's defaults are those of H100, H200, B200 and MI300: 70 GiB and more, but no A100.

    The device decides where one is named, else the memory that may be taken.
    """
    device = settings.device
    memory = settings.memory_bytes if device is None or device.memory_bytes is None else device.memory_bytes
    is_a100 = device is not None and "a100" in device.name.lower()
    is_processor = device is not None and device.kind == "cpu"
    return memory is not None and memory >= _LARGE_DEVICE_BYTES and not is_a100 and not is_processor


def token_budget(spec: ModelSpec, settings: PlanSettings) -> tuple[int, str]:
    """Return the most tokens of a step (`--max-num-batched-tokens`) and where that number comes from."""
    if settings.max_num_batched_tokens is not None:
        return settings.max_num_batched_tokens, "--max-num-batched-tokens"
    if is_large_device(settings):
        return _LARGE_BUDGET, "the default of a server on a device of 70 GiB and more (not A100)"
    both_ways = spec.family == "gemma4" and spec.image_attention != "causal"
    if both_ways and is_multimodal(spec, settings):
        return _MULTIMODAL_BUDGET, "as seen for models whose image positions see each other both ways"
    return _DEFAULT_BUDGET, "the default of a server on a small device"


def weight_lines(
    parts: Iterable[WeightPart], spec: ModelSpec, settings: PlanSettings, placed: Placement, place: Place
) -> list[Line]:
    """Return what each device holds of the weights.

    Matrices and tables are divided; norms are on every device; so are towers and drafter, which some versions divide,
    so that their error bar is what a division would save. K and V projections of fewer heads than devices are copied.
    """
    size = settings.tensor_parallel_size
    copied_values = sum(kind.replicated_weights for kind in placed.kinds)
    lines = []
    for part in parts:
        held, formula, error = part.size_bytes, part.formula, part.error_bytes
        if size > 1 and part.name in ("vision", "audio", "projector", "drafter"):
            formula, error = f"on each of {size} devices: {formula}", error + held - held // size
        elif size > 1 and part.name == "norms":
            formula = f"on each of {size} devices: {formula}"
        elif size > 1:
            copies = 0
            if part.name == "layers" and part.num_parameters:
                copies = copied_values * part.size_bytes // part.num_parameters
            held, error = -(-(held + copies) // size), -(-error // size)
            formula = f"({formula}{f' + {copies:,} B of copied K/V heads' if copies else ''}) / {size} devices"
        lines.append(Line(f"weights: {part.name}", held, place, "steady", formula, part.source, error))
    return lines


def overhead_lines(
    spec: ModelSpec, settings: PlanSettings, version: Version, max_model_len: int, place: Place
) -> list[Line]:
    """Return what stands on each device beside weights and K/V: held all the time, and at the peak of the profile."""
    size = settings.tensor_parallel_size
    lines = [_rotary_line(spec, place)]
    if place == "gpu":
        lines.append(
            Line(
                "runtime: CUDA context and libraries",
                _CONTEXT_BYTES,
                place,
                "steady",
                "200 MiB",
                "published logs, what is not torch's",
                _CONTEXT_ERROR_BYTES,
            )
        )
    if place == "gpu" and version >= TOKENS_BY_CONCURRENCY_SINCE:
        lines.append(
            Line(
                "runtime: CUDA graphs",
                _GRAPHS_BYTES,
                place,
                "steady",
                "150 MiB; none with --enforce-eager",
                "from 0.21 an estimate of theirs is taken off the cache",
                _GRAPHS_BYTES,
            )
        )
    if size > 1:
        lines.append(
            Line(
                "runtime: buffers between devices",
                _COMMUNICATION_BYTES,
                place,
                "steady",
                f"256 MiB for {size} devices",
                "not derived",
                _COMMUNICATION_BYTES,
            )
        )
    lines += _step_lines(spec, settings, max_model_len, place)
    if is_multimodal(spec, settings):
        lines += _media_profile_lines(spec, settings, place)
    return lines


def _rotary_line(spec: ModelSpec, place: Place) -> Line:
    widths = sorted({(layer.kind.value, layer.head_dim) for layer in spec.layers})
    tables = sum(spec.max_context * head_dim * 2 for _, head_dim in widths)
    return Line(
        "runtime: rotary tables and buffers",
        tables,
        place,
        "steady",
        f"{spec.max_context:,} positions x ({' + '.join(str(head_dim) for _, head_dim in widths)}) x 2 B",
        "max_position_embeddings, head_dim; logs show 0.2 to 0.7 GiB beside the checkpoint",
        _BUFFERS_ERROR_BYTES,
    )


def _step_lines(spec: ModelSpec, settings: PlanSettings, max_model_len: int, place: Place) -> list[Line]:
    """Return activations and logits of the largest step, which the profile run makes."""
    size = settings.tensor_parallel_size
    budget, _ = token_budget(spec, settings)
    hidden = 3 * spec.hidden_size
    heads = max((layer.num_query_heads + 2 * layer.num_kv_heads) * layer.head_dim for layer in spec.layers)
    feed_forward = 3 * max(layer.feed_forward_width for layer in spec.layers)
    values = hidden + (heads + feed_forward) // size
    formula = f"{budget:,} tokens x {values:,} values x 2 B"
    held = 2 * budget * values
    experts = next((layer.experts for layer in spec.layers if layer.experts is not None), None)
    if experts is not None:
        row = experts.num_experts_per_token * (3 * experts.width // size + spec.hidden_size)
        held += 2 * budget * row
        formula += f", experts {budget:,} x {row:,} x 2 B"
    if spec.per_layer_inputs is not None:
        row = spec.num_layers * spec.per_layer_inputs.width
        held += 2 * budget * row
        formula += f", per-layer inputs {budget:,} x {row:,} x 2 B"
    rows = settings.max_num_seqs or (1024 if is_large_device(settings) else 256)
    rows = min(rows, budget)
    logits = rows * spec.vocab_size * 4
    return [
        Line("step: activations", held, place, "step", formula, "the layers' widths", held // 2),
        Line(
            "step: logits and sampling",
            2 * logits,
            place,
            "step",
            f"2 x {rows:,} requests (--max-num-seqs) x {spec.vocab_size:,} x 4 B",
            "vocab_size; the profile run samples for every request",
            logits,
        ),
    ]


def _media_profile_lines(spec: ModelSpec, settings: PlanSettings, place: Place) -> list[Line]:
    """Return what profiling the towers takes: as many images at once as fit the token budget, and one clip of sound."""
    budget, _ = token_budget(spec, settings)
    num_images = max(1, budget // (image_tokens(spec, settings) or budget), settings.num_images)
    seconds = max(settings.audio_seconds, _PROFILED_AUDIO_SECONDS)
    lines = media_lines(
        spec, replace(settings, num_images=num_images, audio_seconds=seconds), dtype_bytes=2, place=place
    )
    together = []
    for line in lines:
        if line.name.endswith("vision tower"):
            each = line.formula.partition(": ")[2]
            together.append(
                replace(
                    line,
                    size_bytes=num_images * line.size_bytes,
                    error_bytes=num_images * line.error_bytes,
                    formula=f"{num_images} at once, as many as fit {budget:,} tokens: {each}",
                )
            )
        else:
            together.append(line)
    return together
