"""`gemwright plan` of models of the hub: ranges of headers are fetched and no weights, and what goes wrong is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from gemwright.loading import hub_headers
from gemwright.loading.gguf_header import read_header as read_gguf_header
from gemwright.loading.headers import local_header
from gemwright.loading.mapped_file import MappedFile
from gemwright.planner.inputs import read_header
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS
from gemwright.testing.checkpoints import random_tensors
from tests.end_to_end.command_line import CommandLine, Outcome
from tests.end_to_end.conftest import TinyFolder
from tests.header_files import shard
from tests.hub_server import Fault, Hub, use_endpoint
from tests.tiny_gguf import write_tiny_gguf

NAME = "tiny/gemma"
PUBLISHED = "google/gemma-4-31B-it"
WEIGHTS = "model.safetensors"
FLAGS = ("--max-model-len", "96", "--max-num-seqs", "2")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts as ever, without the waits between them."""
    patience = replace(hub_headers.HEADER_PATIENCE, first_wait_seconds=0.01, silence_seconds=1.0)
    monkeypatch.setattr(hub_headers, "HEADER_PATIENCE", patience)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a GGUF file of several MiB, whose header takes a few KiB."""
    spec = read_config(TINY_CONFIGS["gemma3"] | {"hidden_size": 256, "intermediate_size": 512})
    path = tmp_path_factory.mktemp("gguf") / "tiny-F32.gguf"
    return write_tiny_gguf(path, spec, random_tensors(spec, seed=6), tokens=515)


def header_bytes(weights: bytes) -> int:
    return 8 + int.from_bytes(weights[:8], "little")


def sharded(files: Mapping[str, bytes], folder: Path) -> dict[str, bytes]:
    """Return a checkpoint in three files and an index instead of one, written in `folder` on the way."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    shard(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def replaced(files: Mapping[str, bytes], **changes: Any) -> dict[str, bytes]:
    """Return a checkpoint whose config has other values."""
    return {**files, "config.json": json.dumps(json.loads(files["config.json"]) | changes).encode()}


def assert_fails(outcome: Outcome, code: int, *words: str) -> None:
    assert outcome.code == code, outcome.stderr
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    assert "remedy: " in outcome.stderr
    for word in words:
        assert word in outcome.stderr


# What is fetched


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_of_a_checkpoint_exactly_the_header_is_fetched(hub: Hub, tiny_folder: TinyFolder, name: str) -> None:
    folder = tiny_folder(name, with_unused=True)
    hub.add(NAME, folder)
    header = read_header(NAME)
    local = local_header(folder)
    assert (header.origin, header.name) == ("hub", NAME)
    assert (header.spec, header.tensors, header.notes) == (local.spec, local.tensors, ())
    weights = (folder / WEIGHTS).read_bytes()
    assert hub.sent_bytes(WEIGHTS) == header_bytes(weights) < len(weights)
    assert [asked.status for asked in hub.requests_for(WEIGHTS)] == [206, 206]
    assert hub.requests_for("tokenizer.json") == []
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.safetensors"))


def test_of_several_files_exactly_their_headers_are_fetched(hub: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    hub.redirects = True
    hub.add("tiny/one", files)
    hub.add(NAME, shards := sharded(files, tmp_path / "shards"))
    several, one = read_header(NAME), read_header("tiny/one")
    assert several.tensors is not None
    assert one.tensors is not None
    assert several.spec == one.spec
    assert set(several.tensors) == set(one.tensors)
    for name, content in shards.items():
        if name.endswith(".safetensors"):
            assert hub.sent_bytes(name) == header_bytes(content)


def test_of_a_gguf_file_little_more_than_the_header_is_fetched(
    gemwright: CommandLine, hub: Hub, gguf: Path, tmp_path: Path
) -> None:
    hub.add(NAME, {gguf.name: gguf.read_bytes()})
    header, local = read_header(NAME), local_header(gguf)
    assert (header.spec, header.tensors, header.quantization) == (local.spec, local.tensors, None)
    assert hub.sent_bytes(gguf.name) == hub_headers.FIRST_PART_BYTES < gguf.stat().st_size / 4
    (asked,) = hub.requests_for(gguf.name)
    assert asked.range == f"bytes=0-{hub_headers.FIRST_PART_BYTES - 1}"


def test_the_parts_of_a_split_gguf_file_are_joined(hub: Hub, gguf: Path, tmp_path: Path) -> None:
    """The second part has one tensor more and is read from its own first range."""
    from gguf import GGUFWriter

    spec = read_config(TINY_CONFIGS["gemma3"] | {"hidden_size": 64, "intermediate_size": 96})
    values = random_tensors(spec, seed=6)
    norm = next(value for tensor, value in values.items() if tensor.name == "final_norm")
    first = write_tiny_gguf(
        tmp_path / "m-00001-of-00002.gguf",
        spec,
        values,
        without=frozenset({"output_norm.weight"}),
        extra_metadata={"split.count": 2, "split.no": 0},
    )
    second = tmp_path / "m-00002-of-00002.gguf"
    writer = GGUFWriter(second, "gemma3")
    writer.add_uint32("split.count", 2)
    writer.add_uint32("split.no", 1)
    writer.add_tensor("output_norm.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    hub.add(NAME, {path.name: path.read_bytes() for path in (first, second)})
    header, local = read_header(NAME), local_header(first)
    assert header.tensors is not None
    assert header.tensors == local.tensors
    assert "output_norm.weight" in {tensor.name for tensor in header.tensors}


def test_a_repository_with_a_config_alone_says_what_it_cannot_know(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, {"config.json": files["config.json"], "README.md": b"words"})
    found = gemwright("plan", NAME, *FLAGS, "--json")
    assert found.code == 0, found.stderr
    assert found.json()["origin"] == "hub"
    assert "note: tiny/gemma holds no weights" in found.stderr
    assert "is not known" in found.stderr


def test_what_is_in_the_cache_is_planned_without_a_request(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, files)
    remote = gemwright("plan", NAME, *FLAGS, "--json").json()
    assert gemwright("pull", NAME).code == 0
    hub.asked.clear()
    cached = gemwright("plan", NAME, *FLAGS, "--json").json()
    assert hub.asked == []
    assert (remote.pop("origin"), cached.pop("origin")) == ("hub", "cache")
    assert cached == remote


def test_a_config_in_the_cache_stands_in_for_a_hub_that_is_not_asked(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, files)
    path = Path(gemwright("pull", NAME, "--json").json()["path"])
    (path / WEIGHTS).unlink()
    found = gemwright("plan", NAME, *FLAGS, "--offline", "--json")
    assert found.code == 0, found.stderr
    assert "config in the local cache alone, as the hub was not asked (offline)" in found.stderr


# A hub that does not answer


def test_a_gated_model_is_planned_from_what_is_published_or_says_where_its_terms_are(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.tokens |= {"hf_other", "hf_accepted"}
    for name in (NAME, PUBLISHED):
        hub.add(name, files, is_gated=True)
    for token, status in ((None, 401), ("hf_other", 403)):
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        assert_fails(gemwright("plan", NAME), 5, f"{NAME} is gated", f"{hub.url}/{NAME}", "accept the terms")
        known = gemwright("plan", PUBLISHED, "--json")
        assert known.code == 0, known.stderr
        assert f"comes with Gemwright, as the hub refused access ({status})" in known.stderr
        assert known.json()["origin"] == "published"
    monkeypatch.setenv("HF_TOKEN", "hf_accepted")
    assert gemwright("plan", NAME, *FLAGS, "--json").json()["origin"] == "hub"


def test_a_model_or_revision_that_is_not_there_is_named(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, files)
    assert_fails(gemwright("plan", "tiny/nothing"), 5, "no such model", "tiny/nothing", "spelling")
    assert_fails(gemwright("plan", f"{NAME}@old"), 5, "no such revision", f"{NAME} at revision old")
    assert_fails(gemwright("plan", f"{NAME}@old", "--revision", "new"), 2, "two revisions", "old and new")
    assert_fails(gemwright("plan", f"{NAME}:Q4_0"), 2, "holds no GGUF files", "Q4_0")
    hub.tokens.add("hf_mine")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")  # now a missing model is 404
    assert_fails(gemwright("plan", "google/gemma-4-31B-it"), 5, "no such model", PUBLISHED)


def test_no_network_falls_back_on_what_is_published_and_else_says_which_hub_was_asked(
    gemwright: CommandLine, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_endpoint(monkeypatch, "http://127.0.0.1:9")
    assert_fails(gemwright("plan", NAME), 5, "cannot be reached", "http://127.0.0.1:9", "HF_ENDPOINT")
    known = gemwright("plan", PUBLISHED, "--memory", "80GiB", "--json")
    assert known.code == 0, known.stderr
    assert "config of google/gemma-4-31B-it that comes with Gemwright, as the hub could not be reached" in known.stderr


def test_offline_asks_nobody(gemwright: CommandLine, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails(gemwright("plan", NAME, "--offline"), 5, f"{NAME} at revision main", "leave --offline out")
    found = gemwright("plan", PUBLISHED, "--memory", "80GiB", "--offline")
    assert found.code == 0
    assert "config that comes with Gemwright" in found.stdout
    assert "that comes with Gemwright, as the hub was not asked (offline)" in found.stderr
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_fails(gemwright("plan", NAME), 5, "leave HF_HUB_OFFLINE out")
    assert hub.asked == []


@pytest.mark.parametrize("where", ["config.json", WEIGHTS])
def test_a_cut_connection_is_tried_again_and_then_named(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], where: str
) -> None:
    hub.add(NAME, files)
    hub.faults[where] = [Fault(cut_after=5)]
    assert gemwright("plan", NAME, *FLAGS, "--json").json()["origin"] == "hub"
    hub.always[where] = Fault(cut_after=5)
    hub.asked.clear()
    assert_fails(gemwright("plan", NAME), 5, "breaks off again and again", hub.url)
    assert len(hub.requests_for(where)) == 2
    hub.add(PUBLISHED, files)
    known = gemwright("plan", PUBLISHED, "--json")
    assert (known.code, known.json()["origin"]) == (0, "published")


def test_a_hub_that_falls_silent_is_not_waited_for(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_headers, "HEADER_PATIENCE", replace(hub_headers.HEADER_PATIENCE, silence_seconds=0.1))
    hub.add(NAME, files)
    hub.always[WEIGHTS] = Fault(cut_after=5, hold=True)
    assert_fails(gemwright("plan", NAME), 5, "breaks off", hub.url, "network")


def test_an_answer_that_never_ends_is_given_up(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_headers, "HEADER_PATIENCE", replace(hub_headers.HEADER_PATIENCE, answer_seconds=-1.0))
    hub.add(NAME, files)
    assert_fails(gemwright("plan", NAME), 5, "breaks off", "takes too long")


def test_a_server_without_ranges_is_read_up_to_the_header(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], gguf: Path
) -> None:
    hub.add(NAME, files)
    hub.add("tiny/gguf", {gguf.name: gguf.read_bytes()})
    for name, file in ((NAME, WEIGHTS), ("tiny/gguf", gguf.name)):
        right = gemwright("plan", name, *FLAGS, "--json").json()
        hub.always[file] = Fault(ignore_range=True)
        hub.asked.clear()
        assert gemwright("plan", name, *FLAGS, "--json").json() == right
        assert {asked.status for asked in hub.requests_for(file)} == {200}


@pytest.mark.parametrize("status", [500, 503])
def test_an_ailing_hub_is_named(gemwright: CommandLine, hub: Hub, files: dict[str, bytes], status: int) -> None:
    hub.add(NAME, files)
    hub.always["api"] = Fault(status=status)
    assert_fails(gemwright("plan", NAME), 5, str(status), NAME)
    assert f"answered with an error ({status})" in gemwright("plan", PUBLISHED).stderr


# What the hub's files say cannot be


@pytest.mark.parametrize("length", [(1 << 64) - 1, 1 << 40, 1 << 20, 0])
def test_an_absurd_header_length_is_refused_after_eight_bytes(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], length: int
) -> None:
    hub.add(NAME, {**files, WEIGHTS: length.to_bytes(8, "little") + files[WEIGHTS][8:]})
    assert_fails(gemwright("plan", NAME), 5, f"{NAME}/{WEIGHTS}", "length field" if length else "not a JSON object")
    assert hub.sent_bytes(WEIGHTS) == 8


def test_damaged_files_of_the_hub_are_named(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    end = header_bytes(files[WEIGHTS])
    entries = json.loads(files[WEIGHTS][8:end])
    last = list(entries)[-1]
    begin, stop = entries[last]["data_offsets"]
    entries[last]["data_offsets"] = [begin - 4, stop - 4]
    text = json.dumps(entries).encode()
    overlap = len(text).to_bytes(8, "little") + text + files[WEIGHTS][end:]
    for changed, words in (
        ({WEIGHTS: files[WEIGHTS][:8] + b"?" * (end - 8) + files[WEIGHTS][end:]}, (WEIGHTS, "not a JSON object")),
        ({WEIGHTS: files[WEIGHTS][: end - 1]}, (WEIGHTS, "length field")),
        ({WEIGHTS: files[WEIGHTS][:-1]}, (WEIGHTS, "outside the file")),
        ({WEIGHTS: overlap}, (WEIGHTS, "overlaps", last)),
        ({WEIGHTS: b""}, (WEIGHTS, "empty")),
        ({"config.json": b"{"}, ("config.json", "not valid JSON")),
        ({"config.json": b"[]"}, ("config.json", "not a JSON object")),
        ({"config.json": b'{"model_type": "gemma3", "model_type": "gemma2"}'}, ("model_type", "twice")),
    ):
        hub.add(NAME, {**files, **changed})
        assert_fails(gemwright("plan", NAME), 5, NAME, *words)
    shards = sharded(files, tmp_path / "shards")
    index = json.loads(shards["model.safetensors.index.json"])
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "model-00002-of-00003.safetensors"
    hub.add(NAME, {**shards, "model.safetensors.index.json": json.dumps(index).encode()})
    assert_fails(gemwright("plan", NAME), 5, "index.json", name)
    hub.add(NAME, {file: content for file, content in shards.items() if "00002" not in file})
    assert_fails(gemwright("plan", NAME), 5, "lists weights that are not there", "00002")


def test_a_gguf_file_of_the_hub_that_ends_in_its_keys_is_named(gemwright: CommandLine, hub: Hub, gguf: Path) -> None:
    end = min(tensor.begin for tensor in read_gguf_header(MappedFile(gguf))[1].values())
    for cut in (10, 100, end // 2, end - 1):
        hub.add(NAME, {gguf.name: gguf.read_bytes()[:cut]})
        assert_fails(gemwright("plan", NAME), 5, f"{NAME}/{gguf.name}")


def test_refused_families_are_refused_by_name_and_nothing_is_made_up(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], gguf: Path
) -> None:
    hub.add(NAME, replaced(files, model_type="gemma3n"))
    assert_fails(gemwright("plan", NAME), 3, "Gemma 3n", "google/gemma-4-E2B-it")
    hub.add(NAME, replaced(files, model_type="gemma9"))
    assert_fails(gemwright("plan", NAME), 3, f"{NAME}/config.json", "'gemma9'", "supported: ")
    assert hub.requests_for(WEIGHTS) == []
    content = gguf.read_bytes().replace(b"gemma3", b"gemma9", 1)
    hub.add(NAME, {gguf.name: content})
    assert_fails(gemwright("plan", NAME), 3, f"{NAME}/{gguf.name}", "gemma9")
    # A name that looks like one of Google's is none, where the hub does not tell of it.
    assert_fails(gemwright("plan", "google/gemma-9-31B-it", "--offline"), 5, "google/gemma-9-31B-it")
    gemma_3n = ("going by its name", "Gemma 3n", "google/gemma-3n-E2B-it", "google/gemma-4-E2B-it")
    assert_fails(gemwright("plan", "google/gemma-3n-E2B-it", "--offline"), 3, *gemma_3n)
    hub.add("google/gemma-3n-E2B-it", files, is_gated=True)
    assert_fails(gemwright("plan", "google/gemma-3n-E2B-it"), 3, *gemma_3n)
    assert_fails(gemwright("plan", "owner/embedding", "--offline"), 5, "owner/embedding")


def test_config_and_weights_of_two_models_are_refused(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, replaced(files, intermediate_size=64))
    assert_fails(gemwright("plan", NAME), 5, f"{NAME}/{WEIGHTS}", "wrong shape", "limit: [64, 40]")
    hub.add(NAME, replaced(files, num_hidden_layers=9))
    assert_fails(gemwright("plan", NAME), 5, NAME, "missing", "layers.8.")


def test_what_does_not_fit_exits_4(gemwright: CommandLine, hub: Hub, files: dict[str, bytes]) -> None:
    hub.add(NAME, files)
    found = gemwright("plan", NAME, *FLAGS, "--assert-fits", "1MiB")
    assert found.code == 4
    assert f"{NAME} does not fit" in found.stderr
    assert "remedy: " in found.stderr
