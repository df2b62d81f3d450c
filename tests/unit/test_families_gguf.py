"""GGUF metadata, as the converter writes it, gives the spec that the config of the same model gives (facts f, j)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from gemwright.errors import CheckpointError, GemwrightError, UnsupportedError
from gemwright.spec.families import read_config, read_gguf_metadata
from gemwright.spec.model_spec import LayerKind, ModelSpec, RopeSpec
from tests.published_configs import load_config


@dataclass
class Gguf:
    """The header of a GGUF file: metadata without the architecture's prefix, and the tensors a reader looks at."""

    architecture: str
    keys: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    rope_freqs: np.ndarray | None = None
    others: dict[str, Any] = field(default_factory=dict)

    def metadata(self) -> dict[str, Any]:
        keys = {f"{self.architecture}.{name}": value for name, value in self.keys.items()}
        return {"general.architecture": self.architecture, "general.type": "model"} | keys | self.others

    def read(self, **options: Any) -> ModelSpec:
        return read_gguf_metadata(
            self.metadata(), tensor_shapes=self.shapes, rope_freqs=self.rope_freqs, source="m.gguf", **options
        )

    def refusal(self, kind: type[GemwrightError] = UnsupportedError) -> str:
        with pytest.raises(kind) as caught:
            self.read()
        assert str(caught.value).startswith("m.gguf: ")
        return str(caught.value)


def single(value: float) -> float:
    """Return what a float32 field holds, as a Python value."""
    return float(np.float32(value))


def base(
    layers: int, hidden: int, width: Any, heads: int, kv_heads: Any, head_dim: int, context: int
) -> dict[str, Any]:
    return {
        "block_count": layers,
        "embedding_length": hidden,
        "feed_forward_length": width,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": single(1e-6),
        "context_length": context,
    }


def shapes_of(
    vocabulary: int, hidden: int, layers: int, *, no_value: tuple[int, ...] = ()
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, hidden)}
    for layer in range(layers):
        if layer not in no_value:
            shapes[f"blk.{layer}.attn_v.weight"] = (8, hidden)
    return shapes


def gemma2(layers: int, hidden: int, width: int, heads: int, kv_heads: int, head_dim: int) -> Gguf:
    softcaps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention.sliding_window": 4096}
    return Gguf(
        "gemma2",
        base(layers, hidden, width, heads, kv_heads, head_dim, 8192) | softcaps,
        shapes_of(256000, hidden, layers),
    )


def gemma3(
    layers: int, hidden: int, width: int, heads: int, kv_heads: int, head_dim: int, context: int, window: int
) -> Gguf:
    keys = {"rope.freq_base": 1e6, "attention.sliding_window": window}
    return Gguf(
        "gemma3",
        base(layers, hidden, width, heads, kv_heads, head_dim, context) | keys,
        shapes_of(262144, hidden, layers),
    )


def gemma4(
    layers: int, period: int, hidden: int, width: Any, heads: int, kv_heads: Any, context: int, window: int,
    *, shared: int = 0, per_layer: int = 0, key_is_value: bool = False, experts: dict[str, int] | None = None,
) -> Gguf:  # fmt: skip
    slides = [(layer + 1) % period != 0 for layer in range(layers)]
    if isinstance(kv_heads, tuple):
        kv_heads = [kv_heads[0] if sliding else kv_heads[1] for sliding in slides]
    keys = {
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.shared_kv_layers": shared,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": slides,
        "embedding_length_per_layer_input": per_layer,
        "final_logit_softcapping": 30.0,
        "rope.dimension_count": 512,
        "rope.dimension_count_swa": 256,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
    }
    no_value = tuple(layer for layer in range(layers) if key_is_value and not slides[layer])
    shapes = shapes_of(262144, hidden, layers - shared, no_value=no_value)
    if per_layer:
        shapes["per_layer_token_embd.weight"] = (262144, layers * per_layer)
    freqs = np.array([1.0] * 64 + [1e30] * 192, dtype=np.float32)
    return Gguf(
        "gemma4", base(layers, hidden, width, heads, kv_heads, 512, context) | keys | (experts or {}), shapes, freqs
    )


FILES = {
    "gemma-2-2b": gemma2(26, 2304, 9216, 8, 4, 256),
    "gemma-2-9b": gemma2(42, 3584, 14336, 16, 8, 256),
    "gemma-2-27b": gemma2(46, 4608, 36864, 32, 16, 128),
    "gemma-3-270m": gemma3(18, 640, 2048, 4, 1, 256, 32768, 512),
    "gemma-3-1b-pt": gemma3(26, 1152, 6912, 4, 1, 256, 32768, 512),
    "gemma-3-4b-pt": gemma3(34, 2560, 10240, 8, 4, 256, 131072, 1024),
    "gemma-3-12b-pt": gemma3(48, 3840, 15360, 16, 8, 256, 131072, 1024),
    "gemma-3-27b-pt": gemma3(62, 5376, 21504, 32, 16, 128, 131072, 1024),
    "gemma-4-E2B": gemma4(
        35, 5, 1536, [6144] * 15 + [12288] * 20, 8, 1, 131072, 512, shared=20, per_layer=256
    ),
    "gemma-4-E4B": gemma4(42, 6, 2560, 10240, 8, 2, 131072, 512, shared=18, per_layer=256),
    "gemma-4-12B": gemma4(48, 6, 3840, 15360, 16, (8, 1), 262144, 1024, key_is_value=True),
    "gemma-4-26B-A4B": gemma4(
        30, 6, 2816, 2112, 16, (8, 2), 262144, 1024, key_is_value=True,
        experts={"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 704},
    ),
    "gemma-4-31B": gemma4(60, 6, 5376, 21504, 32, (16, 4), 262144, 1024, key_is_value=True),
}  # fmt: skip


def file(name: str, **changes: Any) -> Gguf:
    """Return a copy of a file with keys changed (None takes one away); `rope__freq_base` stands for rope.freq_base."""
    whole = FILES[name]
    changed = whole.keys | {key.replace("__", "."): value for key, value in changes.items()}
    keys = {key: value for key, value in changed.items() if value is not None}
    return replace(whole, keys=keys, shapes=dict(whole.shapes), others={})


@pytest.mark.parametrize("name", FILES)
def test_the_metadata_of_a_model_says_what_its_config_says(name: str):
    expected = read_config(load_config(name))
    # The converter cuts unused rows of the Gemma 3 table; a file says nothing of towers, image blocks and dtype.
    vocabulary = 262144 if expected.vocab_size == 262208 else expected.vocab_size
    expected = replace(
        expected, vocab_size=vocabulary, towers=(), image_attention="causal", stored_dtype=None, eos_token_ids=(1,)
    )
    assert file(name).read() == expected


def test_numpy_values_read_like_plain_ones():
    plain = file("gemma-4-E2B")
    arrays = file("gemma-4-E2B")
    arrays.keys |= {
        "block_count": np.uint32(35),
        "attention.layer_norm_rms_epsilon": np.float32(1e-6),
        "feed_forward_length": np.array([6144] * 15 + [12288] * 20, dtype=np.int32),
        "attention.sliding_window_pattern": np.array(plain.keys["attention.sliding_window_pattern"]),
    }
    assert arrays.read() == plain.read()
    arrays.keys["attention.sliding_window_pattern"] = [int(x) for x in plain.keys["attention.sliding_window_pattern"]]
    assert arrays.read() == plain.read()


def test_the_largest_gemma_2_and_3_scale_scores_by_width_over_heads():
    assert file("gemma-2-27b").read().layers[0].attention_scale == 144**-0.5
    assert file("gemma-3-27b-pt").read().layers[0].attention_scale == 168**-0.5
    assert file("gemma-3-12b-pt").read().layers[0].attention_scale == 256**-0.5


@pytest.mark.parametrize(
    ("name", "changes", "rope"),
    [
        ("gemma-3-1b-pt", {}, RopeSpec("default", 1e6)),
        ("gemma-3-4b-pt", {}, RopeSpec("linear", 1e6, factor=8.0)),
        ("gemma-3-4b-pt", {"rope__scaling__type": "none"}, RopeSpec("default", 1e6)),
        ("gemma-3-4b-pt", {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
         RopeSpec("linear", 1e6, factor=4.0)),
        ("gemma-3-1b-pt", {"rope__scaling__factor": 8.0}, RopeSpec("linear", 1e6, factor=8.0)),
        ("gemma-4-31B", {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
         RopeSpec("proportional", 1e6, factor=2.0, partial_rotary_factor=0.25)),
    ],
)  # fmt: skip
def test_rope_scaling_of_full_layers(name: str, changes: dict[str, Any], rope: RopeSpec):
    spec = file(name, **changes).read()
    assert spec.layers[5].rope == rope
    assert spec.layers[0].rope == RopeSpec("default", 1e4)


def test_what_older_files_leave_out():
    bare = file("gemma-2-2b", attention__sliding_window=None, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert bare.read() == file("gemma-2-2b").read()
    assert file("gemma-4-31B", rope__freq_base_swa=None).read() == file("gemma-4-31B").read()
    assert file("gemma-4-31B", final_logit_softcapping=None).read().final_softcap == 30.0
    assert (
        file("gemma-3-270m", attention__head_count=1, attention__head_count_kv=None).read().layers[0].num_kv_heads == 1
    )


def test_a_period_of_layers_is_read_like_a_list():
    spec = file("gemma-3-270m", attention__sliding_window_pattern=3).read()
    assert [layer.index for layer in spec.layers if layer.kind is LayerKind.FULL] == [2, 5, 8, 11, 14, 17]


@pytest.mark.parametrize("num_pairs", [1, 5, 7, 16, 48, 256])
def test_every_count_of_ones_gives_as_many_turning_pairs(num_pairs: int):
    for num_rotated in range(num_pairs + 1):
        whole = file(
            "gemma-4-31B",
            attention__key_length=2 * num_pairs,
            attention__value_length=2 * num_pairs,
            rope__dimension_count=2 * num_pairs,
        )
        freqs = np.where(np.arange(num_pairs) < num_rotated, 1.0, 1e30).astype(np.float32)
        rope = replace(whole, rope_freqs=freqs).read().layers[5].rope
        assert rope.num_rotated_pairs(2 * num_pairs) == num_rotated


@pytest.mark.parametrize(
    "freqs",
    [
        [1.0] * 64 + [1e30] * 191,
        [1e30] * 192 + [1.0] * 64,
        [1.0] * 64 + [8.0] * 192,
        [1.0] * 64 + [float("nan")] * 192,
        [2.0] * 64 + [1e30] * 192,
    ],
)
def test_rope_divisors_that_are_not_ones_and_then_standstill_are_refused(freqs: list[float]):
    bad = replace(file("gemma-4-31B"), rope_freqs=np.array(freqs, dtype=np.float32))
    assert "rope_freqs.weight does not hold ones followed by 1e30" in bad.refusal()


def test_rope_divisors_are_needed_in_gemma_4_and_refused_elsewhere():
    assert "rope_freqs.weight is missing" in replace(file("gemma-4-31B"), rope_freqs=None).refusal(CheckpointError)
    assert "rope_freqs.weight" in replace(file("gemma-3-270m"), rope_freqs=np.ones(128, dtype=np.float32)).refusal()


def test_stop_ids_and_the_head_come_from_the_file():
    whole = file("gemma-3-270m")
    whole.others = {
        "tokenizer.ggml.tokens": ["<pad>", "<eos>"],
        "tokenizer.ggml.eos_token_id": 106,
        "tokenizer.ggml.eot_token_id": 1,
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.padding_token_id": 4,
    }
    whole.shapes["output.weight"] = (262144, 640)
    spec = whole.read()
    assert (spec.bos_token_id, spec.eos_token_ids, spec.pad_token_id) == (3, (106, 1), 4)
    assert not spec.tied_head


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("gemma", "Gemma 1 is not supported"),
        ("gemma3n", "Gemma 3n is not supported"),
        ("gemma-embedding", "EmbeddingGemma"),
        ("gemma4-assistant", "drafter"),
        ("diffusion-gemma", "DiffusionGemma"),
        ("clip", "this is the vision part"),
        ("llama", "supported: gemma2, gemma3, gemma4"),
    ],
)
def test_other_architectures_are_refused_by_name(architecture: str, words: str):
    message = replace(file("gemma-3-270m"), architecture=architecture).refusal()
    assert words in message
    assert architecture in message


def test_files_that_are_no_whole_model_are_refused():
    whole = file("gemma-3-270m")
    whole.others = {"general.type": "adapter"}
    assert "general.type 'adapter'" in whole.refusal()
    whole.others = {"general.type": "mmproj"}
    assert "vision part" in whole.refusal()
    whole.others = {"general.architecture": None}
    assert "general.architecture is missing" in whole.refusal(CheckpointError)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("gemma-3-270m", "attention.key_length", 255, "odd"),
        ("gemma-3-270m", "attention.value_length", 128, "differs from the key length"),
        ("gemma-3-270m", "rope.dimension_count", 64, "differs from the key length"),
        ("gemma-4-31B", "attention.value_length_swa", 128, "differs from the key length"),
        ("gemma-3-270m", "attention.head_count_kv", 3, "4 query heads, 3 KV heads"),
        ("gemma-3-270m", "attention.sliding_window", 0, "attention.sliding_window"),
        ("gemma-3-270m", "attention.causal", False, "attention.causal"),
        ("gemma-3-270m", "attention.layer_norm_rms_epsilon", float("nan"), "layer_norm_rms_epsilon"),
        ("gemma-3-270m", "block_count", 10**6, "from 1 to 1000"),
        ("gemma-3-270m", "block_count", True, "must be an integer"),
        ("gemma-3-270m", "rope.scaling.type", "yarn", "none, linear"),
        ("gemma-3-270m", "attention.sliding_window_pattern", [True] * 17, "18 layers"),
        ("gemma-3-270m", "attention.sliding_window_pattern", 0, "sliding_window_pattern"),
        ("gemma-2-2b", "attn_logit_softcapping", -50.0, "above 0"),
        ("gemma-4-E2B", "feed_forward_length", [6144] * 34, "35 entries"),
        ("gemma-4-E2B", "attention.shared_kv_layers", 35, "no sliding layer that owns K/V"),
        ("gemma-4-E2B", "attention.head_count_kv", [1] * 34 + [2], "layer 34 other K/V than layer 14"),
        ("gemma-4-26B-A4B", "expert_used_count", 129, "more than expert_count"),
        ("gemma-3-270m", "attention.head_dim_extra", 1, "unknown key gemma3.attention.head_dim_extra"),
        ("gemma-3-270m", "attn_logit_softcapping", 50.0, "unknown key gemma3.attn_logit_softcapping"),
    ],
)
def test_values_that_cannot_be_right_are_refused_by_their_keys(name: str, key: str, value: Any, words: str):
    message = file(name, **{key: value}).refusal()
    assert words in message
    assert key in message


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gemma-3-270m", "block_count"),
        ("gemma-3-270m", "embedding_length"),
        ("gemma-3-270m", "context_length"),
        ("gemma-3-270m", "feed_forward_length"),
        ("gemma-3-270m", "attention.head_count"),
        ("gemma-3-270m", "attention.sliding_window"),
        ("gemma-3-270m", "attention.layer_norm_rms_epsilon"),
        ("gemma-3-270m", "rope.freq_base"),
        ("gemma-4-31B", "attention.key_length_swa"),
        ("gemma-4-31B", "attention.sliding_window_pattern"),
        ("gemma-4-26B-A4B", "expert_feed_forward_length"),
    ],
)
def test_a_key_that_is_needed_is_missed_by_name(name: str, key: str):
    assert f"{key} is missing" in file(name, **{key: None}).refusal(CheckpointError)


def test_unknown_keys_pass_on_request_and_training_notes_always():
    odd = file("gemma-3-270m", mystery=1)
    assert odd.read(allow_unknown_keys=True) == file("gemma-3-270m").read()
    noted = file("gemma-3-270m", rope__scaling__original_context_length=8192, rope__scaling__finetuned=True)
    assert noted.read() == file("gemma-3-270m").read()


def test_missing_and_mis_shaped_tables_are_named():
    broken = file("gemma-3-270m")
    del broken.shapes["token_embd.weight"]
    assert "tensor token_embd.weight is missing" in broken.refusal(CheckpointError)
    broken.shapes["token_embd.weight"] = (262144, 641)
    assert "token_embd.weight has the wrong shape" in broken.refusal(CheckpointError)
    broken = file("gemma-3-270m", vocab_size=262145)
    assert "262145 rows" in broken.refusal(CheckpointError)
    broken = file("gemma-4-E2B")
    broken.shapes["per_layer_token_embd.weight"] = (262144, 34 * 256)
    assert "per_layer_token_embd.weight has the wrong shape" in broken.refusal(CheckpointError)
    del broken.shapes["per_layer_token_embd.weight"]
    assert "per_layer_token_embd.weight is missing" in broken.refusal(CheckpointError)


@pytest.mark.parametrize(("name", "layer"), [("gemma-4-31B", 3), ("gemma-4-E2B", 4), ("gemma-4-E2B", 0)])
def test_one_missing_value_projection_is_a_damaged_file_not_a_shared_one(name: str, layer: int):
    broken = file(name)
    del broken.shapes[f"blk.{layer}.attn_v.weight"]
    assert f"blk.{layer}.attn_v.weight is missing" in broken.refusal(CheckpointError)
