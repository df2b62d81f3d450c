"""What `gemwright pull` does when the way to the hub breaks: it goes on, or it says what stopped it and what helps."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants

from gemwright.loading import hub_transfer
from gemwright.loading.hub import pull
from gemwright.loading.hub_name import HubName
from gemwright.loading.hub_transfer import Patience
from tests.end_to_end.command_line import CHILD, CommandLine, Outcome, child_environment
from tests.end_to_end.conftest import TinyFolder
from tests.hub_server import Fault, Hub, hub_variables, use_endpoint

NAME = "tiny/gemma"
WEIGHTS = "model.safetensors"


@pytest.fixture
def size(hub: Hub, tiny_folder: TinyFolder) -> int:
    """Publish a tiny checkpoint and return the bytes of its weights."""
    hub.add(NAME, tiny_folder("gemma3"))
    return (tiny_folder("gemma3") / WEIGHTS).stat().st_size


def assert_right(outcome: Outcome, tiny_folder: TinyFolder) -> None:
    assert outcome.code == 0, outcome.stderr
    assert (Path(outcome.json()["path"]) / WEIGHTS).read_bytes() == (tiny_folder("gemma3") / WEIGHTS).read_bytes()


def assert_fails(outcome: Outcome, code: int, *words: str) -> None:
    assert outcome.code == code, outcome.stderr
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    assert "remedy: " in outcome.stderr
    for word in words:
        assert word in outcome.stderr


def partial_files() -> list[Path]:
    return list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))


# Connections


def test_a_cut_connection_is_taken_up_where_it_broke(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder
) -> None:
    hub.faults[WEIGHTS] = [Fault(cut_after=size // 2)]
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)
    first, second = hub.requests_for(WEIGHTS)
    assert first.range is None
    assert second.range is not None
    begin = int(second.range.removeprefix("bytes=").rstrip("-"))
    assert 0 < begin <= size // 2
    assert hub.sent_bytes(WEIGHTS) < 2 * size
    assert partial_files() == []


def test_after_too_many_cuts_it_ends_and_the_same_command_goes_on(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder
) -> None:
    hub.always[WEIGHTS] = Fault(cut_after=size // 10)
    outcome = gemwright("pull", NAME)
    assert_fails(outcome, 5, "breaks off", NAME, "of 700", "KiB", "the same command goes on from there")
    assert len(hub.requests_for(WEIGHTS)) == 3
    (partial,) = partial_files()
    there = partial.stat().st_size
    assert 0 < there < size
    del hub.always[WEIGHTS]
    hub.asked.clear()
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)
    (asked,) = hub.requests_for(WEIGHTS)
    assert asked.range == f"bytes={there}-"
    assert asked.sent_bytes == size - there


def test_attempts_that_bring_much_are_not_counted(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = Patience(attempts=2, progress_bytes=size // 20, first_wait_seconds=0.01, longest_wait_seconds=0.01)
    monkeypatch.setattr(hub_transfer, "PATIENCE", patience)
    hub.faults[WEIGHTS] = [Fault(cut_after=size // 8)] * 6
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)
    assert len(hub.requests_for(WEIGHTS)) == 7


def test_a_server_that_sends_the_whole_file_again_spoils_nothing(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder
) -> None:
    hub.faults[WEIGHTS] = [Fault(cut_after=size // 2), Fault(ignore_range=True)]
    outcome = gemwright("pull", NAME, "--json")
    assert_right(outcome, tiny_folder)


@pytest.mark.parametrize("content", [b"not what the hub has", b"x" * (1 << 20)], ids=["shorter", "longer"])
def test_what_lies_there_of_another_file_is_fetched_anew(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder, content: bytes
) -> None:
    hub.always[WEIGHTS] = Fault(cut_after=10)
    gemwright("pull", NAME)
    hub.always.clear()
    (partial,) = partial_files()
    partial.write_bytes(content)
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)


def test_a_file_with_a_wrong_checksum_is_never_put_in_place(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder
) -> None:
    hub.always[WEIGHTS] = Fault(spoil=True)
    assert_fails(gemwright("pull", NAME), 5, "checksum", WEIGHTS)
    assert_fails(gemwright("run", NAME, "hello", "--offline"), 5, WEIGHTS)
    assert partial_files() == []
    hub.always.clear()
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)


def test_a_cached_file_that_was_cut_short_is_fetched_anew(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder
) -> None:
    path = Path(gemwright("pull", NAME, "--json").json()["path"]) / WEIGHTS
    os.truncate(path, size - 1)
    assert_fails(gemwright("run", NAME, "hello", "--offline"), 5, "in part", WEIGHTS)
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)
    assert gemwright("run", NAME, "hello", "--max-tokens", 1, "--offline").code == 0


def test_no_network_says_which_hub_was_asked(
    gemwright: CommandLine, hub: Hub, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemwright("pull", NAME)
    use_endpoint(monkeypatch, "http://127.0.0.1:9")
    assert_fails(gemwright("pull", NAME), 5, "cannot be reached", "http://127.0.0.1:9", "HF_ENDPOINT")
    assert gemwright("run", NAME, "hello", "--max-tokens", 1).code == 0


def test_what_is_no_hub_is_told_apart(gemwright: CommandLine, hub: Hub, size: int) -> None:
    hub.always["api"] = Fault(status=200, headers={"Content-Type": "text/html"})
    assert_fails(gemwright("pull", NAME), 5, "not a hub", hub.url)


# Answers that refuse


def test_a_gated_model_says_where_its_terms_are_and_a_token_opens_it(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories[NAME].is_gated = True
    hub.redirects = True
    hub.tokens |= {"hf_other", "hf_accepted"}
    assert_fails(gemwright("pull", NAME), 5, "gated", f"{hub.url}/{NAME}", "HF_TOKEN", "hf auth login")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert_fails(gemwright("pull", NAME), 5, "gated", "account of your token", f"{hub.url}/{NAME}")
    monkeypatch.setenv("HF_TOKEN", "hf_accepted")
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)
    elsewhere = [asked for asked in hub.asked if asked.path.startswith("/cdn")]
    assert elsewhere
    assert all(asked.authorization is None for asked in elsewhere)


def test_a_model_that_is_not_there_and_a_private_one_look_alike(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails(gemwright("pull", "tiny/nothing"), 5, "tiny/nothing", "no such model", "spelling", "HF_TOKEN")
    hub.repositories[NAME].is_private = True
    assert_fails(gemwright("pull", NAME), 5, NAME, "no such model", "HF_TOKEN")
    hub.tokens.add("hf_mine")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)


def test_a_token_that_the_hub_does_not_know_is_named_as_the_reason(
    gemwright: CommandLine, hub: Hub, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    outcome = gemwright("pull", NAME)
    assert_fails(outcome, 5, "refuses the token", "HF_TOKEN")
    assert "hf_wrong" not in outcome.stderr


@pytest.mark.parametrize("where", ["api", WEIGHTS])
def test_too_many_requests_are_waited_for_where_that_is_short(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder, where: str
) -> None:
    hub.faults[where] = [Fault(status=429, headers={"Retry-After": "0"})]
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)
    hub.always[where] = Fault(status=429, headers={"Retry-After": "3600"})
    hub.add(NAME, {**hub.repositories[NAME].commits[hub.repositories[NAME].references["main"]], WEIGHTS: b"new"})
    hub.asked.clear()
    outcome = gemwright("pull", NAME)
    assert_fails(outcome, 5, "too many requests", "3600 s", "wait")
    refused = [asked for asked in hub.asked if asked.status == 429]
    assert len(refused) == 1


def test_the_wait_that_a_spent_rate_limit_names_is_told(gemwright: CommandLine, hub: Hub, size: int) -> None:
    hub.always["api"] = Fault(status=429, headers={"RateLimit": '"api";r=0;t=287'})
    assert_fails(gemwright("pull", NAME), 5, "too many requests", "287 s")


@pytest.mark.parametrize("where", ["api", "config.json", WEIGHTS])
def test_an_ailing_hub_is_asked_again_and_then_named(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder, where: str
) -> None:
    hub.always[where] = Fault(status=503)
    assert_fails(gemwright("pull", NAME), 5, "503", NAME, "later")
    assert len([asked for asked in hub.asked if asked.status == 503]) == 3
    hub.always.clear()
    hub.faults[where] = [Fault(status=502)]
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)


# This machine


def test_a_disk_that_runs_full_exits_4_and_keeps_what_came(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = hub_transfer._Partial.write

    def fill(self: hub_transfer._Partial, piece: bytes) -> None:
        if self.size_bytes > size // 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, piece)

    with monkeypatch.context() as patch:
        patch.setattr(hub_transfer._Partial, "write", fill)
        assert_fails(gemwright("pull", NAME), 4, "the disk is full", "HF_HOME", "the same command")
    (partial,) = partial_files()
    there = partial.stat().st_size
    hub.asked.clear()
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)
    assert hub.sent_bytes(WEIGHTS) == size - there


def test_a_cache_that_cannot_be_written_is_named(
    gemwright: CommandLine, hub: Hub, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    assert_fails(gemwright("pull", NAME), 5, "file", "HF_HOME")


def test_two_at_once_fetch_each_file_once(hub: Hub, size: int) -> None:
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            pull(HubName(NAME))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert hub.sent_bytes(WEIGHTS) == size


def test_an_interrupt_ends_with_130_at_once_and_the_next_pull_goes_on(
    gemwright: CommandLine, hub: Hub, size: int, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    hub.faults[WEIGHTS] = [Fault(cut_after=size // 2, hold=True)]
    child = subprocess.Popen(
        [*CHILD, "pull", NAME],
        env=child_environment() | hub_variables(hub, tmp_path / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert hub.holding.wait(60)
    while not any(path.stat().st_size >= size // 2 for path in partial_files()):
        hub.closing.wait(0.01)
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=30)
    assert (child.returncode, stdout, stderr.strip()) == (130, "", "interrupted")
    hub.asked.clear()
    assert_right(gemwright("pull", NAME, "--json"), tiny_folder)
    assert hub.sent_bytes(WEIGHTS) == size - size // 2


def test_the_environment_alone_sets_hub_cache_and_token(hub: Hub, size: int, tmp_path: Path) -> None:
    hub.repositories[NAME].is_gated = True
    hub.tokens.add("hf_accepted")
    variables = hub_variables(hub, tmp_path / "elsewhere") | {"HF_TOKEN": "hf_accepted"}
    environment = child_environment() | variables
    done = subprocess.run([*CHILD, "pull", NAME, "--json"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["path"].startswith(str(tmp_path / "elsewhere" / "hub"))
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*CHILD, "pull", NAME], env=offline, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "offline mode" in done.stderr
    assert "HF_HUB_OFFLINE" in done.stderr
