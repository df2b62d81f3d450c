"""`gemwright verify`: says yes to every tiny Gemma, and no to a model in which one weight is another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import gemwright.verify
from gemwright.cli import main
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors
from gemwright.verify import Reference, verify
from tests.end_to_end.command_line import CommandLine
from tests.parity.oracle import Oracle, logit_error
from tests.tiny_gguf import write_tiny_gguf

load_in_transformers = gemwright.verify._load_in_transformers


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


def change_reference(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], object]) -> None:
    """Let transformers load as always, and then change the model in its hands."""

    def load(path: Path, dtype: str) -> tuple[Any, dict[str, Any]]:
        model, loaded = load_in_transformers(path, dtype)
        with torch.no_grad():
            change(model.model)
        return model, loaded

    monkeypatch.setattr(gemwright.verify, "_load_in_transformers", load)


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_every_tiny_gemma_agrees_in_float32(command: CommandLine, tmp_path: Path, name: str) -> None:
    folder = write_tiny_checkpoint(name, tmp_path, seed=5)
    outcome = command("verify", folder, "--max-tokens", 16)
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    lines = outcome.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "sentence",
        "code",
        "CJK",
        "list",
        "past the window",
        "agrees",
    ]
    assert "80 of 80 tokens equal over 5 prompts" in lines[-1] or "near tie" in outcome.stdout


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gemma4-moe"])
def test_bfloat16_stays_within_the_references_own_difference(command: CommandLine, tmp_path: Path, name: str) -> None:
    folder = write_tiny_checkpoint(name, tmp_path, seed=5, dtype="bfloat16")
    found = command("verify", folder, "--max-tokens", 8, "--dtype", "auto", "--json").json()
    assert found["passed"]
    assert found["dtype"] == "bfloat16"
    assert 0 < found["rms"] <= 1.5 * found["reference_rms"]


def test_one_weight_that_differs_is_found(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path, seed=5)
    change_reference(monkeypatch, lambda model: model.layers[3].mlp.down_proj.weight[7, 9].add_(0.5))
    outcome = command("verify", folder, "--max-tokens", 4)
    assert outcome.code == 1
    assert outcome.stdout.splitlines()[-1].startswith("DIFFERS")
    assert "first difference beyond the tolerance, after position 0" in outcome.stdout


def test_in_bfloat16_a_layer_that_differs_is_found(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path, seed=5, dtype="bfloat16")
    change_reference(
        monkeypatch,
        lambda model: model.layers[3].mlp.down_proj.weight.copy_(model.layers[3].mlp.down_proj.weight.roll(1, 0)),
    )
    outcome = command("verify", folder, "--max-tokens", 4, "--dtype", "bfloat16")
    assert outcome.code == 1
    assert "DIFFERS" in outcome.stdout


def test_the_first_difference_is_shown_with_both_tokens_and_both_logits_of_both(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a checkpoint of another seed; each side's logits are those of an oracle that reads its own."""
    ours, other = (write_tiny_checkpoint("gemma3", tmp_path / str(seed), seed=seed) for seed in (1, 2))
    monkeypatch.setattr(
        gemwright.verify, "_load_in_transformers", lambda path, dtype: load_in_transformers(other, dtype)
    )
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "seven", "prompt_token_ids": [2, 40, 300, 17, 222, 90, 411]}\n')
    words = ("verify", ours, "--prompts", prompts, "--max-tokens", 4)
    (result,) = command(*words, "--json").json()["prompts"]
    difference = result["difference"]
    assert (result["name"], result["num_prompt_tokens"], difference["position"]) == ("seven", 7, 0)
    ids = [2, 40, 300, 17, 222, 90, 411]
    rows = [Oracle(path).logits(ids)[0] for path in (ours, other)]
    tokens = [int(row.argmax()) for row in rows]
    assert [difference["our_token"], difference["reference_token"]] == tokens
    assert difference["our_logits"] == pytest.approx(rows[0][tokens].tolist(), abs=1e-4)
    assert difference["reference_logits"] == pytest.approx(rows[1][tokens].tolist(), abs=1e-4)
    assert difference["error"] == pytest.approx(logit_error(rows[0][None], rows[1][None]), rel=1e-3)
    shown = command(*words).stdout
    for token, logits in zip(tokens, zip(*rows, strict=True), strict=False):
        assert re.search(rf"token {token}, our logit \S+, transformers' \S+$", shown, re.MULTILINE), logits


def test_ids_do_where_there_is_no_tokenizer(command: CommandLine, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma4-e", tmp_path)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    outcome = command("verify", folder, "--max-tokens", 4)
    assert outcome.code == 0
    assert "40 ids: 40 tokens of prompt" in outcome.stdout


def test_prompts_that_begin_alike_do_not_meet_in_the_cache(tmp_path: Path) -> None:
    """The third prompt's logits lie where the engine left the second one's keys; the fourth begins like the second."""
    folder = write_tiny_checkpoint("gemma3", tmp_path)
    first, second, third = (np.random.default_rng(seed).integers(108, 360, 70 * seed).tolist() for seed in (1, 2, 3))
    prompts = [("first", first), ("second", second), ("third", third), ("fourth", [*second, 108])]
    assert verify(str(folder), prompts=prompts, max_tokens=8, threads=1).passed


def test_placeholders_of_media_end_the_comparison(tmp_path: Path) -> None:
    """transformers' Gemma 4 replaces their embeddings even where no media came; a text model never means them."""
    text = {key: value for key, value in TINY_CONFIGS["gemma4-k-equals-v"].items() if key != "architectures"}
    vision = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"num_key_value_heads": 2, "head_dim": 12, "position_embedding_size": 32}
    torch.manual_seed(1)
    config = transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=None, image_token_id=258)
    transformers.Gemma4ForConditionalGeneration(config).save_pretrained(tmp_path)
    reference = Reference(tmp_path, "float32")
    assert reference.placeholder_ids >= {258}
    ids = [2, 40, 300]
    token = reference.greedy_tokens(ids, 3)[1]
    reference.placeholder_ids |= {token}
    assert reference.greedy_tokens(ids, 3)[-1] == token
    report = verify(str(tmp_path), max_tokens=4, threads=1)
    assert report.passed
    with pytest.raises(gemwright.verify.RequestError, match="placeholder"):
        verify(str(tmp_path), prompts=[("picture", [2, 258, 300])], max_tokens=4, threads=1)


def test_a_file_that_transformers_cannot_load_is_said_to_be_so(command: CommandLine, tmp_path: Path) -> None:
    spec = read_config(TINY_CONFIGS["gemma4-e"])
    path = write_tiny_gguf(tmp_path / "tiny.gguf", spec, random_tensors(spec, 0))
    outcome = command("verify", path)
    assert outcome.code == 3
    assert "transformers cannot load this model" in outcome.stderr
    assert outcome.stdout == ""


def test_tensors_that_transformers_did_not_find_make_it_no_reference(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path)
    monkeypatch.setattr(
        gemwright.verify,
        "_load_in_transformers",
        lambda path, dtype: (None, {"missing_keys": {"model.norm.weight"}, "mismatched_keys": set()}),
    )
    outcome = command("verify", folder)
    assert outcome.code == 3
    assert "model.norm.weight" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--max-tokens", "0"], "max_tokens"),
        (["--max-tokens", "4096"], "no built-in prompt"),
        (["--prompts", "PROMPTS", "--max-tokens", "4096"], "too long"),
        (["--model", "b"], "two models"),
    ],
)
def test_bad_usage_exits_2(command: CommandLine, tmp_path: Path, words: list[str], named: str) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path / "model")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\n")
    outcome = command("verify", folder, *(prompts if word == "PROMPTS" else word for word in words))
    assert outcome.code == 2, outcome.stderr
    assert named in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_default_model_agrees_on_all_built_in_prompts(capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    code = main(["verify", "--dtype", dtype, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["passed"]) == (0, True)
    assert found["prompts"][-1]["num_prompt_tokens"] == 512 + 48
    assert np.isfinite(found["rms"])
