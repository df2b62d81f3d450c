"""Lines of llama.cpp beside its K/V cache: weights by device, compute buffer, context, projector, a drafter's cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gemwright.errors import show_bytes
from gemwright.planner.drafters import find_drafter
from gemwright.planner.engines.layer_kinds import KindOfLayer
from gemwright.planner.engines.llama_cache import CacheSettings, CellCounts, cell_bytes
from gemwright.planner.ledger import Line, Place
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import WeightPart
from gemwright.spec.model_spec import ModelSpec

MIB: Final = 1 << 20

_CONTEXT_BYTES: Final = 232 * MIB
_CONTEXT_ERROR_BYTES: Final = 83 * MIB
"""150 to 315 MiB of a CUDA context are seen."""
_COMPUTE_BASE_BYTES: Final = 60 * MIB
_COMPUTE_ERROR_SHARE: Final = 0.15
_COMPUTE_ERROR_CELL_BYTES: Final = 4300
"""At 262,144 cells a published log has 1.9 GiB, 1.06 GiB more than the formula, and another less than half of it."""
_PROJECTOR_FACTOR: Final = 1.5


def weight_lines(parts: Iterable[WeightPart], spec: ModelSpec, num_devices: int, place: Place) -> list[Line]:
    """Return what each device holds of the weights, layers split evenly.

    Rows of the embedding are read on the host, where its file is mapped; a tied head needs the table on the last device
    again. So are those of the per-layer embedding, which never comes to a device.
    """
    lines = []
    for part in parts:
        held, error, formula, where = part.size_bytes, part.error_bytes, part.formula, place
        name = part.name
        if name == "per-layer embedding":
            where, formula = "mmap", f"rows are read from the mapped file: {formula}"
        elif name == "embedding" and place == "gpu":
            lines.append(
                Line(
                    "weights: embedding, rows of the input",
                    held,
                    "mmap",
                    "steady",
                    f"rows are read from the mapped file: {formula}",
                    part.source,
                    error,
                )
            )
            if not spec.tied_head:
                continue
            formula = f"as the tied head: {formula}"
        elif num_devices > 1 and name in ("layers", "experts", "norms"):
            share = -(-spec.num_layers // num_devices)
            formula = f"{share} of {spec.num_layers} layers on a device: {formula}"
            # Layers of different kinds differ in size; a device may have more of the larger ones.
            error += held // spec.num_layers
            held = held * share // spec.num_layers
        lines.append(Line(f"weights: {name}", held, where, "steady", formula, part.source, error))
    return lines


def compute_line(spec: ModelSpec, cache: CacheSettings, cells: CellCounts, place: Place) -> Line:
    """Return the compute buffer of one device: the larger of logits and activations of a batch, and the masks.

    Fitted to published logs: it depends on backend and version, by 15 % and, with the context, by more.
    """
    rows = cache.ubatch_size
    logits = rows * spec.vocab_size * 4
    layer = max(
        3 * spec.hidden_size
        + (layer.num_query_heads + 2 * layer.num_kv_heads) * layer.head_dim
        + 3 * layer.feed_forward_width
        for layer in spec.layers
    )
    experts = next((layer.experts for layer in spec.layers if layer.experts is not None), None)
    if experts is not None:
        layer += experts.num_experts_per_token * (3 * experts.width + spec.hidden_size)
    activations = rows * layer * 4
    masks = rows * (cells.full + cells.sliding) * 2
    held = max(logits, activations) + masks + _COMPUTE_BASE_BYTES
    larger = f"logits {rows} x {spec.vocab_size:,} x 4 B"
    if activations > logits:
        larger = f"activations {show_bytes(activations)}"
    return Line(
        "workspace: compute buffer",
        held,
        place,
        "steady",
        f"{larger}, masks {rows} x {cells.full + cells.sliding:,} cells x 2 B, {show_bytes(_COMPUTE_BASE_BYTES)}",
        "fitted to published logs: +-15 %, and more with the context",
        round(_COMPUTE_ERROR_SHARE * held) + _COMPUTE_ERROR_CELL_BYTES * cells.full,
    )


def context_lines(place: Place) -> list[Line]:
    """Return the driver's context on a device; nothing on a processor."""
    if place != "gpu":
        return []
    return [
        Line(
            "runtime: device context",
            _CONTEXT_BYTES,
            place,
            "steady",
            "150 to 315 MiB",
            "published logs of CUDA",
            _CONTEXT_ERROR_BYTES,
        )
    ]


def projector_lines(spec: ModelSpec, settings: PlanSettings, place: Place) -> list[Line]:
    """Return what the projector file (--mmproj) reserves, which llama.cpp loads beside the model when images come.

    Its own buffers add about half of the file. Ollama's files have it inside, so that weights and buffers part there.
    """
    num_values = sum(tensor.num_elements for tower in spec.towers for tensor in tower.tensors)
    is_asked = settings.num_images > 0 or settings.audio_seconds > 0
    if not num_values or not is_asked:
        return []
    file_bytes = 2 * num_values
    factor = _PROJECTOR_FACTOR - (settings.engine == "ollama")
    what = "buffers" if settings.engine == "ollama" else "file and buffers"
    return [
        Line(
            f"media: projector, {what}",
            round(factor * file_bytes),
            place,
            "steady",
            f"{factor:g} x {num_values:,} values x 2 B",
            "towers of the config; a public measurement has 1.5 x the file",
            file_bytes // 4,
        )
    ]


def drafter_cache_line(spec: ModelSpec, cache: CacheSettings, cells: int, place: Place) -> Line:
    """Return the cache of a drafter's context, as large as one of its own would be: its bar says it may be nothing."""
    _, drafter = find_drafter(spec)
    kinds = [KindOfLayer(layer.window, 1, layer.num_kv_heads, layer.head_dim) for layer in drafter.layers]
    widest = max(kind.kv_width for kind in kinds)
    held = cells * sum(cell_bytes(kind, cache, widest) for kind in kinds)
    return Line(
        "K/V cache: context of the drafter",
        held,
        place,
        "steady",
        f"UNKNOWN: {cells:,} cells x {len(kinds)} layers in a cache of its own, or the target's and nothing",
        "depends on the build",
        held,
    )
