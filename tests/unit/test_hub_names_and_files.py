"""How models of the hub are named, which files of a repository they are, and what the first bytes of a GGUF tell."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemwright.errors import CheckpointError, RequestError, UnsupportedError
from gemwright.loading.hub_files import choose_files, gguf_models
from gemwright.loading.hub_gguf import check_beginning, read_architecture
from gemwright.loading.hub_name import HubName, is_hub_name, parse_hub_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("google/gemma-3-1b-it", HubName("google/gemma-3-1b-it")),
        ("google/gemma-3-1b-it@refs/pr/3", HubName("google/gemma-3-1b-it", None, "refs/pr/3")),
        ("ggml-org/gemma-GGUF:Q4_K_M", HubName("ggml-org/gemma-GGUF", "Q4_K_M")),
        ("ggml-org/gemma-GGUF:UD-Q4_K_XL@v1.0", HubName("ggml-org/gemma-GGUF", "UD-Q4_K_XL", "v1.0")),
    ],
)
def test_a_name_says_repository_quantization_and_revision(text: str, name: HubName) -> None:
    assert parse_hub_name(text) == name
    assert is_hub_name(text)
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        "gemma",
        "a/b/c",
        "a/b.gguf",
        "a /b",
        "-a/b",
        "a/b@",
        "a/b:",
        "a/b-",
        "a--b/c",
        "a/b..c",
        "a/b.git",
        "ä/b",
        "a/b\n",
    ],
)
def test_what_no_hub_would_take_is_no_name(text: str) -> None:
    assert parse_hub_name(text) is None


@pytest.mark.parametrize("revision", ["../../etc", "a/../b", "/etc"])
def test_a_revision_that_leads_out_of_the_cache_is_refused(revision: str) -> None:
    with pytest.raises(RequestError, match="no revision"):
        parse_hub_name("a/b", revision)


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("gemma-3-1b-it-Q4_K_M.gguf", "Q4_K_M"),
        ("gemma-3-1b-it.q8_0.gguf", "Q8_0"),
        ("gemma-3-1b-it-qat-q4_0.gguf", "Q4_0"),
        ("gemma-3-1b-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("BF16/gemma-4-31B-it-BF16-00001-of-00001.gguf", "BF16"),
        ("gemma-3-1b-it-IQ4_XS.gguf", "IQ4_XS"),
        ("f16.gguf", "F16"),
        ("model.gguf", "model"),
    ],
)
def test_a_file_name_tells_the_quantization(file: str, label: str) -> None:
    (model,) = gguf_models([file])
    assert (model.label, model.files) == (label, (file,))


def test_two_files_of_one_quantization_are_called_by_their_names() -> None:
    models = gguf_models(["a-Q8_0.gguf", "b-Q8_0.gguf", "a-F16.gguf"])
    assert [model.label for model in models] == ["F16", "a-Q8_0", "b-Q8_0"]


def test_a_set_that_lacks_a_part_is_no_model() -> None:
    assert gguf_models(["m-F16-00001-of-00002.gguf"]) == ()
    (model,) = gguf_models(["m-F16-00002-of-00002.gguf", "m-F16-00001-of-00002.gguf"])
    assert model.files == ("m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf")


_NAMES = st.sampled_from(
    [
        *(
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "README.md",
            "pytorch_model.bin",
            "adapter_config.json",
        ),
        *("model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        *("consolidated.safetensors", "original/model.safetensors", "a-Q8_0.gguf", "b-Q4_0.gguf", "mmproj-F16.gguf"),
        *("c-F16-00001-of-00002.gguf", "c-F16-00002-of-00002.gguf", "onnx/model.onnx"),
    ]
)


@given(st.frozensets(_NAMES), st.sampled_from([None, "Q8_0", "F16"]))
def test_a_choice_is_one_model_of_what_is_there_or_an_error(names: frozenset[str], quantization: str | None) -> None:
    try:
        choice = choose_files(names, source="a/b", quantization=quantization)
    except (RequestError, UnsupportedError, CheckpointError):
        return
    assert set(choice.weights) <= set(choice.files) <= names
    assert choice.weights
    assert not [name for name in choice.files if name.endswith((".bin", ".onnx")) or name.startswith("mmproj")]
    assert {name.endswith(".gguf") for name in choice.weights} == {choice.format == "gguf"}
    assert choice.format == "gguf" or "config.json" in choice.files
    assert len(gguf_models(choice.weights)) == (choice.format == "gguf")


def beginning(*keys: tuple[str, int, bytes]) -> bytes:
    """Return the first bytes of a GGUF file that holds these keys."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys))
    return head + b"".join(
        struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value for key, kind, value in keys
    )


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def test_the_architecture_is_found_behind_other_short_keys() -> None:
    content = beginning(
        ("general.name", 8, text("a model")),
        ("general.count", 4, b"\1\0\0\0"),
        ("general.architecture", 8, text("gemma3")),
    )
    assert read_architecture(content, "m.gguf") == "gemma3"
    for end in range(4, len(content)):
        assert read_architecture(content[:end], "m.gguf") is None
    check_beginning(content, "Q4_K_M", "m.gguf")


def test_what_cannot_be_run_is_refused_from_the_beginning() -> None:
    gemma = beginning(("general.architecture", 8, text("gemma3")))
    with pytest.raises(UnsupportedError, match="quantization"):
        check_beginning(gemma, "UD-IQ2_XXS", "m.gguf")
    with pytest.raises(UnsupportedError, match="model type"):
        check_beginning(beginning(("general.architecture", 8, text("llama"))), None, "m.gguf")
    with pytest.raises(CheckpointError, match="not a GGUF"):
        check_beginning(b"version https://git-lfs", None, "m.gguf")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_to_an_end(content: bytes) -> None:
    assert read_architecture(b"GGUF" + content, "m.gguf") is None or b"general.architecture" in content
