"""Writes tiny GGUF files of a ModelSpec, as llama.cpp's converter writes real ones (facts f)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from gemwright.spec.model_spec import LayerKind, ModelSpec
from gemwright.spec.weights import TensorSpec

Values = Mapping[TensorSpec, NDArray[np.float32]]


def write_tiny_gguf(
    path: Path,
    spec: ModelSpec,
    values: Values,
    *,
    encoding: str = "F32",
    split_experts: bool = False,
    extra: Mapping[str, NDArray[np.float32]] | None = None,
    without: frozenset[str] = frozenset(),
    tokens: int | None = None,
    sampling: Mapping[str, float] | None = None,
    extra_metadata: Mapping[str, int | list[int]] | None = None,
    chat_template: str | None = None,
    raw: Mapping[str, tuple[NDArray[np.uint8], GGMLQuantizationType]] | None = None,
) -> Path:
    """Write `values`, given as a safetensors file would hold them; matrices in `encoding` where their rows allow it.

    `split_experts` writes gate and up apart, `extra` adds tensors, `without` leaves some out, `tokens` adds token
    arrays of that length, `raw` tensors as stored bytes [rows, bytes] of a type.
    `chat_template` comes with a tokenizer that knows bytes and Gemma 3's control words.
    """
    writer = GGUFWriter(path, spec.family)
    _add_metadata(writer, spec)
    if tokens is not None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([f"t{index}" for index in range(tokens)])
        writer.add_token_scores([-float(index) for index in range(tokens)])
        writer.add_token_types([1] * tokens)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
        _add_byte_tokenizer(writer, spec.vocab_size)
    for key, number in (extra_metadata or {}).items():
        if isinstance(number, list):
            writer.add_array(key, number)
        else:
            writer.add_uint32(key, number)
    for key, value in (sampling or {}).items():
        if isinstance(value, int):
            writer.add_int32(f"general.sampling.{key}", value)
        else:
            writer.add_float32(f"general.sampling.{key}", value)
    for name, tensor in stored_tensors(spec, values, split_experts).items():
        if name not in without:
            _add_tensor(writer, name, tensor, encoding)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    for name, (stored, kind) in (raw or {}).items():
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_byte_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    names = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 105: "<start_of_turn>", 106: "<end_of_turn>", 107: "\n"}
    control = set(names) - {3, 107}
    data = {108 + byte: f"<0x{byte:02X}>" for byte in range(256)}
    tokens = [(names | data | {364: "\u2581"}).get(index, f"<unused{index}>") for index in range(vocab_size)]
    types = [3 if index in control else 2 if index == 3 else 6 if index in data else 1 for index in range(vocab_size)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(vocab_size)])
    writer.add_token_types(types)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(106)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)


def stored_tensors(spec: ModelSpec, values: Values, split_experts: bool = False) -> dict[str, NDArray[np.float32]]:
    """Return what the file holds under each name: norms with the converter's one added, RoPE divisors."""
    found: dict[str, NDArray[np.float32]] = {}
    for tensor, value in values.items():
        names = tensor.gguf[-1 if split_experts else 0]
        parts = np.split(value, len(names), axis=tensor.gguf_stack_axis)
        for name, part in zip(names, parts, strict=True):
            found[name] = (part - np.float32(tensor.gguf_offset)).astype(np.float32)
    if spec.family == "gemma4":
        full = next(layer for layer in spec.layers if layer.kind is LayerKind.FULL)
        divisors = np.full(full.head_dim // 2, 1e30, dtype=np.float32)
        divisors[: full.rope.num_rotated_pairs(full.head_dim)] = 1.0
        found["rope_freqs.weight"] = divisors
    return found


def _add_tensor(writer: GGUFWriter, name: str, tensor: NDArray[np.float32], encoding: str) -> None:
    kind = GGMLQuantizationType[encoding]
    if encoding == "F32" or tensor.ndim < 2 or tensor.shape[-1] % 32:
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    else:
        writer.add_tensor(name, quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)


def _add_metadata(writer: GGUFWriter, spec: ModelSpec) -> None:
    full = next(layer for layer in spec.layers if layer.kind is LayerKind.FULL)
    sliding = next(layer for layer in spec.layers if layer.kind is LayerKind.SLIDING)
    assert sliding.window is not None
    writer.add_context_length(spec.max_context)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length([layer.feed_forward_width for layer in spec.layers])
    writer.add_head_count(full.num_query_heads)
    writer.add_head_count_kv([layer.num_kv_heads for layer in spec.layers])
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_rope_freq_base(full.rope.theta)
    writer.add_sliding_window(sliding.window)
    writer.add_sliding_window_pattern([layer.kind is LayerKind.SLIDING for layer in spec.layers])
    if spec.final_softcap is not None:
        writer.add_final_logit_softcapping(spec.final_softcap)
    if full.attention_softcap is not None:
        writer.add_attn_logit_softcapping(full.attention_softcap)
    if full.rope.kind == "linear":
        writer.add_string(f"{spec.family}.rope.scaling.type", "linear")
        writer.add_rope_scaling_factor(full.rope.factor)
    if spec.family != "gemma4":
        return
    writer.add_uint32("gemma4.attention.key_length_swa", sliding.head_dim)
    writer.add_uint32("gemma4.attention.value_length_swa", sliding.head_dim)
    writer.add_float32("gemma4.rope.freq_base_swa", sliding.rope.theta)
    writer.add_uint32("gemma4.attention.shared_kv_layers", sum(layer.kv_source != layer.index for layer in spec.layers))
    if spec.per_layer_inputs is not None:
        writer.add_uint32("gemma4.embedding_length_per_layer_input", spec.per_layer_inputs.width)
    if full.experts is not None:
        writer.add_expert_count(full.experts.num_experts)
        writer.add_expert_used_count(full.experts.num_experts_per_token)
        writer.add_expert_feed_forward_length(full.experts.width)
