"""The image and sound towers of multimodal configs: their tensors and sizes, from vision_config and audio_config.

Absent keys take the defaults of the config classes in transformers; keys that change no tensor are not read, known or
not. Facts a.1, a.3, b.5 to b.7, d, g.2, g.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, Literal

from gemwright.spec.families.keys import KeyReader
from gemwright.spec.families.shared import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, has_tower
from gemwright.spec.model_spec import TowerSizes, TowerSpec, TowerTensor

MAX_PATCH_SIZE: Final = 2**10
MAX_IMAGE_SIZE: Final = 2**14
MAX_POSITIONS: Final = 2**24
MAX_SOFT_TOKENS: Final = 2**20
SOFT_TOKENS: Final = 280
"""The budget of a Gemma 4 image where no key names one, as in its image processor."""
CLIP_TOKENS: Final = 750
"""Soft tokens of 30 s of sound, 25 a second: as much as the processor of E2B and E4B takes (facts d)."""
_MEL_BINS: Final = 128
_BOUNDS: Final = ("input_min", "input_max", "output_min", "output_max")


def read_gemma3_towers(top: KeyReader, hidden_size: int) -> tuple[TowerSpec, ...]:
    """Return the vision tower and projector of a Gemma 3 config; `hidden_size` is the language model's.

    An absent vision_config means the default one, so both are there either way. Raises UnsupportedError naming the
    key whose value is no size of a tower.
    """
    vision = _tower_config(top, "vision_config", "siglip_vision_model") or KeyReader(
        {}, source=top.source, path=f"{top.path}vision_config."
    )
    width = vision.integer("hidden_size", 768, maximum=MAX_WIDTH)
    feed_forward = vision.integer("intermediate_size", 3072, maximum=MAX_WIDTH)
    num_layers = vision.integer("num_hidden_layers", 12, maximum=MAX_LAYERS)
    num_heads = vision.integer("num_attention_heads", 12, maximum=MAX_HEADS)
    channels = vision.integer("num_channels", 3, maximum=MAX_PATCH_SIZE)
    image_size = vision.integer("image_size", 224, maximum=MAX_IMAGE_SIZE)
    patch_size = vision.integer("patch_size", 16, maximum=MAX_PATCH_SIZE)
    has_head = vision.flag("vision_use_head", True)
    if patch_size > image_size:
        raise vision.refusal("patch_size", "is larger than image_size", limit=image_size)
    num_patches = (image_size // patch_size) ** 2
    root = "vision_tower.vision_model"
    tensors = (
        TowerTensor(f"{root}.embeddings.patch_embedding.weight", (width, channels, patch_size, patch_size)),
        TowerTensor(f"{root}.embeddings.patch_embedding.bias", (width,)),
        TowerTensor(f"{root}.embeddings.position_embedding.weight", (num_patches, width)),
        *(
            tensor
            for index in range(num_layers)
            for tensor in _siglip_layer(f"{root}.encoder.layers.{index}", width, feed_forward)
        ),
        *_with_bias(f"{root}.post_layernorm", (width,)),
        *(_siglip_head(f"{root}.head", width, feed_forward) if has_head else ()),
    )
    projector = (
        # Not transposed like a linear: [in, out] (facts b.2).
        TowerTensor("multi_modal_projector.mm_input_projection_weight", (width, hidden_size)),
        TowerTensor("multi_modal_projector.mm_soft_emb_norm.weight", (width,)),
    )
    sizes = TowerSizes(
        hidden_size=width,
        feed_forward_width=feed_forward,
        num_heads=num_heads,
        num_layers=num_layers,
        num_positions=num_patches,
        num_soft_tokens=top.optional_integer("mm_tokens_per_image", maximum=MAX_SOFT_TOKENS) or 256,
        num_front_values=channels * image_size**2,
    )
    return (
        TowerSpec("vision", ("vision_tower.",), tensors, sizes),
        TowerSpec("projector", ("multi_modal_projector.",), projector),
    )


def read_gemma4_towers(top: KeyReader, hidden_size: int) -> tuple[TowerSpec, ...]:
    """Return the towers and projectors of a Gemma 4 config with encoders (E2B, E4B, 26B-A4B, 31B).

    Raises UnsupportedError naming the key whose value is no size of a tower.
    """
    towers: list[TowerSpec] = []
    budget = top.optional_integer("vision_soft_tokens_per_image", maximum=MAX_SOFT_TOKENS)
    vision = _tower_config(top, "vision_config", "gemma4_vision")
    if vision is not None:
        towers += _gemma4_vision(vision, budget, hidden_size)
    audio = _tower_config(top, "audio_config", "gemma4_audio")
    if audio is not None:
        towers += _gemma4_audio(audio, hidden_size)
    return _merged(towers)


def read_unified_towers(top: KeyReader, hidden_size: int) -> tuple[TowerSpec, ...]:
    """Return the embedders of the 12B, which has no encoders.

    Published files and files saved by transformers name them differently (facts g.3): the prefixes cover both, the
    tensors have the published names. Raises UnsupportedError naming the key whose value is no size of an embedder.
    """
    towers: list[TowerSpec] = []
    budget = top.optional_integer("vision_soft_tokens_per_image", maximum=MAX_SOFT_TOKENS)
    vision = _tower_config(top, "vision_config", "gemma4_unified_vision")
    if vision is not None:
        towers += _unified_vision(vision, budget, hidden_size)
    audio = _tower_config(top, "audio_config", "gemma4_unified_audio")
    if audio is not None:
        width = audio.integer("audio_embed_dim", 640, maximum=MAX_WIDTH)
        for name in ("hidden_size", "output_proj_dims", "audio_samples_per_token"):
            if audio.integer(name, width, maximum=MAX_WIDTH) != width:
                raise audio.refusal(name, "is another size than audio_embed_dim", limit=width)
        towers.append(_projector("embed_audio.", "embed_audio", width, hidden_size))
    return _merged(towers)


def _tower_config(top: KeyReader, name: str, tower_type: str) -> KeyReader | None:
    """Return a reader of a tower's config (None where there is none) that does not count as one of top's children:
    an unknown key in it is no reason to refuse a model whose text part is understood."""
    if not has_tower(top, name, tower_type):
        return None
    return KeyReader(top.raw(name), source=top.source, path=f"{top.path}{name}.")


def _gemma4_vision(vision: KeyReader, budget: int | None, hidden_size: int) -> list[TowerSpec]:
    width = vision.integer("hidden_size", 768, maximum=MAX_WIDTH)
    feed_forward = vision.integer("intermediate_size", 3072, maximum=MAX_WIDTH)
    num_layers = vision.integer("num_hidden_layers", 16, maximum=MAX_LAYERS)
    num_heads = vision.integer("num_attention_heads", 12, maximum=MAX_HEADS)
    num_kv_heads = vision.integer("num_key_value_heads", 12, maximum=MAX_HEADS)
    head_dim = vision.integer("head_dim", 64, maximum=MAX_HEAD_DIM)
    patch_size = vision.integer("patch_size", 16, maximum=MAX_PATCH_SIZE)
    pooling = vision.integer("pooling_kernel_size", 3, maximum=MAX_PATCH_SIZE)
    table_size = vision.integer("position_embedding_size", 10_240, maximum=MAX_POSITIONS)
    clipped = vision.flag("use_clipped_linears", False)
    standardize = vision.flag("standardize", False)
    num_soft_tokens = vision.optional_integer("default_output_length", maximum=MAX_SOFT_TOKENS)
    num_soft_tokens = budget or num_soft_tokens or SOFT_TOKENS
    patch_values = 3 * patch_size**2
    tensors = [
        TowerTensor("vision_tower.patch_embedder.input_proj.weight", (width, patch_values)),
        TowerTensor("vision_tower.patch_embedder.position_embedding_table", (2, table_size, width)),
    ]
    for index in range(num_layers):
        layer = f"vision_tower.encoder.layers.{index}"
        for name, shape in (
            ("self_attn.q_proj", (num_heads * head_dim, width)),
            ("self_attn.k_proj", (num_kv_heads * head_dim, width)),
            ("self_attn.v_proj", (num_kv_heads * head_dim, width)),
            ("self_attn.o_proj", (width, num_heads * head_dim)),
            ("mlp.gate_proj", (feed_forward, width)),
            ("mlp.up_proj", (feed_forward, width)),
            ("mlp.down_proj", (width, feed_forward)),
        ):
            tensors += _clippable(f"{layer}.{name}", shape, clipped)
        tensors += [TowerTensor(f"{layer}.self_attn.{name}.weight", (head_dim,)) for name in ("q_norm", "k_norm")]
        tensors += [
            TowerTensor(f"{layer}.{name}.weight", (width,))
            for name in (
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            )
        ]
    if standardize:
        tensors += [TowerTensor(f"vision_tower.{name}", (width,), is_buffer=True) for name in ("std_bias", "std_scale")]
    num_patches = num_soft_tokens * pooling**2
    sizes = TowerSizes(
        hidden_size=width,
        feed_forward_width=feed_forward,
        num_heads=num_heads,
        num_layers=num_layers,
        num_positions=num_patches,
        num_soft_tokens=num_soft_tokens,
        num_front_values=num_patches * patch_values,
    )
    return [
        TowerSpec("vision", ("vision_tower.",), tuple(tensors), sizes),
        _projector("embed_vision.", "embed_vision", width, hidden_size),
    ]


def _gemma4_audio(audio: KeyReader, hidden_size: int) -> list[TowerSpec]:
    width = audio.integer("hidden_size", 1024, maximum=MAX_WIDTH)
    num_layers = audio.integer("num_hidden_layers", 12, maximum=MAX_LAYERS)
    num_heads = audio.integer("num_attention_heads", 8, maximum=MAX_HEADS)
    kernel_size = audio.integer("conv_kernel_size", 5, maximum=MAX_PATCH_SIZE)
    output_width = audio.integer("output_proj_dims", 1536, maximum=MAX_WIDTH)
    clipped = audio.flag("use_clipped_linears", True)
    channels = (128, 32)
    if "subsampling_conv_channels" in audio.names():
        first, second = audio.integers("subsampling_conv_channels", 2, maximum=MAX_WIDTH)
        channels = (first, second)
    if width % num_heads:
        raise audio.refusal("num_attention_heads", "does not divide hidden_size", limit=f"a divisor of {width}")
    front = "audio_tower.subsample_conv_projection"
    tensors = [
        TowerTensor(f"{front}.layer0.conv.weight", (channels[0], 1, 3, 3)),
        TowerTensor(f"{front}.layer0.norm.weight", (channels[0],)),
        TowerTensor(f"{front}.layer1.conv.weight", (channels[1], channels[0], 3, 3)),
        TowerTensor(f"{front}.layer1.norm.weight", (channels[1],)),
        # The class takes the frequencies left after two halvings from the first channel count, not from the mel bins.
        TowerTensor(f"{front}.input_proj_linear.weight", (width, channels[0] // 4 * channels[1])),
    ]
    for index in range(num_layers):
        tensors += _conformer_layer(f"audio_tower.layers.{index}", width, width // num_heads, kernel_size, clipped)
    tensors += _with_bias("audio_tower.output_proj", (output_width, width))
    sizes = TowerSizes(
        hidden_size=width,
        feed_forward_width=4 * width,
        num_heads=num_heads,
        num_layers=num_layers,
        num_positions=CLIP_TOKENS,
        num_soft_tokens=CLIP_TOKENS,
        # Two convolutions of stride 2: after the first, twice the frames and half the mel bins.
        num_front_values=2 * CLIP_TOKENS * (_MEL_BINS // 2) * channels[0],
    )
    return [
        TowerSpec("audio", ("audio_tower.",), tuple(tensors), sizes),
        _projector("embed_audio.", "embed_audio", output_width, hidden_size),
    ]


def _unified_vision(vision: KeyReader, budget: int | None, hidden_size: int) -> list[TowerSpec]:
    patch_size = vision.integer("patch_size", 16, maximum=MAX_PATCH_SIZE)
    pooling = vision.integer("pooling_kernel_size", 3, maximum=MAX_PATCH_SIZE)
    width = vision.integer("mm_embed_dim", 3840, maximum=MAX_WIDTH)
    table_size = vision.integer("mm_posemb_size", 1120, maximum=MAX_POSITIONS)
    output_width = vision.integer("output_proj_dims", 3840, maximum=MAX_WIDTH)
    side = patch_size * pooling
    if vision.integer("model_patch_size", side, maximum=MAX_PATCH_SIZE**2) != side:
        raise vision.refusal("model_patch_size", "is not patch_size times pooling_kernel_size", limit=side)
    num_soft_tokens = vision.optional_integer("num_soft_tokens", maximum=MAX_SOFT_TOKENS)
    num_soft_tokens = budget or num_soft_tokens or SOFT_TOKENS
    patch_values = 3 * side**2
    tensors = (
        *_with_bias("vision_embedder.patch_ln1", (patch_values,)),
        *_with_bias("vision_embedder.patch_dense", (width, patch_values)),
        *_with_bias("vision_embedder.patch_ln2", (width,)),
        TowerTensor("vision_embedder.pos_embedding", (table_size, 2, width)),
        *_with_bias("vision_embedder.pos_norm", (width,)),
    )
    sizes = TowerSizes(
        hidden_size=width,
        feed_forward_width=0,
        num_heads=0,
        num_layers=0,
        num_positions=num_soft_tokens,
        num_soft_tokens=num_soft_tokens,
        num_front_values=num_soft_tokens * patch_values,
    )
    projector = _projector("embed_vision.embedding_projection.", "embed_vision", output_width, hidden_size)
    return [
        TowerSpec("vision", ("vision_embedder.", "embed_vision.patch_", "embed_vision.pos_"), tensors, sizes),
        replace(projector, prefixes=(*projector.prefixes, "embed_vision.multimodal_embedder.")),
    ]


def _projector(prefix: str, module: str, width: int, hidden_size: int) -> TowerSpec:
    """Return the linear from a tower's width to that of the language model (its norm has no weight)."""
    return TowerSpec(
        "projector", (prefix,), (TowerTensor(f"{module}.embedding_projection.weight", (hidden_size, width)),)
    )


def _merged(towers: Iterable[TowerSpec]) -> tuple[TowerSpec, ...]:
    """Return the towers in one order; two of one name become one with the prefixes and tensors of both."""
    merged: dict[Literal["vision", "audio", "projector"], TowerSpec] = {}
    for tower in towers:
        before = merged.get(tower.name)
        merged[tower.name] = (
            tower
            if before is None
            else replace(before, prefixes=before.prefixes + tower.prefixes, tensors=before.tensors + tower.tensors)
        )
    names: tuple[Literal["vision", "audio", "projector"], ...] = ("vision", "audio", "projector")
    return tuple(merged[name] for name in names if name in merged)


def _siglip_layer(layer: str, width: int, feed_forward: int) -> Iterator[TowerTensor]:
    yield from _with_bias(f"{layer}.layer_norm1", (width,))
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        yield from _with_bias(f"{layer}.self_attn.{name}", (width, width))
    yield from _with_bias(f"{layer}.layer_norm2", (width,))
    yield from _with_bias(f"{layer}.mlp.fc1", (feed_forward, width))
    yield from _with_bias(f"{layer}.mlp.fc2", (width, feed_forward))


def _siglip_head(head: str, width: int, feed_forward: int) -> Iterator[TowerTensor]:
    """Yield the pooling head, which published Gemma 3 turn off (vision_use_head)."""
    yield TowerTensor(f"{head}.probe", (1, 1, width))
    yield TowerTensor(f"{head}.attention.in_proj_weight", (3 * width, width))
    yield TowerTensor(f"{head}.attention.in_proj_bias", (3 * width,))
    yield from _with_bias(f"{head}.attention.out_proj", (width, width))
    yield from _with_bias(f"{head}.layernorm", (width,))
    yield from _with_bias(f"{head}.mlp.fc1", (feed_forward, width))
    yield from _with_bias(f"{head}.mlp.fc2", (width, feed_forward))


def _conformer_layer(layer: str, width: int, head_dim: int, kernel_size: int, clipped: bool) -> Iterator[TowerTensor]:
    for half in ("feed_forward1", "feed_forward2"):
        yield from _clippable(f"{layer}.{half}.ffw_layer_1", (4 * width, width), clipped)
        yield from _clippable(f"{layer}.{half}.ffw_layer_2", (width, 4 * width), clipped)
        for norm in ("pre_layer_norm", "post_layer_norm"):
            yield TowerTensor(f"{layer}.{half}.{norm}.weight", (width,))
    for name in ("q_proj", "k_proj", "v_proj", "post"):
        yield from _clippable(f"{layer}.self_attn.{name}", (width, width), clipped)
    yield TowerTensor(f"{layer}.self_attn.relative_k_proj.weight", (width, width))
    yield TowerTensor(f"{layer}.self_attn.per_dim_scale", (head_dim,))
    yield from _clippable(f"{layer}.lconv1d.linear_start", (2 * width, width), clipped)
    yield from _clippable(f"{layer}.lconv1d.linear_end", (width, width), clipped)
    yield TowerTensor(f"{layer}.lconv1d.depthwise_conv1d.weight", (width, 1, kernel_size))
    for norm in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
        yield TowerTensor(f"{layer}.{norm}.weight", (width,))


def _clippable(name: str, shape: tuple[int, int], clipped: bool) -> Iterator[TowerTensor]:
    """Yield a linear that may clamp its input and output: then four bounds of rank 0 are stored beside the weight."""
    yield TowerTensor(f"{name}.linear.weight", shape)
    if clipped:
        for bound in _BOUNDS:
            yield TowerTensor(f"{name}.{bound}", (), is_buffer=True)


def _with_bias(name: str, shape: tuple[int, ...]) -> Iterator[TowerTensor]:
    yield TowerTensor(f"{name}.weight", shape)
    yield TowerTensor(f"{name}.bias", shape[:1])
