"""A folder with config.json and safetensors: every tensor found under any known name, and nothing passed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.checkpoint import Checkpoint, open_checkpoint
from gemwright.spec.families import read_config
from gemwright.spec.weights import list_tensors, list_unused_tensors
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import encode, random_tensors, write_safetensors

Tensors = dict[str, NDArray[np.float32]]
VISION = {"model_type": "siglip_vision_model"}


def read(checkpoint: Checkpoint, name: str) -> NDArray[np.float32]:
    source = checkpoint.sources()[name]
    return source.read_rows(0, source.shape[0])


def expected_values(name: str, seed: int = 0) -> Tensors:
    config = {key: value for key, value in TINY_CONFIGS[name].items() if key != "torch_dtype"} | {"dtype": "float32"}
    return {tensor.name: values for tensor, values in random_tensors(read_config(config), seed).items()}


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> Path:
    """Rewrite the float32 model file of `folder` after `change` has changed its tensors."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    tensors: Tensors = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(content[begin:end], dtype="<f4").reshape(entry["shape"]).copy()
    change(tensors)
    write_safetensors(path, tensors)
    return folder


def change_config(folder: Path, **fields: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def refused(folder: Path, problem: str, error: type[Exception] = CheckpointError) -> None:
    with pytest.raises(error, match=problem):
        open_checkpoint(folder).sources()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_checkpoint("gemma3", tmp_path / "model")


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_every_tensor_of_every_family_is_found(tmp_path: Path, name: str) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint(name, tmp_path))
    assert checkpoint.format == "safetensors"
    assert checkpoint.folder == tmp_path
    assert checkpoint.notes == []
    assert checkpoint.gguf_metadata is None
    sources = checkpoint.sources()
    expected = expected_values(name)
    assert list(sources) == [tensor.name for tensor in list_tensors(checkpoint.spec)]
    for tensor, values in expected.items():
        np.testing.assert_array_equal(sources[tensor].read_rows(0, len(values)), values)
    checkpoint.release()


@pytest.mark.parametrize("prefix", ["", "model.", "language_model.", "language_model.model.", "model.language_model."])
def test_every_prefix_of_the_language_model_is_known(tmp_path: Path, prefix: str) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint("gemma4-moe", tmp_path, prefix=prefix))
    expected = expected_values("gemma4-moe")
    for name in ("embedding", "layers.3.experts_gate_up", "layers.0.layer_scalar", "final_norm"):
        np.testing.assert_array_equal(read(checkpoint, name), expected[name])


def test_the_stored_dtype_is_the_configs_or_else_the_tables(folder: Path) -> None:
    assert open_checkpoint(folder).stored_dtype == "float32"
    bfloat16 = write_tiny_checkpoint("gemma3", folder, dtype="bfloat16")
    checkpoint = open_checkpoint(change_config(bfloat16, dtype=None))
    assert checkpoint.spec.stored_dtype is None
    assert checkpoint.stored_dtype == "bfloat16"
    values = expected_values("gemma3")["embedding"]
    assert checkpoint.sources()["embedding"].stored_rows(0, 9).tobytes() == encode(values[:9], "bfloat16")


def test_one_tensor_under_two_names_is_refused(folder: Path) -> None:
    change_tensors(
        folder, lambda tensors: tensors.update({"language_model.model.norm.weight": tensors["model.norm.weight"]})
    )
    refused(folder, r"two spellings of one tensor")


@pytest.mark.parametrize(
    "gone", ["model.embed_tokens.weight", "model.layers.5.self_attn.k_proj.weight", "model.norm.weight"]
)
def test_a_missing_tensor_is_named(folder: Path, gone: str) -> None:
    change_tensors(folder, lambda tensors: tensors.pop(gone))
    refused(folder, rf"tensor '{gone}' missing")


def test_many_missing_tensors_are_counted_beside_what_is_left_over(folder: Path) -> None:
    def rename(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[f"transformer.{name}"] = tensors.pop(name)

    change_tensors(folder, rename)
    refused(
        folder, r"\d+ tensors \('embed_tokens.weight', .*\.\.\.\) missing\n.*left over: \d+ tensors \('transformer\."
    )


@pytest.mark.parametrize(
    "extra",
    [
        "model.layers.8.mlp.up_proj.weight",
        "vision_tower.x.weight",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.0.self_attn.q_proj.bias",
    ],
)
def test_a_tensor_that_is_left_over_is_named(folder: Path, extra: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({extra: np.ones((2, 2), np.float32)}))
    refused(folder, rf"tensor '{extra}' left over")


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    name = "model.layers.2.mlp.down_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].T}))
    refused(folder, r"'model\.layers\.2\.mlp\.down_proj\.weight' has the wrong shape\n.*\[104, 40\]\n.*\[40, 104\]")


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    refused(folder, r"model\.safetensors: tensor 'model\.norm\.weight': its data lies outside the file")


def test_a_value_that_is_not_finite_is_named_when_it_is_read(folder: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.gate_proj.weight"][7, 3] = np.nan

    source = open_checkpoint(change_tensors(folder, spoil)).sources()["layers.1.gate"]
    with pytest.raises(
        CheckpointError, match=r"'model\.layers\.1\.mlp\.gate_proj\.weight'.*not finite, first in row 7"
    ):
        source.read_rows(0, source.shape[0])


def test_a_vocabulary_that_was_resized_in_the_config_only_is_refused(folder: Path) -> None:
    refused(change_config(folder, vocab_size=520), r"vocabulary was resized.*\n.*515 rows\n.*vocab_size 520")


def test_a_vocabulary_that_was_resized_in_both_places_is_read(folder: Path) -> None:
    change_tensors(
        folder, lambda tensors: tensors.update({"model.embed_tokens.weight": np.ones((600, 40), np.float32)})
    )
    assert read(open_checkpoint(change_config(folder, vocab_size=600)), "embedding").shape == (600, 40)


@pytest.mark.parametrize("name", ["lm_head.weight", "language_model.lm_head.weight"])
class TestHead:
    @staticmethod
    def add(folder: Path, name: str, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Path:
        return change_tensors(
            folder, lambda tensors: tensors.update({name: change(tensors["model.embed_tokens.weight"].copy())})
        )

    def test_one_that_equals_the_table_is_dropped_with_a_note(self, folder: Path, name: str) -> None:
        checkpoint = open_checkpoint(self.add(folder, name, lambda table: table))
        assert "head" not in checkpoint.sources()
        assert "head" not in checkpoint.sources()
        assert checkpoint.notes == [f"dropped {name}, which equals the embedding table"]

    def test_one_that_differs_is_refused(self, folder: Path, name: str) -> None:
        def change(table: NDArray[np.float32]) -> NDArray[np.float32]:
            table[77, 1] += 1
            return table

        refused(self.add(folder, name, change), rf"'{name}' differs from the embedding table.*\n.*first in row 77")

    def test_one_of_another_shape_is_refused(self, folder: Path, name: str) -> None:
        refused(self.add(folder, name, lambda table: table[:-1]), r"differs from the embedding table.*\n.*\[514, 40\]")

    def test_an_untied_one_is_used(self, folder: Path, name: str) -> None:
        self.add(folder, name, lambda table: table * 2)
        checkpoint = open_checkpoint(change_config(folder, tie_word_embeddings=False))
        np.testing.assert_array_equal(read(checkpoint, "head"), expected_values("gemma3")["embedding"] * 2)
        assert checkpoint.notes == []


def test_an_untied_head_that_is_missing_is_named(folder: Path) -> None:
    refused(change_config(folder, tie_word_embeddings=False), r"tensor 'lm_head\.weight' missing")


@pytest.mark.parametrize("name", ["gemma4-e", "gemma4-e-narrow"])
def test_unused_keys_and_values_of_shared_layers_are_dropped_with_a_note(tmp_path: Path, name: str) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint(name, tmp_path, with_unused=True))
    count = len(list_unused_tensors(checkpoint.spec))
    assert count == 12
    assert len(checkpoint.notes) == 1
    assert f"dropped {count} K/V tensors of layers that read another layer's cache" in checkpoint.notes[0]
    assert checkpoint.sources().keys() == expected_values(name).keys()


def test_an_unused_tensor_of_the_wrong_shape_is_refused(tmp_path: Path) -> None:
    write_tiny_checkpoint("gemma4-e", tmp_path, with_unused=True)
    unused = list_unused_tensors(open_checkpoint(tmp_path).spec)[0].safetensors
    change_tensors(tmp_path, lambda tensors: tensors.update({f"model.{unused}": np.ones((3, 3), np.float32)}))
    refused(tmp_path, rf"'model\.{unused}' has the wrong shape")


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_towers_of_a_multimodal_checkpoint_are_skipped_with_a_note(tmp_path: Path, prefix: str) -> None:
    write_tiny_checkpoint("gemma3", tmp_path, prefix=prefix)
    outer = "" if prefix.startswith("language") else "model."

    def add_towers(tensors: Tensors) -> None:
        tensors[f"{outer}vision_tower.vision_model.embeddings.patch_embedding.weight"] = np.ones((2, 3), np.float32)
        tensors[f"{outer}vision_tower.encoder.layers.0.mlp.fc1.weight"] = np.ones((2, 3), np.float32)
        tensors[f"{outer}multi_modal_projector.mm_input_projection_weight"] = np.ones((2, 3), np.float32)

    change_tensors(tmp_path, add_towers)
    text = json.loads((tmp_path / "config.json").read_text())
    del text["architectures"]
    config = {"model_type": "gemma3", "text_config": text, "vision_config": VISION}
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.notes == [
        "skipped 2 tensors of the vision part: text only",
        "skipped 1 tensors of the projector part: text only",
    ]
    np.testing.assert_array_equal(read(checkpoint, "embedding"), expected_values("gemma3")["embedding"])


@pytest.mark.parametrize("dtype", ["F64", "I8", "F8_E4M3"])
def test_weights_in_an_encoding_we_lack_are_refused_by_its_name(folder: Path, dtype: str) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    entry = header["model.norm.weight"]
    begin, end = entry["data_offsets"]
    assert end == len(content) - 8 - length, "the norm is the last tensor"
    num_bytes = 40 * (8 if dtype == "F64" else 1)
    header["model.norm.weight"] = {"dtype": dtype, "shape": [40], "data_offsets": [begin, begin + num_bytes]}
    text = json.dumps(header).encode()
    data = content[8 + length : 8 + length + begin] + bytes(num_bytes)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    refused(folder, r"'model\.norm\.weight' is stored as (float64|int8|float8_e4m3), which is not", UnsupportedError)


def test_a_drafter_with_ordered_embeddings_can_be_opened(tmp_path: Path) -> None:
    text = {key: value for key, value in TINY_CONFIGS["gemma4-unified"].items() if key != "architectures"}
    text |= {"model_type": "gemma4_text", "attention_k_eq_v": False, "vocab_size": 512}
    config = {
        "model_type": "gemma4_assistant",
        "text_config": text,
        "backbone_hidden_size": 64,
        "use_ordered_embeddings": True,
        "num_centroids": 16,
        "centroid_intermediate_top_k": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    values = random_tensors(read_config(config), seed=1)
    header: dict[str, Any] = {}
    data = b""
    for tensor, value in values.items():
        order = np.arange(512)[::-1]
        part = order.astype("<i8").tobytes() if tensor.role == "index" else value.tobytes()
        name = ("" if tensor.at_root else "model.") + tensor.safetensors
        dtype = "I64" if tensor.role == "index" else "F32"
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    head = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    checkpoint = open_checkpoint(tmp_path)
    assert read(checkpoint, "token_ordering").tolist() == list(range(511, -1, -1))
    assert read(checkpoint, "centroids").shape == (16, 48)


def test_generation_defaults_are_read(folder: Path) -> None:
    assert open_checkpoint(folder).generation_config == {}
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 106], "top_k": 64}')
    assert open_checkpoint(folder).generation_config == {"eos_token_id": [1, 106], "top_k": 64}
    (folder / "generation_config.json").write_text("[1]")
    refused(folder, r"generation_config\.json: not a JSON object")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe{}", "not UTF-8"),
        (b"", "not valid JSON"),
        (b'{"vocab_size": }', "not valid JSON.*\n.*line 1, column 16"),
        (b"[]", "not a JSON object"),
        (b'{"rms_norm_eps": NaN}', "NaN is not JSON"),
        (b'{"rms_norm_eps": -Infinity}', "-Infinity is not JSON"),
        (b'{"rms_norm_eps": 1e999}', "too large"),
        (b'{"vocab_size": ' + b"9" * 10_000 + b"}", "not acceptable JSON"),
        (b'{"a": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"vocab_size": 1, "vocab_size": 2}', "'vocab_size' stands twice"),
        (b" " * ((16 << 20) + 1), "too large for a file of its kind"),
    ],
)
def test_a_config_that_is_no_json_object_is_refused(folder: Path, content: bytes, problem: str) -> None:
    (folder / "config.json").write_bytes(content)
    refused(folder, rf"(?s)config\.json.*{problem}")


def test_unknown_config_keys_pass_only_where_the_user_is_brave(folder: Path) -> None:
    change_config(folder, frobnication=3)
    refused(folder, "frobnication", UnsupportedError)
    assert open_checkpoint(folder, allow_unknown_config_keys=True).spec.num_layers == 8
