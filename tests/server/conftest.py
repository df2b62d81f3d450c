"""One scripted server for the clients that speak OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import scripted_llm
from tests.completions_script import scripted_server
from tests.openai_script import Told
from tests.serving import Served, serving


@pytest.fixture(scope="session")
def told() -> Told:
    """What the server was asked, and what it says."""
    return Told()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, told: Told) -> Iterator[Served]:
    """A server of 4096 tokens that sends a comment after every millisecond of silence."""
    path = tmp_path_factory.mktemp("openai")
    folder = write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})
    llm = scripted_llm(folder, told, threads=1, max_model_len=4096, chat_template="gemma4")
    with serving(llm, ServerSettings(api_keys=("secret",), keep_alive_s=0.001)) as server:
        yield server


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0) as found:
        yield found


@pytest.fixture(scope="session")
def completions_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint for /v1/completions."""
    path = tmp_path_factory.mktemp("completions")
    return write_tiny_checkpoint("gemma3", path, overrides={"max_position_embeddings": 4096})


@pytest.fixture(scope="session")
def plain(completions_folder: Path) -> Iterator[Served]:
    """A server that only writes answers, a millisecond a token."""
    with scripted_server(completions_folder, seconds_per_step=0.001) as server:
        yield server


@pytest.fixture(scope="session")
def asking(plain: Served) -> Iterator[openai.OpenAI]:
    """A client of it."""
    with openai.OpenAI(base_url=f"{plain.url}/v1", api_key="any", max_retries=0) as found:
        yield found
