"""What a model is called in the settings that start an engine, and these settings as data."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.estimate import estimate
from gemwright.planner.export import emit, start_settings
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader
from tests.emitted_settings import LLAMA_FLAGS, VLLM_FLAGS, command, emitted, read_flags, read_ours
from tests.planned_models import header_of


@pytest.mark.parametrize("engine", ["gemwright", "vllm", "llama.cpp"])
@pytest.mark.parametrize("name", ["a b'c/$(echo x)", '"; rm', "--host", "ünï/çödé", "#x"])
def test_any_name_stays_one_word(engine: Any, name: str) -> None:
    header = replace(header_of("gemma-3-270m"), name=name)
    words = command(emitted(header, engine=engine, max_model_len=512, max_num_seqs=1))
    if engine == "gemwright":
        model = str(read_ours(words)[0])
    elif engine == "vllm":
        model = words[2]
        read_flags(words[3:], VLLM_FLAGS)
    else:
        model = str(read_flags(words[1:], LLAMA_FLAGS)["-m"])
        assert model.endswith(".gguf")
    assert not model.startswith("-")
    if engine != "llama.cpp":
        assert model.removeprefix("./") == name


@pytest.mark.parametrize("engine", ["gemwright", "ollama"])
def test_a_name_with_a_line_break_is_refused(engine: Any) -> None:
    header = replace(header_of("gemma-3-270m"), name="a\nSYSTEM x")
    with pytest.raises(RequestError, match="cannot be typed"):
        emitted(header, engine=engine, max_model_len=512)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (ModelHeader("dir/x y.gguf", header_of("gemma-3-270m").spec, "gguf", "file"), ["-m", "dir/x y.gguf"]),
        (ModelHeader("own/m:Q4_0@abc", header_of("gemma-3-270m").spec, "gguf", "hub"), ["-m", "m-Q4_0.gguf"]),
        (ModelHeader("dir/config.json", header_of("gemma-3-270m").spec, "config", "file"), ["-m", "dir.gguf"]),
        (ModelHeader("..", header_of("gemma-3-270m").spec, "safetensors", "folder"), ["-m", "model.gguf"]),
        (ModelHeader("own/m:Q4_0@main", header_of("gemma-3-270m").spec, "gguf", "hub"), ["-hf", "own/m:Q4_0"]),
        (ModelHeader("dir/m", header_of("gemma-3-270m").spec, "gguf", "folder"), ["-m", "m.gguf"]),
        (ModelHeader("google/m", header_of("gemma-3-270m").spec, "safetensors", "hub"), ["-m", "m.gguf"]),
    ],
)
def test_llama_server_is_told_a_file_or_a_repository(header: ModelHeader, words: list[str]) -> None:
    lines = emitted(header, engine="llama.cpp", max_model_len=512, quantization="q4_0")
    assert command(lines)[1:3] == words
    assert any("stored so" in line for line in lines)


def test_the_plan_of_one_engine_makes_no_line_for_another() -> None:
    header, settings = header_of("gemma-3-270m"), PlanSettings()
    found = estimate(header, settings)
    with pytest.raises(RequestError, match="do not follow") as caught:
        emit("vllm", header, settings, found, None)
    assert "--engine vllm" in caught.value.remedy
    with pytest.raises(RequestError, match="unknown engine"):
        emit("tgi", header, settings, found, None)


@pytest.mark.parametrize(
    ("name", "origin", "ours", "theirs", "revision"),
    [
        ("google/gemma-3-270m@abc", "published", "google/gemma-3-270m@abc", "google/gemma-3-270m", "abc"),
        ("google/gemma-3-270m@main", "hub", "google/gemma-3-270m@main", "google/gemma-3-270m", None),
        ("models/a@b", "folder", "models/a@b", "models/a@b", None),
        ("models/m/config.json", "file", "models/m", "models/m", None),
        ("config.json", "file", ".", ".", None),
        ("/config.json", "file", "/", "/", None),
    ],
)
def test_a_model_is_named_as_each_engine_takes_it(
    name: str, origin: Any, ours: str, theirs: str, revision: str | None
) -> None:
    header = ModelHeader(name, header_of("gemma-3-270m").spec, "config", origin)
    model, _ = read_ours(command(emitted(header, max_model_len=512)))
    assert model == ours
    words = command(emitted(header, engine="vllm", max_model_len=512))
    assert words[2] == theirs
    assert read_flags(words[3:], VLLM_FLAGS).get("--revision") == revision


@pytest.mark.parametrize("engine", ["gemwright", "vllm"])
def test_a_config_that_no_folder_of_weights_has_is_refused(engine: Any) -> None:
    header = ModelHeader("models/large.json", header_of("gemma-3-270m").spec, "config", "file")
    with pytest.raises(RequestError, match="a config alone"):
        emitted(header, engine=engine, max_model_len=512)


def test_the_default_model_has_no_name_to_be_asked_for_by() -> None:
    header = replace(header_of("gemma-3-270m"), name="gemma-3-270m-q4_k_m", is_default=True)
    words = command(emitted(header, max_model_len=512))
    assert words[:3] == ["gemwright", "serve", "--max-model-len"]
    assert read_ours(words)[0] is None
    with pytest.raises(UnsupportedError, match="default model"):
        emitted(header, engine="vllm", max_model_len=512)
    assert "# -m: the GGUF file of this model" in emitted(header, engine="llama.cpp", max_model_len=512)


@pytest.mark.parametrize("engine", ["gemwright", "vllm", "llama.cpp", "ollama"])
def test_as_data_it_is_the_same_command(engine: Any) -> None:
    header, settings = header_of("gemma-3-4b-it"), PlanSettings(engine=engine, max_model_len=8192, max_num_seqs=2)
    found = start_settings(engine, header, settings, estimate(header, settings), None)
    content = json.loads(json.dumps(found.to_dict()))
    assert content["engine"] == engine
    if engine == "ollama":
        assert content["modelfile"] == "FROM gemma-3-4b-it.gguf\nPARAMETER num_ctx 8192\n"
        variables = "OLLAMA_NUM_PARALLEL=2 OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=f16"
        assert content["command"] == f"{variables} ollama serve"
        assert content["settings"] == {"num_ctx": 8192}
        return
    assert content["command"] == found.lines()[-1]
    words = shlex.split(content["command"])
    for flag, value in content["settings"].items():
        assert flag in words
        assert value is True or words[words.index(flag) + 1] == str(value)
