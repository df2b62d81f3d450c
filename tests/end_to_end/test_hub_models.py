"""`gemwright list`, `show` and `rm`, and running a model of the hub from the cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from gemwright.loading.checkpoint import open_checkpoint
from gemwright.spec.weights import list_tensors
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors
from tests.end_to_end.command_line import CommandLine, child_environment
from tests.end_to_end.conftest import TinyFolder
from tests.hub_server import Fault, Hub, hub_variables
from tests.tiny_gguf import write_tiny_gguf

NAME = "tiny/gemma"
WEIGHTS = "model.safetensors"


@pytest.fixture
def ggufs(tmp_path: Path) -> dict[str, bytes]:
    """Return two GGUF models."""
    spec = open_checkpoint(write_tiny_checkpoint("gemma3", tmp_path / "source")).spec
    values = random_tensors(spec, 0)
    return {
        f"tiny-{encoding}.gguf": write_tiny_gguf(tmp_path / "m.gguf", spec, values, encoding=encoding).read_bytes()
        for encoding in ("F32", "Q8_0")
    }


def listed(gemwright: CommandLine, *flags: str) -> dict[str, dict[str, Any]]:
    """Return the models of `gemwright list` by name and revision."""
    models = gemwright("list", "--json", *flags).json()["models"]
    return {f"{model['model']}@{model['revision']}": model for model in models}


# Running


def test_a_whole_model_in_the_cache_is_run_without_a_request(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, files)
    fetched = gemwright("run", NAME, "hello", "--max-tokens", 4, "--json").json()
    hub.asked.clear()
    for flags in ((), ("--offline",)):
        again = gemwright("run", NAME, "hello", "--max-tokens", 4, "--json", *flags).json()
        assert again["token_ids"] == fetched["token_ids"]
    assert hub.asked == []


def test_what_is_missing_is_fetched_or_named_offline(gemwright: CommandLine, hub: Hub, files: dict[str, bytes]) -> None:
    hub.add(NAME, files)
    absent = gemwright("run", NAME, "hello", "--offline")
    assert absent.code == 5
    assert f"gemwright pull {NAME}" in absent.stderr
    assert hub.asked == []
    hub.always[WEIGHTS] = Fault(cut_after=1000)
    assert gemwright("run", NAME, "hello").code == 5
    hub.always.clear()
    partial = gemwright("run", NAME, "hello", "--offline")
    assert partial.code == 5
    assert f"lacks {WEIGHTS}" in partial.stderr
    assert gemwright("run", NAME, "hello", "--max-tokens", 1).code == 0
    assert gemwright("run", NAME, "hello", "--max-tokens", 1, "--offline").code == 0


def test_a_snapshot_that_was_begun_is_completed_though_its_branch_moved_on(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    first = hub.add(NAME, files)
    hub.always[WEIGHTS] = Fault(cut_after=1000)
    gemwright("pull", NAME)
    hub.always.clear()
    hub.add(NAME, write_tiny_checkpoint("gemma3", tmp_path / "new", seed=7))
    assert gemwright("run", NAME, "hello", "--max-tokens", 1).code == 0
    assert listed(gemwright)[f"{NAME}@main"]["commit"] == first


def test_a_snapshot_of_other_programs_without_a_listing_is_completed_once(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    hub.add(NAME, files)
    folder = Path(gemwright("pull", NAME, "--json").json()["path"])
    (listing,) = (folder.parents[1] / "trees").iterdir()
    listing.unlink()
    (folder / "tokenizer.json").unlink()
    hub.asked.clear()
    assert gemwright("run", NAME, "--token-ids", "2,5", "--max-tokens", 1, "--offline").code == 0
    assert gemwright("run", NAME, "hello", "--max-tokens", 1).code == 0
    assert hub.requests_for(WEIGHTS) == []
    hub.asked.clear()
    assert gemwright("run", NAME, "hello", "--max-tokens", 1).code == 0
    assert hub.asked == []


def test_files_that_change_no_answer_are_not_missed(gemwright: CommandLine, hub: Hub, files: dict[str, bytes]) -> None:
    unread = {"README.md": b"the card", "special_tokens_map.json": b"{}"}
    hub.add(NAME, {**files, **unread, "generation_config.json": b"{}"})
    folder = Path(gemwright("pull", NAME, "--json").json()["path"])
    for name in unread:
        (folder / name).unlink()
    assert gemwright("run", NAME, "hello", "--max-tokens", 1, "--offline").code == 0
    (folder / "generation_config.json").unlink()
    outcome = gemwright("run", NAME, "hello", "--max-tokens", 1, "--offline")
    assert outcome.code == 5
    assert "lacks generation_config.json" in outcome.stderr


def test_batch_takes_a_model_of_the_hub(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    hub.add(NAME, files)
    (tmp_path / "in.jsonl").write_text('{"id": "a", "prompt": "hello", "max_tokens": 2}\n')
    refused = gemwright("batch", NAME, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--offline")
    assert refused.code == 5
    done = gemwright("batch", NAME, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert done.code == 0, done.stderr


# list


def test_list_tells_ready_models_from_those_that_lack_something(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], ggufs: dict[str, bytes]
) -> None:
    commit = hub.add(NAME, files)
    hub.add("tiny/gguf", ggufs)
    hub.add("tiny/begun", files)
    gemwright("pull", NAME)
    gemwright("pull", "tiny/gguf:Q8_0")
    hub.always[WEIGHTS] = Fault(cut_after=1000)
    gemwright("pull", "tiny/begun")
    models = listed(gemwright)
    assert set(models) == {f"{NAME}@main", "tiny/gguf:Q8_0@main", "tiny/begun@main"}
    ready, gguf, begun = models[f"{NAME}@main"], models["tiny/gguf:Q8_0@main"], models["tiny/begun@main"]
    assert (ready["format"], ready["family"], ready["commit"]) == ("safetensors", "gemma3", commit)
    assert ready["size_bytes"] == sum(map(len, files.values()))
    assert ready["last_used"] is not None
    assert (ready["complete"], gguf["complete"], begun["complete"]) == (True, True, False)
    assert (gguf["format"], gguf["family"]) == ("gguf", "gemma3")
    assert gguf["size_bytes"] == len(ggufs["tiny-Q8_0.gguf"])
    assert begun["missing"] == [WEIGHTS]
    text = gemwright("ls").stdout
    assert f"incomplete: lacks {WEIGHTS}" in text
    assert "ready" in text
    for model in models.values():
        code = gemwright("run", model["path"], "--token-ids", "2", "--max-tokens", 1).code
        assert code == (0 if model["complete"] else 5)


def test_every_name_that_list_prints_can_be_run(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], ggufs: dict[str, bytes], tmp_path: Path
) -> None:
    hub.add(NAME, files)
    hub.add("tiny/gguf", ggufs)
    for name in (NAME, "tiny/gguf:Q8_0", "tiny/gguf:F32"):
        gemwright("pull", name)
    hub.add(NAME, write_tiny_checkpoint("gemma3", tmp_path / "new", seed=7))
    gemwright("pull", NAME)
    rows = [line.split() for line in gemwright("list").stdout.splitlines() if line.startswith("tiny/")]
    assert len(rows) == 4
    for model, revision, *_ in rows:
        words = ("--token-ids", "2", "--max-tokens", 1, "--offline")
        assert gemwright("run", f"{model}@{revision}", *words).code == 0


def test_list_counts_what_it_does_not_run_and_shows_it_when_asked(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    llama = json.dumps({**json.loads(files["config.json"]), "model_type": "llama"}).encode()
    folder = Path(constants.HF_HUB_CACHE)
    (folder / "datasets--some--data" / "snapshots").mkdir(parents=True)
    snapshot = folder / "models--some--llama" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(llama)
    (snapshot / WEIGHTS).write_bytes(files[WEIGHTS])
    outcome = gemwright("list", "--json").json()
    assert (outcome["models"], outcome["num_others"]) == ([], 2)
    assert outcome["cache"] == str(folder)
    assert "2 more" in gemwright("list").stdout
    (shown,) = listed(gemwright, "--all").values()
    assert "llama" in shown["refused"] or "model type" in shown["refused"]
    assert "some/llama" in gemwright("list", "--all").stdout


def test_list_of_no_cache_says_how_to_get_a_model(gemwright: CommandLine, hub: Hub) -> None:
    outcome = gemwright("list")
    assert outcome.code == 0
    assert "gemwright pull" in outcome.stdout
    default = gemwright("list", "--json").json()["default_model"]
    assert default["size_bytes"] == 253_113_024


def test_list_and_show_import_no_torch_and_ask_nobody(hub: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    hub.add(NAME, files)
    program = """
import sys
from gemwright.cli import main
codes = [main(["pull", "tiny/gemma"]), main(["list"]), main(["show", "tiny/gemma"])]
assert codes == [0, 0, 0], codes
assert not {"torch", "transformers"} & sys.modules.keys()
"""
    environment = child_environment() | hub_variables(hub, tmp_path / "home")
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
    asked = len(hub.asked)
    program = 'from gemwright.cli import main\nassert main(["show", "tiny/gemma"]) == main(["list"]) == 0'
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
    assert len(hub.asked) == asked


# show


def test_show_tells_the_same_before_and_after_pull_and_fetches_no_weights(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], tiny_folder: TinyFolder
) -> None:
    generation = b'{"do_sample": true, "temperature": 1.0, "top_k": 64, "eos_token_id": [1, 7]}'
    template = {"chat_template.jinja": b"{{ messages }}", "generation_config.json": generation}
    commit = hub.add(NAME, {**files, **template, "README.md": b"---\nlicense: gemma\n---\n"}, license="gemma")
    remote = gemwright("show", NAME, "--json").json()
    assert hub.sent_bytes(WEIGHTS) == 0
    assert not Path(constants.HF_HUB_CACHE).exists()
    gemwright("pull", NAME)
    hub.asked.clear()
    local = gemwright("show", NAME, "--json").json()
    assert hub.asked == []
    assert remote["path"] is None
    assert local["path"] is not None
    assert {**remote, "path": 0} == {**local, "path": 0, "files": remote["files"]}
    assert {"name": WEIGHTS, "bytes": len(files[WEIGHTS])} in local["files"]
    spec = open_checkpoint(tiny_folder("gemma3")).spec
    assert local["num_language_parameters"] == sum(tensor.num_elements for tensor in list_tensors(spec))
    assert local["layers"] == {"total": 8, "sliding": 7, "full": 1, "sharing_kv": 0, "window": 16}
    assert local["weights_bytes"] == len(files[WEIGHTS])
    assert (local["commit"], local["license"], local["family"]) == (commit, "gemma", "gemma3")
    assert local["stop_token_ids"] == [1, 7]
    assert local["sampling"] == {"temperature": 1.0, "top_k": 64}
    assert (local["tokenizer"], local["chat_template"]) == (True, True)
    full = next(layer for layer in spec.layers if layer.window is None)
    assert local["kv"]["bytes_per_token_full"] == 2 * full.num_kv_heads * full.head_dim * 4


def test_show_describes_folders_and_gguf_files(
    gemwright: CommandLine, hub: Hub, ggufs: dict[str, bytes], tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    folder = gemwright("show", tiny_folder("gemma4-e"), "--json").json()
    assert (folder["family"], folder["chat_template"], folder["license"]) == ("gemma4", False, None)
    (tmp_path / "one.gguf").write_bytes(ggufs["tiny-Q8_0.gguf"])
    gguf = gemwright("show", tmp_path / "one.gguf", "--json").json()
    assert (gguf["format"], gguf["family"], gguf["tokenizer"]) == ("gguf", "gemma3", False)
    assert "q8_0" in gguf["dtype"]
    assert gguf["kv"]["dtype"] == "bfloat16"
    assert gemwright("show", tmp_path / "none.gguf").code == 5


def test_show_of_a_gguf_model_at_the_hub_tells_what_its_listing_tells(
    gemwright: CommandLine, hub: Hub, ggufs: dict[str, bytes]
) -> None:
    hub.add(NAME, ggufs)
    found = gemwright("show", f"{NAME}:Q8_0", "--json").json()
    assert found["weights_bytes"] == len(ggufs["tiny-Q8_0.gguf"])
    assert found["layers"] is None
    assert gemwright("show", f"{NAME}:Q8_0").code == 0
    assert gemwright("show", NAME).code == 2


def test_show_offline_names_what_is_missing(gemwright: CommandLine, hub: Hub, files: dict[str, bytes]) -> None:
    hub.add(NAME, files)
    outcome = gemwright("show", NAME, "--offline")
    assert outcome.code == 5
    assert "offline" in outcome.stderr
    assert hub.asked == []


# rm


def test_rm_frees_what_it_says(gemwright: CommandLine, hub: Hub, files: dict[str, bytes]) -> None:
    hub.add(NAME, files)
    hub.add("tiny/other", files)
    gemwright("pull", NAME)
    gemwright("pull", "tiny/other")
    outcome = gemwright("rm", NAME, "--yes", "--json").json()
    assert outcome["freed_bytes"] >= sum(map(len, files.values()))
    assert not [path for path in Path(constants.HF_HUB_CACHE).rglob("*") if "tiny--gemma" in path.name]
    assert set(listed(gemwright)) == {"tiny/other@main"}
    assert gemwright("run", "tiny/other", "hello", "--max-tokens", 1, "--offline").code == 0
    again = gemwright("rm", NAME, "--yes")
    assert again.code == 5
    assert "gemwright list" in again.stderr


def test_rm_of_one_revision_keeps_what_the_other_needs(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes]
) -> None:
    old = hub.add(NAME, files)
    gemwright("pull", NAME)
    hub.add(NAME, {**files, "generation_config.json": b'{"top_k": 5}'})
    gemwright("pull", NAME)
    outcome = gemwright("rm", f"{NAME}@{old[:8]}", "-y", "--json").json()
    assert outcome["freed_bytes"] < len(files[WEIGHTS])
    assert gemwright("run", NAME, "hello", "--max-tokens", 1, "--offline").code == 0
    assert gemwright("rm", f"{NAME}@{old}", "-y").code == 5


def test_rm_of_one_gguf_model_keeps_the_other(gemwright: CommandLine, hub: Hub, ggufs: dict[str, bytes]) -> None:
    hub.add(NAME, {**ggufs, "README.md": b"the card"})
    for label in ("F32", "Q8_0"):
        gemwright("pull", f"{NAME}:{label}")
    assert gemwright("rm", f"{NAME}:Q5_0", "-y").code == 2
    freed = gemwright("rm", f"{NAME}:F32", "-y", "--json").json()["freed_bytes"]
    assert freed == len(ggufs["tiny-F32.gguf"])
    assert set(listed(gemwright)) == {f"{NAME}:Q8_0@main"}
    assert gemwright("run", NAME, "--token-ids", "2", "--max-tokens", 1, "--offline").code == 0
    gemwright("rm", f"{NAME}:Q8_0", "-y")
    assert listed(gemwright) == {}
    assert not (Path(constants.HF_HUB_CACHE) / "models--tiny--gemma").exists()


def test_rm_takes_away_what_a_broken_pull_left(gemwright: CommandLine, hub: Hub, files: dict[str, bytes]) -> None:
    hub.add(NAME, files)
    hub.always[WEIGHTS] = Fault(cut_after=100_000)
    gemwright("pull", NAME)
    outcome = gemwright("rm", NAME, "-y", "--json").json()
    assert outcome["freed_bytes"] >= 100_000
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))


def test_rm_asks_and_without_a_terminal_takes_a_flag(
    gemwright: CommandLine, hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, files)
    gemwright("pull", NAME)
    refused = gemwright("rm", NAME)
    assert refused.code == 2
    assert "--yes" in refused.stderr
    assert "KiB" in refused.stderr
    with monkeypatch.context() as closed:
        closed.setattr("sys.stdin", None)
        assert gemwright("rm", NAME).code == 2
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, code in ((False, 1), (True, 0)):
        monkeypatch.setattr("click.confirm", lambda question, err, answer=answer: answer)
        assert gemwright("rm", NAME).code == code
        assert bool(listed(gemwright)) is not answer


def test_rm_that_may_not_delete_says_so_once(
    gemwright: CommandLine,
    hub: Hub,
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub.add(NAME, files)
    gemwright("pull", NAME)

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    refused = gemwright("rm", NAME, "--yes")
    assert refused.code == 5
    assert "cannot be deleted" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not caplog.records


def test_rm_never_touches_a_path(gemwright: CommandLine, hub: Hub, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    for path in (tiny_folder("gemma3"), tmp_path / "mine.gguf"):
        outcome = gemwright("rm", path, "--yes")
        assert outcome.code == 2
        assert "hub cache only" in outcome.stderr
        assert path.exists()
