"""Bad input to `gemwright run`: the exit code, one short block on stderr that names the thing, nothing on stdout."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemwright.cli.interrupts import hold_interrupts
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors, write_safetensors
from tests.end_to_end.command_line import CHILD, CommandLine, Outcome, child_environment
from tests.end_to_end.conftest import TinyFolder
from tests.published_configs import load_config
from tests.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def folder(tiny_folder: TinyFolder) -> Path:
    return tiny_folder("gemma3")


def assert_refused(outcome: Outcome, code: int, *words: str) -> None:
    assert outcome.code == code, outcome.stderr
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    assert 1 <= len(outcome.stderr.strip().splitlines()) <= 5
    for word in words:
        assert word in outcome.stderr


# What is asked. FOLDER stands for a tiny checkpoint.
USAGE: list[tuple[list[Any], str]] = [
    (["FOLDER", ""], "the prompt is empty"),
    (["FOLDER", "--prompt", ""], "the prompt is empty"),
    (["FOLDER", "--token-ids", ""], "--token-ids"),
    (["FOLDER", "--token-ids", "2,x"], "no list of token ids"),
    (["FOLDER", "--token-ids", "2,515"], "515"),
    (["FOLDER", "--token-ids=-1"], "-1"),
    (["FOLDER"], "no prompt"),
    ([], "no prompt"),
    (["FOLDER", "a", "b"], "too many words"),
    (["FOLDER", "a", "--prompt", "b"], "two prompts"),
    (["FOLDER", "a", "--model", "FOLDER"], "two models"),
    (["FOLDER", "far too long", "--max-model-len", "12"], "13 tokens"),
    (["FOLDER", "a", "--max-model-len", "5000"], "beyond the model's context"),
    (["FOLDER", "a", "--stop-token-ids", "515"], "stop_token_ids"),
    (["FOLDER", "a", "--stop", ""], "stop"),
    (["FOLDER", "a", "--max-tokens", "0"], "max_tokens"),
    (["FOLDER", "a", "--max-tokens", "many"], "many"),
    (["FOLDER", "a", "--temperature", "-1"], "temperature"),
    (["FOLDER", "a", "--temperature", "nan"], "temperature"),
    (["FOLDER", "a", "--top-p", "0", "--temperature", "1"], "top_p"),
    (["FOLDER", "a", "--top-k", "5"], "no effect at temperature 0"),
    (["FOLDER", "a", "--n", "0"], "n"),
    (["FOLDER", "a", "--threads", "0"], "threads"),
    (["FOLDER", "a", "--kv-cache-memory-bytes", "1GB"], "1GB"),
    (["FOLDER", "a", "--revision", "main"], "a local path has no revisions"),
    (["a prompt", "--revision", "main"], "the default model has one revision"),
    (["a", "--max-token", "3"], "--max-token"),
]


@pytest.mark.parametrize(
    ("words", "named"), USAGE, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_usage_exits_2(gemwright: CommandLine, folder: Path, words: list[str], named: str) -> None:
    outcome = gemwright("run", *(folder if word == "FOLDER" else word for word in words), "--json")
    assert_refused(outcome, 2, named)


@pytest.mark.parametrize("flag", ["--logprobs", "--prompt-logprobs"])
def test_logprobs_that_nobody_would_see_exit_2(gemwright: CommandLine, folder: Path, flag: str) -> None:
    assert_refused(gemwright("run", folder, "a", flag, 0), 2, flag, "add --json")


@pytest.mark.parametrize("flag", ["--draft", "--kv-cache-dtype", "--quantization"])
def test_a_flag_whose_feature_is_not_there_is_unknown(gemwright: CommandLine, folder: Path, flag: str) -> None:
    assert_refused(gemwright("run", folder, "a", flag), 2, "No such option", flag)


def test_an_unknown_verb_exits_2_and_none_shows_the_help(gemwright: CommandLine) -> None:
    assert_refused(gemwright("fly"), 2, "fly")
    outcome = gemwright()
    assert outcome.code == 2
    assert "Commands:" in outcome.stderr
    assert gemwright("run", "--help").code == gemwright("--help").code == gemwright("--version").code == 0


def test_stdin_that_is_empty_or_no_text_exits_2(
    gemwright: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content, word in ((b"", "empty"), (b"abc\xff", "0xff at 3")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert_refused(gemwright("run", folder, "-"), 2, word)


def test_text_without_a_tokenizer_exits_2(gemwright: CommandLine, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert_refused(gemwright("run", folder, "a"), 2, "no tokenizer", "--token-ids")
    assert_refused(gemwright("run", folder, "--token-ids", "5", "--stop", "a"), 2, "stop strings")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--dtype", "float16"], "float16"),
        (["--dtype", "int8"], "int8"),
        (["--device", "tpu"], "tpu"),
        (["--device", "cuda:x"], "cuda:x"),
        (["--kernels", "native"], "native"),
        (["--block-size", "24"], "24"),
        (["--kv-layout", "k"], "kv_layout"),
    ],
)
def test_an_option_that_is_not_supported_exits_3(
    gemwright: CommandLine, folder: Path, words: list[str], named: str
) -> None:
    assert_refused(gemwright("run", folder, "a", *words), 3, named)


def test_cuda_without_a_gpu_exits_3(gemwright: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert_refused(gemwright("run", folder, "a", "--device", "cuda"), 3, "cuda")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "gemma", "architectures": ["GemmaForCausalLM"]}, "Gemma 1"),
        (load_config("gemma-3n-E2B-it"), "Gemma 3n"),
        ({**TINY_CONFIGS["gemma3"], "use_bidirectional_attention": True}, "EmbeddingGemma"),
        ({"model_type": "paligemma"}, "PaliGemma"),
        ({"model_type": "t5gemma"}, "T5Gemma"),
        ({"model_type": "diffusion_gemma"}, "DiffusionGemma"),
        ({"model_type": "llama"}, "llama"),
        ({**TINY_CONFIGS["gemma4-e"], "use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({**TINY_CONFIGS["gemma3"], "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({**TINY_CONFIGS["gemma3"], "hidden_activation": "relu"}, "hidden_activation"),
        ({**TINY_CONFIGS["gemma2"], "attn_logit_softcapping": -50.0}, "attn_logit_softcapping"),
        ({**TINY_CONFIGS["gemma3"], "sliding_window": None}, "sliding_window"),
        ({**TINY_CONFIGS["gemma3"], "sliding_window": 0}, "sliding_window"),
        ({**TINY_CONFIGS["gemma3"], "sliding_window": -8}, "sliding_window"),
        ({**TINY_CONFIGS["gemma3"], "new_trick": 1}, "new_trick"),
        ({**TINY_CONFIGS["gemma3"], "quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_is_not_supported_exits_3_by_name(
    gemwright: CommandLine, folder: Path, tmp_path: Path, config: dict[str, Any], name: str
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_refused(gemwright("run", tmp_path, "a"), 3, name, "config.json")


def test_a_drafter_exits_3(gemwright: CommandLine, tmp_path: Path) -> None:
    config = load_config("gemma-4-E2B-it-assistant") | {"backbone_hidden_size": 48, "use_ordered_embeddings": False}
    config["text_config"] |= {
        **{"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 8},
        **{"global_head_dim": 16, "vocab_size": 515, "vocab_size_per_layer_input": 515},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    values = random_tensors(read_config(config), seed=0)
    write_safetensors(
        tmp_path / "model.safetensors",
        {("" if tensor.at_root else "model.") + tensor.safetensors: array for tensor, array in values.items()},
    )
    assert_refused(gemwright("run", tmp_path, "--token-ids", "5"), 3, "drafter")
    (tmp_path / "model.safetensors").unlink()
    assert_refused(gemwright("run", tmp_path, "--token-ids", "5"), 3, "drafter")


def test_an_unknown_key_passes_when_allowed(gemwright: CommandLine, tmp_path: Path) -> None:
    write_tiny_checkpoint("gemma3", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TINY_CONFIGS["gemma3"], "new_trick": 1}))
    assert gemwright("run", tmp_path, "a", "--max-tokens", 1, "--allow-unknown-config-keys").code == 0


def test_pickled_weights_are_not_opened(gemwright: CommandLine, tmp_path: Path) -> None:
    write_tiny_checkpoint("gemma3", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert_refused(gemwright("run", tmp_path, "a"), 3, "pytorch_model.bin", "safetensors")
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "pytorch_model.bin.index.json")
    assert_refused(gemwright("run", tmp_path, "a"), 3, "pytorch_model.bin.index.json", "safetensors")


def test_an_adapter_without_its_model_is_refused_as_one(gemwright: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert_refused(gemwright("run", tmp_path, "a"), 3, "is an adapter to a model", "merge")


def test_what_does_not_fit_exits_4(gemwright: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", folder, "a", "--max-model-len", 64)
    assert_refused(gemwright(*words, "--kv-cache-memory-bytes", "1KiB"), 4, "1.0 KiB allowed")
    monkeypatch.setattr("gemwright.engine.start.free_memory_bytes", lambda: 400_000)
    assert_refused(gemwright(*words), 4, "390.6 KiB free")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lie_about_the_header(path: Path) -> None:
    path.write_bytes((1 << 62).to_bytes(8, "little") + path.read_bytes()[8:])


def index(folder: Path, shard: str) -> None:
    """Write an index that puts one tensor into another shard."""
    size = int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    names = [name for name in json.loads((folder / "model.safetensors").read_bytes()[8 : 8 + size]) if name[0] != "_"]
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    places = dict.fromkeys(names, "model-00001-of-00002.safetensors") | {names[3]: shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("truncated", lambda folder: truncate(folder / "model.safetensors"), "model.safetensors"),
    ("lying header", lambda folder: lie_about_the_header(folder / "model.safetensors"), "model.safetensors"),
    ("no weights", lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
    ("missing shard", lambda folder: index(folder, "model-00002-of-00002.safetensors"), "model-00002-of-00002"),
    ("path traversal", lambda folder: index(folder, "../other/model.safetensors"), "../other/model.safetensors"),
    ("no config", lambda folder: (folder / "config.json").unlink(), "config.json"),
    ("config is no JSON", lambda folder: truncate(folder / "config.json"), "config.json"),
    (
        "other vocabulary",
        lambda folder: (folder / "config.json").write_text(json.dumps({**TINY_CONFIGS["gemma3"], "vocab_size": 600})),
        "600",
    ),
    ("tokenizer is no JSON", lambda folder: truncate(folder / "tokenizer.json"), "tokenizer.json"),
]


@pytest.mark.parametrize(("damage", "named"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES])
def test_a_missing_or_damaged_file_exits_5(
    gemwright: CommandLine, tmp_path: Path, damage: Callable[[Path], object], named: str
) -> None:
    damage(write_tiny_checkpoint("gemma3", tmp_path))
    assert_refused(gemwright("run", tmp_path, "a"), 5, named)


@pytest.mark.parametrize("damage", [truncate, lie_about_the_header, lambda path: path.write_bytes(b"GGUF")])
def test_a_damaged_gguf_file_exits_5(gemwright: CommandLine, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    spec = read_config(TINY_CONFIGS["gemma3"])
    path = write_tiny_gguf(tmp_path / "tiny.gguf", spec, random_tensors(spec, 0))
    assert gemwright("run", path, "--token-ids", "5", "--max-tokens", 1).code == 0
    damage(path)
    assert_refused(gemwright("run", path, "--token-ids", "5"), 5, "tiny.gguf")


def test_a_model_that_is_not_there_exits_5(gemwright: CommandLine) -> None:
    assert_refused(
        gemwright("run", "--offline", "nowhere/gemma-3-1b-it", "a"), 5, "nowhere/gemma-3-1b-it", "gemwright pull"
    )
    assert_refused(gemwright("run", "nowhere.gguf", "a"), 5, "nowhere.gguf")
    assert_refused(gemwright("run", "no such model", "a"), 5, "no such model")


def test_an_unforeseen_error_exits_1_and_debug_shows_where(
    gemwright: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("by zero\nand more")

    monkeypatch.setattr("gemwright.engine.llm.start_engine", fail)
    assert_refused(gemwright("run", folder, "a"), 1, "ZeroDivisionError: by zero", "--debug")
    unforeseen = gemwright("run", folder, "a", "--debug")
    assert unforeseen.code == 1
    assert "Traceback" in unforeseen.stderr
    assert "in fail" in unforeseen.stderr
    foreseen = gemwright("run", folder, "", "--debug")
    assert foreseen.code == 2
    assert "Traceback" in foreseen.stderr


def test_memory_that_runs_out_exits_4(gemwright: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gemwright.engine.llm.start_engine", fail)
    assert_refused(gemwright("run", folder, "a"), 4, "memory ran out")


def test_ctrl_c_while_loading_exits_130(gemwright: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemwright.engine.llm.start_engine", lambda *_: signal.raise_signal(signal.SIGINT))
    assert_refused(gemwright("run", folder, "a"), 130, "interrupted")


def test_ctrl_c_is_held_back_until_the_end_of_a_block() -> None:
    reached = []

    def interrupted() -> None:
        with hold_interrupts():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def start(folder: Path, **pipes: Any) -> subprocess.Popen[bytes]:
    """Start a long answer in a child and return when its first text has come."""
    words = ["run", str(folder), "a", "--max-tokens", "4000", "--ignore-eos", "--temperature", "9"]
    child = subprocess.Popen(
        [*CHILD, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment(), **pipes
    )
    assert child.stdout is not None
    assert child.stdout.read(1)
    return child


def test_ctrl_c_during_an_answer_exits_130(folder: Path) -> None:
    child = start(folder)
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130
    assert stderr == b"interrupted\n"
    assert stdout.endswith(b"\n")


def test_a_reader_that_goes_away_ends_it_without_complaint(folder: Path) -> None:
    child = start(folder)
    assert child.stdout is not None
    child.stdout.close()
    watchdog = threading.Timer(60, child.kill)
    watchdog.start()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    assert child.wait() == 1
    watchdog.cancel()
    child.stderr.close()
