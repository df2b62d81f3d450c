"""Every command and every Python program in README and docs runs, from top to bottom, as a reader would type them.

A document gets a folder of its own, an empty home, the default model, and a hub on this machine. That has the models
the documents name, in small: random weights, which answer any question with noise, but as the real ones would.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemwright.loading.default_model import cache_folder, default_model_path
from gemwright.spec.families import read_config
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors
from gemwright.testing.tiny_configs import TINY_CONFIGS
from tests.documents import DOCUMENTS, ROOT, Command, blocks, is_ours, is_pattern, spans
from tests.end_to_end.command_line import child_environment
from tests.hub_server import Hub, hub_variables, running_hub
from tests.programs import write_programs
from tests.tiny_gguf import write_tiny_gguf

# What is not run, by the program it begins with: it would set up another environment, or needs a daemon. What these
# are told is checked by tests/contracts/test_documents.py; .ci/run runs the targets of make.
OTHERS_WORK = {"make", "pip", "git", "docker", "cd", ".ci/run"}

# What is not run, by the whole command, and why; its flags are parsed all the same.
NOT_RUN: dict[str, str] = {}

# The hub's models: what documents call them -> the tiny checkpoint they are here.
HUB_MODELS = {"google/gemma-4-E2B-it": "gemma4-e"}
GGUF_REPOSITORY = "ggml-org/gemma-3-1b-it-GGUF"
GEMMA3_TEMPLATE = """\
{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message.role | replace('assistant', 'model') }}
{{ message.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

# What a reader has lying in the folder.
FILES = {
    "notes.txt": "Gemwright runs Gemma models.\n",
    "in.jsonl": '{"id": "1", "prompt": "The capital of France is"}\n',
    "cases.jsonl": '{"id": "1", "text": "<|channel>thought\\nEasy.<channel|>Blue."}\n',
    "schema.json": '{"type": "object", "properties": {"large": {"type": "boolean"}}, "required": ["large"]}\n',
}

# What a reader types into a program that reads the terminal, by the beginning of the command.
TYPED = {"gemwright chat": "Hello\n/help\n"}


@dataclass(frozen=True)
class Step:
    """A command for bash, or a Python program."""

    line: int
    text: str
    command: Command | None


def steps(document: Path) -> list[Step]:
    """Return what a document shows, from top to bottom: commands, programs, and the commands of inline code.

    A verb alone in inline code only names it, but for tables that set programs side by side.
    """
    found = []
    for block in blocks(document):
        if block.language == "python":
            found.append(Step(block.line, block.text, None))
        found += [Step(command.line, command.text, command) for command in block.commands()]
    inline = [span for span in spans(document) if is_ours(span) and not is_pattern(span.text)]
    found += [Step(span.line, span.text, span) for span in inline if span.is_side_by_side or len(span.text.split()) > 2]
    return sorted(found, key=lambda step: step.line)


def is_run(step: Step) -> bool:
    if step.command is None:
        return True
    return step.text not in NOT_RUN and not any(words[0] in OTHERS_WORK for words in step.command.programs())


DOCUMENTS_WITH_STEPS = [path for path in DOCUMENTS if any(is_run(step) for step in steps(path))]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with the models that documents name."""
    with running_hub() as server:
        for name, tiny in HUB_MODELS.items():
            folder = write_tiny_checkpoint(tiny, tmp_path_factory.mktemp(tiny))
            server.add(name, folder)
        spec = read_config(TINY_CONFIGS["gemma3"])
        path = tmp_path_factory.mktemp("gguf") / "gemma-3-1b-it-Q4_K_M.gguf"
        write_tiny_gguf(path, spec, random_tensors(spec, 0), chat_template=GEMMA3_TEMPLATE)
        server.add(GGUF_REPOSITORY, path.parent)
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS_WITH_STEPS, ids=lambda path: path.name)
def test_what_a_document_shows_runs(document: Path, tmp_path: Path, hub: Hub) -> None:
    variables = {**environment(tmp_path), **hub_variables(hub, tmp_path / "home" / "huggingface")}
    folder = tmp_path / "here"
    (folder / ".venv").mkdir(parents=True)
    (folder / ".venv" / "bin").symlink_to(tmp_path / "bin")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "gemma-3-270m-Q4_K_M.gguf").symlink_to(default_model_path())
    for step in filter(is_run, steps(document)):
        words = ["python", "-c", step.text] if step.command is None else ["bash", "-euo", "pipefail", "-c", step.text]
        typed = next((text for beginning, text in TYPED.items() if step.text.startswith(beginning)), "")
        done = subprocess.run(
            words, cwd=folder, env=variables, input=typed, capture_output=True, text=True, check=False, timeout=240
        )
        wanted = 0 if step.command is None else step.command.expected_code
        assert done.returncode == wanted, (
            f"{document.name}, line {step.line}: {step.text}\n{done.stdout}\n{done.stderr}"
        )


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a reader at a fresh home; short answers unless a command says otherwise."""
    programs = write_programs(folder / "bin")
    (programs / "activate").write_text("")
    home = folder / "home"
    home.mkdir()
    kept = {name: value for name, value in child_environment().items() if not name.startswith(("HF_", "XDG_"))}
    return {
        **kept,
        "GEMWRIGHT_CACHE": str(cache_folder()),  # the default model is joined once for all tests
        "GEMWRIGHT_MAX_TOKENS": "8",
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }


def test_what_readme_shows_of_the_demo_is_what_it_prints(tmp_path: Path) -> None:
    target = re.search(r"^demo:.*\n\t\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert target is not None
    command = re.sub(r"--max-tokens \d+", "--max-tokens 2", target[1])
    (shown,) = (block.text for block in blocks(ROOT / "README.md") if "in all" in block.text)
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    # What the weights take is the same everywhere; the K/V cache depends on the machine.
    assert memory_table(done.stderr).keys() == memory_table(shown).keys()
    weights = {name: size for name, size in memory_table(shown).items() if name.startswith("weights")}
    assert weights.items() <= memory_table(done.stderr).items()
    assert shown.startswith(done.stdout.rstrip("\n"))


def memory_table(text: str) -> dict[str, str]:
    rows = re.findall(r"^  (\S.*?):? {2,}([\d.]+ [KMG]iB)", text, re.M)
    assert len(rows) > 5
    return {re.sub(r"\d+ blocks", "blocks", name): size for name, size in rows}


def test_no_reason_is_left_over() -> None:
    shown = {step.text for path in DOCUMENTS for step in steps(path) if step.command is not None}
    assert NOT_RUN.keys() <= shown
    assert not [beginning for beginning in TYPED if not any(text.startswith(beginning) for text in shown)]
