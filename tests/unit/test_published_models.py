"""Published models are known by name: their config, and what a variant on the hub stores otherwise."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gemwright.planner import published
from gemwright.planner.published import find_published, list_published
from gemwright.spec.families import read_config
from tests.published_configs import GEMMA_3N, SUPPORTED, load_config

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_supported_model_is_known_by_its_hub_id_in_any_case(name: str):
    for asked in (f"google/{name}", f"Google/{name.upper()}"):
        found = find_published(asked)
        assert found is not None
        assert (found.hub_id, found.base_id) == (f"google/{name}", f"google/{name}")
        assert found.config == load_config(name)
        assert found.is_exact
        assert (found.quantization, found.is_gguf, found.has_unused_tensors) == (None, False, True)


@pytest.mark.parametrize(
    ("asked", "base", "quantization", "embedding", "is_gguf", "has_unused"),
    [
        ("google/gemma-4-31B-it-qat-q4_0-gguf", "gemma-4-31B-it", "q4_0", "q6_k", True, False),
        ("google/gemma-3-27b-pt-qat-q4_0-gguf", "gemma-3-27b-pt", "q4_0", "q6_k", True, False),
        ("google/gemma-4-E2B-it-qat-q4_0-unquantized", "gemma-4-E2B-it", None, None, False, False),
        ("google/gemma-4-E2B-it-qat-q4_0-unquantized-assistant", "gemma-4-E2B-it-assistant", None, None, False, False),
        ("google/gemma-3-4b-it-qat-int4-unquantized", "gemma-3-4b-it", None, None, False, True),
        ("GOOGLE/gemma-4-12b-it-qat-w4a16-ct", "gemma-4-12B-it", "w4a16", None, False, False),
        ("google/gemma-4-E4B-it-qat-mobile-ct", "gemma-4-E4B-it", "compressed-tensors", None, False, False),
        ("google/gemma-4-E4B-it-qat-mobile-transformers", "gemma-4-E4B-it", "gemma", None, False, False),
        ("nvidia/Gemma-4-31B-IT-NVFP4", "gemma-4-31B-it", "nvfp4", None, False, True),
        ("nvidia/Gemma-4-26B-A4B-NVFP4", "gemma-4-26B-A4B", "nvfp4", None, False, True),
        ("RedHatAI/gemma-4-26B-A4B-it-FP8-dynamic", "gemma-4-26B-A4B-it", "fp8", None, False, True),
        ("redhatai/gemma-4-12B-it-FP8-block", "gemma-4-12B-it", "fp8", None, False, True),
        ("RedHatAI/gemma-4-31B-it-NVFP4", "gemma-4-31B-it", "nvfp4", None, False, True),
    ],
)
def test_published_variants_say_how_they_are_stored(
    asked: str, base: str, quantization: str | None, embedding: str | None, is_gguf: bool, has_unused: bool
):
    found = find_published(asked)
    assert found is not None
    assert found.is_exact
    assert found.base_id == f"google/{base}"
    assert found.config == load_config(base)
    assert (found.quantization, found.embedding_quantization) == (quantization, embedding)
    assert (found.is_gguf, found.has_unused_tensors) == (is_gguf, has_unused)


@pytest.mark.parametrize(
    ("asked", "base", "quantization", "is_gguf"),
    [
        ("unsloth/gemma-4-31B-it", "gemma-4-31B-it", None, False),
        ("unsloth/gemma-4-31B-it-GGUF", "gemma-4-31B-it", None, True),
        ("bartowski/google_gemma-3-4b-it-GGUF", "gemma-3-4b-it", None, True),
        ("someone/gemma-3-12b-it-qat-q4_0-gguf", "gemma-3-12b-it", "q4_0", True),
        ("mlx-community/gemma-3-27b-it-qat-4bit", "gemma-3-27b-it", "mlx-4bit", False),
        ("mlx-community/gemma-4-E2B-it-8bit", "gemma-4-E2B-it", "mlx-8bit", False),
        ("lmstudio-community/gemma-4-E4B-it-MLX-4bit", "gemma-4-E4B-it", "mlx-4bit", False),
        ("mlx-community/gemma-4-12B-it-bf16", "gemma-4-12B-it", None, False),
        ("someone/gemma-4-31B-it-assistant-GGUF", "gemma-4-31B-it-assistant", None, True),
    ],
)
def test_copies_and_conversions_of_others_are_taken_as_what_their_name_says(
    asked: str, base: str, quantization: str | None, is_gguf: bool
):
    found = find_published(asked)
    assert found is not None
    assert not found.is_exact
    assert found.hub_id == found.base_id == f"google/{base}"
    assert (found.quantization, found.is_gguf) == (quantization, is_gguf)
    assert found.config == load_config(base)


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "/",
        "google/",
        "google/gemma-5-9B-it",
        "google/gemma-4-31B-it-GGUF",
        "google/gemma-4-26B-A4B-it-qat-w4a16-ct",
        "google/gemma-3-270m-it-qat-q4_0-gguf",
        "someone/gemma-4-31B-it-4bit",
        "someone/gemma-4-31B-it-abliterated-GGUF",
        "someone/my-gemma-4-31B-it",
        "someone/llama-3-8b",
        "./gemma-4-31B-it",
        "/models/gemma-4-31B-it",
        "a/b/gemma-4-31B-it",
        "gemma-4-31B-it.json",
        "google/gemma-4-31B-it\n",
        *GEMMA_3N,
    ],
)
def test_any_other_name_is_not_known(asked: str):
    assert find_published(asked) is None


def test_every_listed_name_is_found_and_has_a_config_that_can_be_read():
    names = list_published()
    assert len(set(names)) == len(names) > len(SUPPORTED)
    assert {f"google/{name}" for name in SUPPORTED} <= set(names)
    for name in names:
        found = find_published(name)
        assert found is not None
        assert found.is_exact
        assert found.hub_id == name
        assert read_config(found.config).family in name.replace("-", "").lower()


def test_a_config_is_a_fresh_copy():
    first, second = find_published("google/gemma-4-31B-it"), find_published("google/gemma-4-31B-it")
    assert first is not None
    assert second is not None
    first.config["text_config"].clear()
    assert second.config["text_config"]


def test_one_file_is_read_and_only_when_asked(monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    real = published._read
    monkeypatch.setattr(published, "_read", lambda name: read.append(name) or real(name))
    list_published()
    find_published("nobody/nothing")
    assert read == []
    find_published("google/gemma-3-4b-it-qat-q4_0-gguf")
    assert read == ["gemma-3-4b-it"]


def test_it_works_from_a_package_in_a_zip_file(tmp_path: Path):
    """Nothing but importlib.resources finds the configs, so any way of installing the package will do."""
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in (ROOT / "gemwright").rglob("*"):
            if path.suffix in {".py", ".json"}:
                packed.write(path, path.relative_to(ROOT))
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from gemwright.planner import published\n"
        "assert '.zip' in published.__file__, published.__file__\n"
        "print(published.find_published('google/gemma-4-E2B').config['model_type'], len(published.list_published()))"
    )
    # Without site, the hook of an editable install is not there and cannot answer in the archive's place.
    command = [sys.executable, "-S", "-c", script, str(archive), sysconfig.get_path("purelib")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.split() == ["gemma4", str(len(list_published()))], done.stderr
