"""What versions of other engines do: which run a model, what they take of memory, and what they load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemwright.errors import UnsupportedError
from gemwright.planner.engines.llama_cache import cache_rules
from gemwright.planner.estimate import Estimate, estimate
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import stored_file, weigh
from gemwright.spec.model_header import ModelHeader
from tests.planned_models import GIB, header_of

E4B, LARGE = "gemma-4-E4B-it", "gemma-4-31B-it"


def ask(name: str = E4B, engine: Any = "vllm", **asked: Any) -> Estimate:
    return estimate(header_of(name), PlanSettings(engine=engine, max_model_len=4096, **asked))


@pytest.mark.parametrize(
    ("engine", "version", "name", "first"),
    [
        ("vllm", "0.1", E4B, "from 0.19.0"),
        ("vllm", "0.18.1", E4B, "from 0.19.0"),
        ("vllm", "0.7.3", "gemma-3-4b-it", "from 0.8.0"),
        ("ollama", "0.5", E4B, "from 0.20.0"),
        ("ollama", "0.5.13", "gemma-3-4b-it", "from 0.6.0"),
        ("llama.cpp", "b5300", E4B, "from b8636"),
        ("llama.cpp", "b5600", E4B, "from b8636"),
        ("llama.cpp", "2026-03", E4B, "2026-04-02"),
        ("llama.cpp", "2025-02", "gemma-3-4b-it", "2025-03-12"),
    ],
)
def test_a_version_from_before_the_family_is_refused(engine: str, version: str, name: str, first: str) -> None:
    with pytest.raises(UnsupportedError, match="by rules that are known") as error:
        ask(name, engine, engine_version=version)
    assert first in str(error.value)
    assert "--engine-version" in str(error.value)


@pytest.mark.parametrize(
    ("engine", "version", "is_known"),
    [
        ("vllm", "0.19.0", True),
        ("vllm", "0.33.1", True),
        ("vllm", "0.34.0", False),
        ("vllm", "99.0", False),
        ("vllm", "main", True),
        ("ollama", "0.20.0", True),
        ("ollama", "1.0", False),
        ("llama.cpp", "b8636", True),
        ("llama.cpp", "2026-04", True),
        ("llama.cpp", "2026-11", True),
        ("llama.cpp", "2027-01", False),
        ("llama.cpp", "b99999", False),
        ("llama.cpp", "master", True),
    ],
)
def test_a_version_newer_than_what_is_known_is_planned_and_said(engine: str, version: str, is_known: bool) -> None:
    notes = ask(E4B, engine, engine_version=version).notes
    assert any("whose rules are known is" in note for note in notes) is not is_known


@pytest.mark.parametrize("year", ["2024", "2027"])
def test_a_year_is_no_build(year: str) -> None:
    """Build 2027 is of early 2024 and written b2027."""
    with pytest.raises(UnsupportedError, match="a year alone") as error:
        cache_rules(year)
    assert f"{year}-08" in str(error.value)
    assert not cache_rules("b2027").has_window


@pytest.mark.parametrize(("version", "share"), [("0.20.2", 0.9), ("0.21.0", 0.92), (None, 0.92), ("main", 0.92)])
def test_the_share_that_vllm_takes_where_none_is_named(version: str | None, share: float) -> None:
    asked = {"engine_version": version, "memory_bytes": 40 * GIB}
    plain = ask(**asked)
    assert plain.engine_facts == ask(**asked, gpu_memory_utilization=share).engine_facts
    assert plain.needed_bytes == ask(**asked, gpu_memory_utilization=share).needed_bytes
    assert any(f"--gpu-memory-utilization {share} is assumed" in note for note in plain.notes)


def test_a_split_that_cannot_be_is_told_by_its_heads() -> None:
    """And not by the pages, which do not come out even because of it."""
    with pytest.raises(UnsupportedError, match="cannot be split over so many devices") as error:
        ask(LARGE, tensor_parallel_size=3)
    assert "32 query heads" in str(error.value)
    assert "--tensor-parallel-size" in str(error.value)


def test_vllm_loads_the_towers_beside_a_gguf_file_too() -> None:
    """Matrices of the towers in 16 bits, vectors in 32; --language-model-only leaves them out."""

    def weights(**asked: Any) -> dict[str, int]:
        return {part.name: part.size_bytes for part in weigh(header_of(E4B), PlanSettings(**asked))}

    text = weights(engine="llama.cpp", quantization="q4_k_m")
    both = weights(engine="vllm", quantization="q4_k_m")
    towers = weights(engine="ollama", quantization="q4_k_m")
    assert both == towers
    assert both.keys() - text.keys() == {"vision", "audio", "projector"}
    assert weights(engine="vllm", quantization="q4_k_m", language_model_only=True) == text


def test_published_files_in_16_bits_hold_keys_and_values_that_no_layer_uses() -> None:
    """The file of E2B has 5,123,178,979 values, of which 18,880,512 are used by no layer."""
    header, settings = header_of("gemma-4-E2B-it"), PlanSettings(engine="vllm")
    parts = weigh(header, settings)
    assert sum(part.size_bytes for part in parts) == 2 * 5_123_178_979
    assert all(part.error_bytes == 0 for part in parts)
    assert {part.name: part.num_parameters for part in parts}["unused"] == 18_880_512
    assert sum(part.size_bytes for part in weigh(replace(header, has_unused_tensors=False), settings)) == (
        2 * (5_123_178_979 - 18_880_512)
    )
    with_them, may = stored_file(header, settings), stored_file(replace(header, origin="folder"), settings)
    assert with_them.size_bytes - may.size_bytes == may.error_bytes - with_them.error_bytes == 2 * 18_880_512


@pytest.mark.parametrize("changed", [{"origin": "folder"}, {"origin": "published", "quantization": "w4a16"}])
def test_where_it_is_not_known_the_bar_has_room_for_them(changed: dict[str, Any]) -> None:
    header: ModelHeader = replace(header_of("gemma-4-E2B-it"), **changed)
    layers = [
        {part.name: part for part in weigh(one, PlanSettings(engine="vllm"))}["layers"]
        for one in (header, replace(header, has_unused_tensors=False))
    ]
    assert layers[0].size_bytes == layers[1].size_bytes
    bits = 4.5 if header.quantization else 16
    room = layers[0].error_bytes - layers[1].error_bytes
    assert room == pytest.approx(18_880_512 * bits / 8, rel=0.01)


def test_sound_alone_loads_the_projector() -> None:
    def notes(name: str, **asked: Any) -> str:
        found = ask(name, "llama.cpp", **asked)
        has_line = any(line.name.startswith("media: projector") for line in found.ledger.lines)
        text = " ".join(note for note in found.notes if "text alone" in note)
        assert has_line is not bool(text)
        return text

    assert notes(E4B, audio_seconds=50.0) == ""
    assert notes(E4B, num_images=1) == ""
    assert "--images or --audio-seconds" in notes(E4B)
    assert "--audio-seconds" not in notes(LARGE)


def test_an_image_of_gemma_3_has_256_tokens() -> None:
    lines = {line.name: line for line in ask("gemma-3-4b-it", "gemwright", num_images=2).ledger.lines}
    assert lines["media: embeddings of vision items"].size_bytes == 2 * 256 * 2560 * 2


def test_sound_of_a_model_without_a_tower_for_it_fills_positions_alone() -> None:
    """The 12B takes 640 samples of 16,000 a second as one position: 25 a second."""
    lines = {line.name: line for line in ask("gemma-4-12B-it", "gemwright", audio_seconds=10.0).ledger.lines}
    assert lines["media: embeddings of audio items"].size_bytes == 250 * 3840 * 2
    assert "media: activations of the audio tower" not in lines
    assert any(
        line.name.startswith("media: projector")
        for line in ask("gemma-4-12B-it", "llama.cpp", audio_seconds=1.0).ledger.lines
    )
