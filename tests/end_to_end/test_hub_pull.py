"""`gemwright pull` from a hub on this machine: what it brings, what it leaves, what it refuses before it costs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, snapshot_download, try_to_load_from_cache

from gemwright import LLM
from gemwright.errors import CheckpointError, show_bytes
from gemwright.loading.checkpoint import open_checkpoint
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors
from tests.end_to_end.command_line import CommandLine
from tests.end_to_end.conftest import TinyFolder
from tests.hub_server import Fault, Hub
from tests.tiny_gguf import write_tiny_gguf

NAME = "tiny/gemma"


def split(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the same checkpoint in two shards and an index."""
    content = files["model.safetensors"]
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__")
    names = list(header)
    found = {name: value for name, value in files.items() if name != "model.safetensors"}
    weight_map = {}
    for number, part in enumerate((names[:10], names[10:]), start=1):
        shard = f"model-{number:05d}-of-00002.safetensors"
        entries: dict[str, Any] = {}
        body = b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [len(body), len(body) + end - begin]}
            body += data[begin:end]
            weight_map[name] = shard
        text = json.dumps(entries).encode()
        found[shard] = len(text).to_bytes(8, "little") + text + body
    found["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return found


def tiny_gguf(folder: Path, name: str, encoding: str = "F32") -> bytes:
    """Return the bytes of a tiny GGUF model."""
    source = write_tiny_checkpoint("gemma3", folder / "source")
    spec = open_checkpoint(source).spec
    return write_tiny_gguf(folder / name, spec, random_tensors(spec, 0), encoding=encoding).read_bytes()


def asked_files(hub: Hub) -> set[str]:
    return {asked.path.rpartition("/")[2] for asked in hub.asked if "/resolve/" in asked.path}


def test_only_the_files_of_the_model_are_fetched_and_it_runs_as_the_folder_does(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], tiny_folder: TinyFolder
) -> None:
    others = (
        *("pytorch_model.bin", "model.pt", "consolidated.safetensors", "original/model.safetensors"),
        *("onnx/model.onnx", "flax_model.msgpack", "tokenizer.model", ".gitattributes"),
    )
    files |= {"generation_config.json": b'{"eos_token_id": [1, 5]}', "chat_template.jinja": b"{{ messages }}"}
    commit = hub.add(NAME, {**files, **dict.fromkeys(others, b"x" * 100), "README.md": b"---\nlicense: gemma\n---\n"})
    outcome = gemwright("pull", NAME)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stderr == ""
    assert outcome.stdout.count("\n") == 1
    folder = Path(outcome.stdout.strip().rpartition("; ")[2])
    assert {path.name for path in folder.iterdir()} == {*files, "README.md"}
    assert asked_files(hub) == {*files, "README.md"}
    assert folder.name == commit
    ran = gemwright("run", NAME, "hello", "--max-tokens", 8, "--ignore-eos", "--json").json()
    local = gemwright("run", tiny_folder("gemma3"), "hello", "--max-tokens", 8, "--ignore-eos", "--json").json()
    assert ran["token_ids"] == local["token_ids"]
    assert ran["model"] == NAME


def test_the_hubs_own_library_finds_what_was_pulled_and_the_other_way_round(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, files)
    pulled = gemwright("pull", NAME, "--json").json()
    assert snapshot_download(NAME, local_files_only=True) == pulled["path"]
    assert try_to_load_from_cache(NAME, "config.json") == f"{pulled['path']}/config.json"
    hub.add("tiny/other", files)
    path = snapshot_download("tiny/other")
    hub.asked.clear()
    assert gemwright("run", "tiny/other", "hello", "--max-tokens", 1).code == 0
    assert hub.asked == []
    assert gemwright("pull", "tiny/other", "--json").json()["path"] == path
    assert hub.requests_for("model.safetensors") == []


def test_the_summary_counts_files_bytes_and_what_was_there_already(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    commit = hub.add(NAME, files)
    first, second = gemwright("pull", NAME, "--json").json(), gemwright("pull", NAME, "--json").json()
    size = sum(map(len, files.values()))
    assert first["model"] == first["repository"] == NAME
    assert (first["commit"], first["revision"], first["format"]) == (commit, "main", "safetensors")
    assert set(first["files"]) == set(files)
    assert (first["total_bytes"], first["fetched_bytes"]) == (size, size)
    assert (second["total_bytes"], second["fetched_bytes"]) == (size, 0)
    assert hub.sent_bytes("model.safetensors") == len(files["model.safetensors"])
    assert "nothing new to fetch" in gemwright("pull", NAME).stdout


def test_shards_come_as_the_index_lists_them(gemwright: CommandLine, hub: Hub, files: dict[str, bytes]) -> None:
    shards = split(files)
    hub.add(NAME, {**shards, "model-00003-of-00003.safetensors": b"not in the index"})
    outcome = gemwright("run", NAME, "hello", "--max-tokens", 2, "--json")
    assert outcome.code == 0, outcome.stderr
    assert asked_files(hub) == set(shards)


def test_an_index_that_lists_what_is_not_there_exits_5(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    shards = split(files)
    del shards["model-00002-of-00002.safetensors"]
    hub.add(NAME, shards)
    outcome = gemwright("pull", NAME)
    assert outcome.code == 5
    assert "model-00002-of-00002.safetensors" in outcome.stderr


def test_a_model_whose_links_cannot_be_made_is_still_a_model(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, files)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    folder = Path(gemwright("pull", NAME, "--json").json()["path"])
    assert not any(path.is_symlink() for path in folder.iterdir())
    hub.asked.clear()
    assert gemwright("run", NAME, "hello", "--max-tokens", 1).code == 0
    assert hub.asked == []


# Revisions


def test_run_keeps_to_what_is_cached_and_pull_looks_for_what_is_new(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    old = hub.add(NAME, files)
    gemwright("pull", NAME)
    new_folder = write_tiny_checkpoint("gemma3", tmp_path / "new", seed=7)
    new = hub.add(NAME, new_folder)
    hub.asked.clear()
    before = gemwright("run", NAME, "hello", "--max-tokens", 8, "--json").json()["token_ids"]
    assert hub.asked == []
    assert gemwright("pull", NAME, "--json").json()["commit"] == new
    after = gemwright("run", NAME, "hello", "--max-tokens", 8, "--json").json()["token_ids"]
    assert after != before
    assert after == gemwright("run", new_folder, "hello", "--max-tokens", 8, "--json").json()["token_ids"]
    for revision in (old, old[:9]):
        ids = gemwright("run", f"{NAME}@{revision}", "hello", "--max-tokens", 8, "--json").json()["token_ids"]
        assert ids == before


def test_a_branch_or_tag_is_named_behind_an_at_sign_or_by_the_flag(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, {"README.md": b"the model is on a branch"})
    commit = hub.add(NAME, files, reference="v1.0")
    assert gemwright("pull", f"{NAME}@v1.0", "--json").json()["commit"] == commit
    assert gemwright("pull", NAME, "--revision", "v1.0", "--json").json()["commit"] == commit
    both = gemwright("pull", f"{NAME}@v1.0", "--revision", "v2")
    assert both.code == 2
    assert "two revisions" in both.stderr
    missing = gemwright("pull", f"{NAME}@v3")
    assert missing.code == 5
    assert "no such revision" in missing.stderr


def test_an_update_that_breaks_off_leaves_the_old_revision_in_use(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    hub.add(NAME, files)
    gemwright("pull", NAME)
    hub.add(NAME, write_tiny_checkpoint("gemma3", tmp_path / "new", seed=7))
    hub.always["model.safetensors"] = Fault(status=503)
    assert gemwright("pull", NAME).code == 5
    assert gemwright("run", NAME, "hello", "--max-tokens", 1, "--offline").code == 0


# GGUF


@pytest.fixture
def ggufs(tmp_path: Path) -> dict[str, bytes]:
    """Return a repository of GGUF files: three models, one of them in parts, and what is no model."""
    whole, small = tiny_gguf(tmp_path, "a.gguf"), tiny_gguf(tmp_path, "b.gguf", "Q8_0")
    return {
        "tiny-F32.gguf": whole,
        "tiny-Q8_0.gguf": small,
        "tiny.IQ2_XXS.gguf": whole,
        "mmproj-tiny-F16.gguf": b"GGUF the vision part",
        "imatrix.gguf": b"GGUF statistics",
        "README.md": b"---\nlicense: gemma\n---\n",
    }


def test_of_several_gguf_models_one_must_be_named(gemwright: CommandLine, hub: Hub, ggufs: dict[str, bytes]) -> None:
    hub.add(NAME, ggufs)
    outcome = gemwright("pull", NAME)
    assert outcome.code == 2
    assert "F32, Q8_0, IQ2_XXS" in outcome.stderr
    assert f"{NAME}:F32" in outcome.stderr
    wrong = gemwright("pull", f"{NAME}:Q3_K_S")
    assert wrong.code == 2
    assert "Q3_K_S" in wrong.stderr
    assert "Q8_0" in wrong.stderr


def test_a_quantization_brings_that_file_alone_and_then_needs_no_naming(
    gemwright: CommandLine, hub: Hub, ggufs: dict[str, bytes]
) -> None:
    hub.add(NAME, ggufs)
    pulled = gemwright("pull", f"{NAME}:q8_0", "--json").json()
    assert pulled["files"] == ["README.md", "tiny-Q8_0.gguf"]
    assert pulled["path"].endswith("/tiny-Q8_0.gguf")
    assert asked_files(hub) == {"README.md", "tiny-Q8_0.gguf"}
    hub.asked.clear()
    for name in (f"{NAME}:Q8_0", NAME, f"{NAME}:Q8_0@main"):
        outcome = gemwright("run", name, "--token-ids", "2,5", "--max-tokens", 2, "--json")
        assert outcome.code == 0, outcome.stderr
    assert hub.asked == []
    gemwright("pull", f"{NAME}:F32")
    unnamed = gemwright("run", NAME, "--token-ids", "2,5", "--max-tokens", 2)
    assert unnamed.code == 2
    assert "F32, Q8_0" in unnamed.stderr


def test_all_parts_of_a_split_model_come_from_their_folder(
    gemwright: CommandLine, hub: Hub, ggufs: dict[str, bytes]
) -> None:
    parts = {f"BF16/tiny-BF16-0000{number}-of-00002.gguf": ggufs["tiny-F32.gguf"] for number in (1, 2)}
    hub.add(NAME, {**ggufs, **parts})
    pulled = gemwright("pull", f"{NAME}:BF16", "--json").json()
    assert pulled["files"] == ["README.md", *parts]
    assert all((Path(pulled["path"]).parent / Path(part).name).exists() for part in parts)


def test_safetensors_are_meant_where_a_repository_holds_both(
    gemwright: CommandLine, hub: Hub, ggufs: dict[str, bytes], files: dict[str, bytes]
) -> None:
    hub.add(NAME, {**ggufs, **files})
    assert gemwright("pull", NAME, "--json").json()["format"] == "safetensors"
    assert gemwright("pull", f"{NAME}:Q8_0", "--json").json()["format"] == "gguf"


# Refused before weights are fetched


def config_with(files: dict[str, bytes], **changes: Any) -> bytes:
    return json.dumps({**json.loads(files["config.json"]), **changes}).encode()


def assert_refused_early(gemwright: CommandLine, hub: Hub, name: str, *words: str) -> None:
    for verb in (("pull", name), ("run", name, "hello")):
        outcome = gemwright(*verb)
        assert outcome.code == 3, outcome.stderr
        for word in words:
            assert word in outcome.stderr
        assert "remedy" in outcome.stderr
    assert hub.sent_bytes("model.safetensors") == 0
    assert not (Path(constants.HF_HUB_CACHE)).exists()


def test_a_model_that_cannot_be_run_is_refused_from_its_config(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, {**files, "config.json": config_with(files, model_type="gemma3n")})
    assert_refused_early(gemwright, hub, NAME, "Gemma 3n", f"{NAME}/config.json")
    hub.add(NAME, {**files, "config.json": config_with(files, quantization_config={"quant_method": "awq"})})
    assert_refused_early(gemwright, hub, NAME, "awq")


def test_an_unknown_config_key_is_refused_early_unless_allowed(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, {**files, "config.json": config_with(files, attention_flavour="new")})
    assert_refused_early(gemwright, hub, NAME, "attention_flavour")
    outcome = gemwright("run", NAME, "hello", "--max-tokens", 1, "--allow-unknown-config-keys")
    assert outcome.code == 0, outcome.stderr


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("config.json", "pytorch_model.bin", "tokenizer.json"), "pickled"),
        (("adapter_config.json", "adapter_model.safetensors"), "adapter"),
        (("README.md",), "no model"),
        (("onnx/model.onnx", "config.json"), "no model"),
    ],
)
def test_a_repository_in_another_format_is_refused(
    gemwright: CommandLine, hub: Hub, names: tuple[str, ...], word: str
) -> None:
    hub.add(NAME, dict.fromkeys(names, b"{}"))
    assert_refused_early(gemwright, hub, NAME, word)


def test_a_gguf_model_is_refused_from_the_first_bytes_of_its_file(
    gemwright: CommandLine, hub: Hub, ggufs: dict[str, bytes]
) -> None:
    hub.add(NAME, {"llama-Q8_0.gguf": ggufs["tiny-Q8_0.gguf"].replace(b"gemma3", b"llama3") + b"\0" * 50_000})
    assert_refused_early(gemwright, hub, NAME, "llama3")
    assert hub.sent_bytes("llama-Q8_0.gguf") < 40_000
    hub.add("tiny/iq", ggufs)
    assert_refused_early(gemwright, hub, "tiny/iq:IQ2_XXS", "IQ2_XXS", "Q4_0")


# Room on the disk


def test_a_disk_without_room_is_seen_before_anything_is_fetched(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, {**files, "model.safetensors": files["model.safetensors"]})
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    outcome = gemwright("pull", NAME)
    assert outcome.code == 4
    assert f"{show_bytes(100_000)} free" in outcome.stderr
    assert f"{show_bytes(sum(map(len, files.values())))} needed" in outcome.stderr
    assert "HF_HOME" in outcome.stderr
    assert hub.sent_bytes("model.safetensors") == 0


def test_what_is_there_already_needs_no_room(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, {**files, "generation_config.json": b"{}"})
    gemwright("pull", NAME)
    hub.add(NAME, {**files, "generation_config.json": b'{"top_k": 64}'})
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    outcome = gemwright("pull", NAME, "--json")
    assert outcome.code == 0, outcome.stderr
    assert outcome.json()["fetched_bytes"] == len(b'{"top_k": 64}')


def test_names_that_lead_out_of_the_cache_are_not_followed(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    hub.add(NAME, {**files, "../../../../evil.gguf": b"GGUF", "a/../../evil.safetensors": b"x"})
    assert gemwright("pull", NAME).code == 0
    assert not list(tmp_path.rglob("evil*"))


def test_pull_takes_names_of_the_hub_alone(gemwright: CommandLine, hub: Hub, tiny_folder: TinyFolder) -> None:
    outcome = gemwright("pull", tiny_folder("gemma3"))
    assert outcome.code == 2
    assert "path on this machine" in outcome.stderr
    assert gemwright("pull", "no such model").code == 5
    assert hub.asked == []


def test_llm_fetches_too_and_offline_it_does_not(hub: Hub, files: dict[str, bytes]) -> None:
    hub.add(NAME, files)
    with pytest.raises(CheckpointError, match="offline mode"):
        LLM(NAME, threads=1, offline=True)
    assert hub.asked == []
    assert LLM(NAME, threads=1, max_model_len=64).generate([[2, 5]])[0].token_ids
    assert LLM(NAME, threads=1, max_model_len=64, offline=True).model == NAME
