"""GGUF models: every tensor found, norms and experts as a safetensors file would hold them, and nothing passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from gemwright.engine.model_defaults import suppressed_ids
from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.checkpoint import open_checkpoint
from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import list_unused_tensors
from gemwright.testing import TINY_CONFIGS
from gemwright.testing.checkpoints import random_tensors
from tests.tiny_gguf import Values, stored_tensors, write_tiny_gguf

# Wide enough for whole blocks of 32.
WIDE = {"hidden_size": 64, "intermediate_size": 96}


def tiny(name: str) -> tuple[ModelSpec, Values]:
    spec = read_config(TINY_CONFIGS[name] | WIDE)
    return spec, random_tensors(spec, seed=4)


def refused(path: Path, problem: str, error: type[Exception] = CheckpointError) -> None:
    with pytest.raises(error, match=problem):
        open_checkpoint(path).sources()


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_every_tensor_of_every_family_is_found(tmp_path: Path, name: str) -> None:
    spec, values = tiny(name)
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf", spec, values, tokens=spec.vocab_size))
    assert checkpoint.format == "gguf"
    assert checkpoint.folder == tmp_path
    assert checkpoint.stored_dtype is None
    assert checkpoint.gguf_metadata is not None
    assert checkpoint.gguf_metadata["tokenizer.ggml.tokens"][:2] == ["t0", "t1"]
    assert checkpoint.notes == []
    assert [layer.kind for layer in checkpoint.spec.layers] == [layer.kind for layer in spec.layers]
    assert [layer.rope for layer in checkpoint.spec.layers] == [layer.rope for layer in spec.layers]
    sources = checkpoint.sources()
    assert list(sources) == [tensor.name for tensor in values]
    for tensor, expected in values.items():
        source = sources[tensor.name]
        assert source.shape == tensor.shape
        found = source.read_rows(0, len(expected))
        if tensor.gguf_offset:
            # The file holds w + 1 in float32, which costs w its last bits.
            np.testing.assert_allclose(found, expected, rtol=0, atol=2**-23)
            assert source.encoding == "float32"
            assert source.stored_rows(1, 5).view(np.float32)[:, 0].tolist() == found[1:5].tolist()
        else:
            np.testing.assert_array_equal(found, expected)
        source.release()
    checkpoint.release()


def test_norms_of_gemma_2_and_3_lose_the_converters_one_and_others_nothing(tmp_path: Path) -> None:
    for name, added in (("gemma2", 1.0), ("gemma3", 1.0), ("gemma4-e", 0.0)):
        spec, values = tiny(name)
        path = write_tiny_gguf(tmp_path / f"{name}.gguf", spec, values)
        checkpoint = open_checkpoint(path)
        stored = checkpoint.files.tensors["output_norm.weight"].read_rows(0, 64)
        found = checkpoint.sources()["final_norm"].read_rows(0, 64)
        np.testing.assert_array_equal(found, stored - np.float32(added))


@pytest.mark.parametrize("encoding", ["F32", "Q8_0", "BF16"])
def test_experts_apart_are_stacked_like_experts_together(tmp_path: Path, encoding: str) -> None:
    spec, values = tiny("gemma4-moe")
    together = open_checkpoint(write_tiny_gguf(tmp_path / "a.gguf", spec, values, encoding=encoding)).sources()
    apart_path = write_tiny_gguf(tmp_path / "b.gguf", spec, values, encoding=encoding, split_experts=True)
    apart = open_checkpoint(apart_path).sources()
    for index in range(spec.num_layers):
        name = f"layers.{index}.experts_gate_up"
        assert apart[name].name == f"blk.{index}.ffn_gate_exps.weight + blk.{index}.ffn_up_exps.weight"
        assert apart[name].shape == together[name].shape == (8, 40, 64)
        assert apart[name].encoding == together[name].encoding
        for begin, end in ((0, 8), (2, 5)):
            np.testing.assert_array_equal(apart[name].read_rows(begin, end), together[name].read_rows(begin, end))
            np.testing.assert_array_equal(apart[name].stored_rows(begin, end), together[name].stored_rows(begin, end))
        apart[name].release()


def test_experts_apart_in_two_encodings_come_out_as_float32(tmp_path: Path) -> None:
    spec, values = tiny("gemma4-moe")
    up = next(value for tensor, value in values.items() if tensor.name == "layers.0.experts_gate_up")[:, 20:]
    half = up.astype(np.float16)
    path = write_tiny_gguf(
        tmp_path / "m.gguf",
        spec,
        values,
        split_experts=True,
        without=frozenset({"blk.0.ffn_up_exps.weight"}),
        extra={"blk.0.ffn_up_exps.weight": half},
    )
    source = open_checkpoint(path).sources()["layers.0.experts_gate_up"]
    assert source.encoding == "float32"
    rows = source.read_rows(3, 6)
    np.testing.assert_array_equal(rows[:, 20:], half[3:6].astype(np.float32))
    np.testing.assert_array_equal(source.stored_rows(3, 6).view(np.float32), rows.reshape(3, -1))


def test_experts_both_together_and_apart_are_refused(tmp_path: Path) -> None:
    spec, values = tiny("gemma4-moe")
    extra = {"blk.1.ffn_gate_exps.weight": np.ones((8, 20, 64), np.float32)}
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values, extra=extra)
    refused(path, r"'blk\.1\.ffn_gate_exps\.weight' and 'blk\.1\.ffn_gate_up_exps\.weight' are two spellings")


@pytest.mark.parametrize("encoding", ["Q4_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_quantized_matrices_have_the_values_the_gguf_package_gives(tmp_path: Path, encoding: str) -> None:
    spec, values = tiny("gemma3")
    sources = open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf", spec, values, encoding=encoding)).sources()
    kind = GGMLQuantizationType[encoding]
    name = {"F16": "float16", "BF16": "bfloat16"}.get(encoding, encoding.lower())
    for tensor, value in values.items():
        if len(tensor.shape) == 2 and tensor.shape[1] % 32 == 0:
            source = sources[tensor.name]
            assert source.encoding == name
            expected = dequantize(quantize(value, kind), kind)
            np.testing.assert_array_equal(source.read_rows(0, len(value)), expected)


def test_unused_keys_and_values_of_shared_layers_are_dropped_with_a_note(tmp_path: Path) -> None:
    spec, values = tiny("gemma4-e")
    unused = list_unused_tensors(spec)
    extra = {tensor.gguf: np.ones(tensor.shape, np.float32) for tensor in unused}
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf", spec, values, extra=extra))
    assert len(checkpoint.notes) == 1
    assert f"dropped {len(unused)} K/V tensors" in checkpoint.notes[0]
    assert len(checkpoint.sources()) == len(values)


def test_an_untied_head_is_used(tmp_path: Path) -> None:
    spec, values = tiny("gemma3")
    head = np.random.default_rng(9).standard_normal((spec.vocab_size, 64)).astype(np.float32)
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values, extra={"output.weight": head})
    np.testing.assert_array_equal(open_checkpoint(path).sources()["head"].read_rows(0, 5), head[:5])


@pytest.mark.parametrize("gone", ["blk.3.ffn_up.weight", "output_norm.weight", "token_embd.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, gone: str) -> None:
    spec, values = tiny("gemma3")
    refused(write_tiny_gguf(tmp_path / "m.gguf", spec, values, without=frozenset({gone})), rf"{gone}'? (is )?missing")


def test_missing_rope_freqs_are_named(tmp_path: Path) -> None:
    spec, values = tiny("gemma4-e")
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values, without=frozenset({"rope_freqs.weight"}))
    refused(path, r"rope_freqs\.weight is missing")


@pytest.mark.parametrize(
    ("divisors", "error"),
    [
        (np.ones((4, 4), np.float32), CheckpointError),
        (np.full(16, 2.0, np.float32), UnsupportedError),
        (np.array([1.0] * 15 + [np.nan], np.float32), CheckpointError),
    ],
)
def test_rope_freqs_that_are_not_gemmas_are_refused(
    tmp_path: Path, divisors: np.ndarray[tuple[int, ...], np.dtype[np.float32]], error: type[Exception]
) -> None:
    spec, values = tiny("gemma4-e")
    name = "rope_freqs.weight"
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values, without=frozenset({name}), extra={name: divisors})
    refused(path, r"rope_freqs\.weight", error)


def test_a_tensor_that_is_left_over_is_named(tmp_path: Path) -> None:
    spec, values = tiny("gemma3")
    extra = {"blk.0.attn_q.bias": np.ones(64, np.float32)}
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values, extra=extra)
    refused(path, r"m\.gguf: tensor 'blk\.0\.attn_q\.bias' left over")


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    spec, values = tiny("gemma3")
    name = "blk.2.ffn_down.weight"
    extra = {name: np.ones((96, 64), np.float32)}
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values, without=frozenset({name}), extra=extra)
    refused(path, r"'blk\.2\.ffn_down\.weight' has the wrong shape\n.*\[96, 64\]\n.*\[64, 96\]")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    spec, values = tiny("gemma3")
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values)
    path.write_bytes(path.read_bytes()[:-3000])
    refused(path, r"m\.gguf: tensor '[a-z0-9._]+' lies outside the file")


def test_a_value_that_is_not_finite_is_named_when_it_is_read(tmp_path: Path) -> None:
    spec, values = tiny("gemma2")
    norm = stored_tensors(spec, values)["blk.1.attn_norm.weight"]
    norm[5] = np.inf
    name = "blk.1.attn_norm.weight"
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values, without=frozenset({name}), extra={name: norm})
    source = open_checkpoint(path).sources()["layers.1.input_norm"]
    with pytest.raises(CheckpointError, match=r"'blk\.1\.attn_norm\.weight'.*not finite, first in row 5"):
        source.read_rows(0, 64)


def test_a_token_list_of_another_length_than_the_table_is_refused(tmp_path: Path) -> None:
    spec, values = tiny("gemma3")
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, values, tokens=spec.vocab_size + 1)
    refused(path, r"tokenizer\.ggml\.tokens and the rows.*\n.*516 entries\n.*515 rows")


def test_generation_defaults_come_from_the_metadata(tmp_path: Path) -> None:
    spec, values = tiny("gemma3")
    path = write_tiny_gguf(tmp_path / "a.gguf", spec, values)
    ids = {"bos_token_id": 2, "eos_token_id": [1], "pad_token_id": 0}
    assert open_checkpoint(path).generation_config == ids
    path = write_tiny_gguf(tmp_path / "b.gguf", spec, values, sampling={"temp": 1.0, "top_k": 64, "top_p": 0.95})
    expected = ids | {"temperature": 1.0, "top_k": 64, "top_p": 0.95, "do_sample": True}
    assert open_checkpoint(path).generation_config == expected


def test_a_gguf_names_the_tokens_that_are_never_given_as_generation_config_does(tmp_path: Path) -> None:
    spec, values = tiny("gemma3")
    path = write_tiny_gguf(
        tmp_path / "a.gguf", spec, values, extra_metadata={"tokenizer.ggml.suppress_tokens": [410, 409]}
    )
    defaults = open_checkpoint(path).generation_config
    assert suppressed_ids(defaults) == (410, 409)
    assert json.dumps(defaults["suppress_tokens"]) == "[410, 409]"


@pytest.mark.parametrize("damaged", [7, [-1], ["seven"]])
def test_damaged_suppress_tokens_are_refused(tmp_path: Path, damaged: Any) -> None:
    spec, values = tiny("gemma3")
    path = write_tiny_gguf(
        tmp_path / "a.gguf", spec, values, extra_metadata={"tokenizer.ggml.suppress_tokens": damaged}
    )
    refused(path, r"tokenizer\.ggml\.suppress_tokens")


class TestPlaces:
    """Which file is opened when a path or a folder is given."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return write_tiny_gguf(tmp_path / "model-q8.gguf", *tiny("gemma3"))

    def test_a_folder_with_one_model_opens_it(self, path: Path) -> None:
        (path.parent / "mmproj-model.gguf").write_bytes(b"never opened")
        (path.parent / "README.md").write_text("hello")
        (path.parent / "config.json").write_text("{}")
        assert open_checkpoint(path.parent).files.paths == (path,)

    def test_a_folder_with_two_models_asks_which(self, path: Path) -> None:
        (path.parent / "other.gguf").write_bytes(path.read_bytes())
        refused(path.parent, r"2 GGUF models lie here\n.*model-q8\.gguf, other\.gguf\n.*name one")

    def test_a_gguf_file_may_have_any_name(self, path: Path) -> None:
        blob = path.rename(path.with_name("5fd3b62230aa"))
        assert open_checkpoint(blob).format == "gguf"

    def test_a_split_set_counts_as_one_model(self, path: Path) -> None:
        part = path.rename(path.with_name("model-00001-of-00001.gguf"))
        assert open_checkpoint(path.parent).files.paths == (part,)
        missing = part.rename(path.with_name("model-00002-of-00002.gguf"))
        refused(path.parent, r"model-00001-of-00002\.gguf: no such file\n.*part 1 of 2")
        refused(missing, r"model-00001-of-00002\.gguf: no such file")

    @pytest.mark.parametrize(
        ("name", "problem", "error"),
        [
            ("model.safetensors", "one file of a checkpoint.*\n.*give its folder", CheckpointError),
            ("config.json", "one file of a checkpoint.*\n.*give its folder", CheckpointError),
            ("pytorch_model.bin", "pickled weights can run code", UnsupportedError),
            ("notes.txt", "not a GGUF file", CheckpointError),
        ],
    )
    def test_other_files_are_refused(self, tmp_path: Path, name: str, problem: str, error: type[Exception]) -> None:
        (tmp_path / name).write_bytes(b"something else")
        refused(tmp_path / name, problem, error)

    def test_folders_without_a_model_are_refused(self, tmp_path: Path) -> None:
        refused(tmp_path / "nowhere", "no such file or folder")
        refused(tmp_path / ("x" * 5000), "cannot be read")
        refused(tmp_path, r"no config\.json")
        (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
        refused(tmp_path, "pickled weights can run code", UnsupportedError)
        (tmp_path / "model.safetensors").write_bytes(b"\x80")
        refused(tmp_path, r"no config\.json")
