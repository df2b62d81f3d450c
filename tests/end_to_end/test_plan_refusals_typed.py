"""`gemwright plan` refuses what is typed wrong, and says what a name from the table leaves open."""

from __future__ import annotations

import pytest

from tests.end_to_end.command_line import CommandLine

E4B = "google/gemma-4-E4B-it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "0"), "no memory at all"),
        (("--memory", "0.0GiB"), "no memory at all"),
        (("--memory", "80KiB"), "did you mean 80GiB"),
        (("--memory", "9" * 5000 + "GiB"), "more digits"),
        (("--memory", "99999999TiB"), "more than any machine has"),
        (("--memory", "80GiB", "--memory", "10GiB"), "--memory is given 2 times"),
        (("--max-model-len=8", "--max-model-len", "9"), "--max-model-len is given 2 times"),
        (("--kv-unified", "--no-kv-unified"), "--kv-unified/--no-kv-unified is given 2 times"),
        (("--engine", "vllm", "--available-kv-bytes", "5GiB", "--kv-cache-memory-bytes", "6GiB"), "two names of one"),
        (("--revision", ""), "--revision is empty"),
        (("--images", "2", "--max-model-len", "100"), "560 tokens"),
    ],
)
def test_the_command_line_says_what_is_wrong(words: tuple[str, ...], said: str, gemwright: CommandLine) -> None:
    found = gemwright("plan", E4B, "--offline", *words)
    assert found.code == 2, found.stderr
    assert said in found.stderr
    assert found.stdout == ""


def test_a_switch_may_be_said_twice(gemwright: CommandLine) -> None:
    found = gemwright("plan", E4B, "--offline", "--offline", "--max-num-seqs", "1")
    assert found.code == 0, found.stderr


@pytest.mark.parametrize("name", ["google/gemma-7b", "google/gemma-1.1-2b-it", "google/codegemma-7b-it"])
def test_gemma_1_is_refused_by_name_where_nothing_else_is_to_be_had(name: str, gemwright: CommandLine) -> None:
    found = gemwright("plan", name, "--offline")
    assert found.code == 3
    assert "Gemma 1 is not supported" in found.stderr


def test_another_revision_than_the_published_one_was_not_looked_at(gemwright: CommandLine) -> None:
    assert "revision abc was not looked at" in gemwright("plan", f"{E4B}@abc", "--offline").stderr
    assert "revision abc" in gemwright("plan", E4B, "--revision", "abc", "--offline").stderr
    assert "not looked at" not in gemwright("plan", E4B, "--offline").stderr


def test_a_gguf_repository_has_types_and_one_is_named(gemwright: CommandLine) -> None:
    words = ("--engine", "llama.cpp", "--offline", "--json")
    unnamed = gemwright("plan", "unsloth/gemma-4-E4B-it-GGUF", *words)
    assert "16 bits are assumed, unless unsloth/gemma-4-E4B-it-GGUF:Q4_K_M" in unnamed.stderr
    named = gemwright("plan", "unsloth/gemma-4-E4B-it-GGUF:Q4_K_M", *words)
    asked = gemwright("plan", E4B, "--quantization", "q4_k_m", *words)
    assert named.json()["weights_bytes"] == asked.json()["weights_bytes"] < unnamed.json()["weights_bytes"] / 2
    assert "are assumed" not in named.stderr
    stored = gemwright("plan", "someone/gemma-4-E4B-it-qat-q4_0-gguf", *words)
    assert stored.json()["quantization"] == "q4_0"


def test_a_type_that_none_is_or_of_what_holds_no_types(gemwright: CommandLine) -> None:
    assert gemwright("plan", "unsloth/gemma-4-E4B-it-GGUF:Q9", "--offline").code == 3
    assert gemwright("plan", f"{E4B}:Q4_K_M", "--offline").code == 5
