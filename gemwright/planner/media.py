"""What images and sound add: the towers' activations while a request's media are encoded.

Only the order of magnitude is known: it depends on the attention kernel, so every line has a wide error bar.
"""

from __future__ import annotations

from math import ceil

from gemwright.planner.ledger import Line, Place
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_spec import ModelSpec, TowerSpec

AUDIO_CLIP_SECONDS = 30.0
"""What the sizes of an audio tower are told for."""
_TOKENS_PER_SECOND = 25
"""Where no tower says so: each position of the 12B is 640 samples of 16,000 a second."""


def media_lines(
    spec: ModelSpec, settings: PlanSettings, *, dtype_bytes: int, place: Place, has_fused_attention: bool = True
) -> tuple[Line, ...]:
    """Return the peaks of encoding the images and the sound of one request, one after the other.

    Per position a layer holds its input, a normed copy, q, k, v and the gated product of its feed-forward; the front
    end holds its largest tensor. Without a fused attention kernel the scores of all positions come on top, heads x
    positions^2 in float32 (twice: scores and weights).
    """
    lines = []
    for tower in spec.towers:
        count = _num_items(tower, settings)
        if not count or tower.sizes is None:
            continue
        sizes = tower.sizes
        is_scaled = tower.name == "vision" and sizes.num_soft_tokens > 0
        scale = (image_tokens(spec, settings) or 0) / sizes.num_soft_tokens if is_scaled else 1
        positions = round(sizes.num_positions * scale)
        row = 5 * sizes.hidden_size + 3 * sizes.feed_forward_width
        held = dtype_bytes * (positions * row + round(sizes.num_front_values * scale))
        formula = f"{positions:,} positions x {row:,} values x {dtype_bytes} B and the front end"
        if not has_fused_attention and sizes.num_layers:
            held += 8 * sizes.num_heads * positions**2
            formula += f", scores 2 x {sizes.num_heads} x {positions:,}^2 x 4 B"
        lines.append(
            Line(
                f"media: activations of the {tower.name} tower",
                held,
                place,
                "request",
                f"one of {count} at a time: {formula}",
                f"{tower.name}_config",
                held // 2,
            )
        )
        values = count * sizes.num_soft_tokens * scale * spec.hidden_size
        lines.append(
            Line(
                f"media: embeddings of {tower.name} items",
                round(values) * dtype_bytes,
                place,
                "request",
                f"{count} x {round(sizes.num_soft_tokens * scale)} positions x {spec.hidden_size:,} x {dtype_bytes} B",
                "hidden_size",
            )
        )
    sound = audio_tokens(spec, settings)
    if sound and not any(tower.name == "audio" for tower in spec.towers):
        lines.append(
            Line(
                "media: embeddings of audio items",
                sound * spec.hidden_size * dtype_bytes,
                place,
                "request",
                f"{sound:,} positions x {spec.hidden_size:,} x {dtype_bytes} B",
                "hidden_size; no tower for sound",
            )
        )
    return tuple(lines)


def image_tokens(spec: ModelSpec, settings: PlanSettings) -> int | None:
    """Return the soft tokens of one image: as asked, else the model's own number; None for a model without images."""
    sizes = next((tower.sizes for tower in spec.towers if tower.name == "vision"), None)
    return None if sizes is None else settings.image_tokens or sizes.num_soft_tokens


def audio_tokens(spec: ModelSpec, settings: PlanSettings) -> int:
    """Return the soft tokens of a request's sound, 0 where there is none."""
    if not hears_sound(spec):
        return 0
    sizes = next((tower.sizes for tower in spec.towers if tower.name == "audio"), None)
    a_second = _TOKENS_PER_SECOND if sizes is None else sizes.num_soft_tokens / AUDIO_CLIP_SECONDS
    return ceil(settings.audio_seconds * a_second)


def hears_sound(spec: ModelSpec) -> bool:
    """Return whether a model takes sound, through a tower or, as the 12B of Gemma 4, straight into its projector."""
    return any(tensor.name.startswith("embed_audio.") for tower in spec.towers for tensor in tower.tensors)


def _num_items(tower: TowerSpec, settings: PlanSettings) -> int:
    if tower.name == "vision":
        return settings.num_images
    if tower.name == "audio" and settings.audio_seconds:
        return -int(-settings.audio_seconds // AUDIO_CLIP_SECONDS)
    return 0
