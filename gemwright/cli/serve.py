"""`gemwright serve`: a model behind the routes of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    Bytes,
    SectionCommand,
    backend_options,
    batch_options,
    debug_option,
    dtype_option,
    engine_options,
    given,
    model_options,
    option,
)

if TYPE_CHECKING:
    from gemwright.engine.async_engine import AsyncEngine
    from gemwright.server.settings import ServerSettings

_SERVER = "Server"
_LIMITS = "Limits"


@click.command(
    cls=SectionCommand,
    short_help="Serve a model over HTTP.",
    epilog="""\b
Examples:
  gemwright serve google/gemma-4-E2B-it
  gemwright serve ./gemma-3-4b-it --port 8080 --served-model-name gemma
  gemwright serve model.gguf --host 0.0.0.0 --api-key-file keys.txt""",
)
@click.argument("word", required=False, metavar="[MODEL]", shell_complete=complete_model)
@option(_SERVER, "--host", "Address to listen on; left out, 127.0.0.1: this machine alone.")
@option(_SERVER, "--port", "Port; left out, 8000; 0 is any that is free.", type=int)
@option(
    _SERVER,
    "--served-model-name",
    "What clients call the model; may be given several times (the variable holds one).",
    multiple=True,
)
@option(
    _SERVER,
    "--api-key",
    "A key that requests must bring; may be given several times (the variable holds one).",
    multiple=True,
)
@option(_SERVER, "--api-key-file", "A file of keys, one a line.", type=click.Path())
@option(
    _SERVER,
    "--allowed-origins",
    "An origin whose pages may call, * for any; may be given several times (the variable holds one).",
    multiple=True,
)
@option(_SERVER, "--ssl-keyfile", "The private key of TLS.", type=click.Path())
@option(_SERVER, "--ssl-certfile", "The certificate of TLS.", type=click.Path())
@option(_SERVER, "--reasoning-field", "How a thought goes out: both, reasoning or reasoning_content; left out, both.")
@option(_SERVER, "--metrics-prefix", "What names of metrics begin with; left out, vllm:, as dashboards expect.")
@option(_SERVER, "--log-prompts", "Put the text of prompts and answers into the log.", is_flag=True)
@option(_LIMITS, "--max-num-queued-reqs", "Prompts that may wait; more get 429. Left out, 256.", type=int)
@option(_LIMITS, "--max-body-bytes", "Largest request body; larger ones get 413. Left out, 32MiB.", type=Bytes())
@option(_LIMITS, "--max-answers", "Answers that one request may ask for; left out, 16.", type=int)
@option(_LIMITS, "--request-timeout", "Seconds that an answer may take; left out, 600.", type=float)
@option(
    _LIMITS,
    "--sse-keep-alive-interval",
    "Seconds of silence before a stream sends a comment; left out, 15.",
    type=float,
)
@option(_LIMITS, "--drain-timeout", "Seconds that running answers have after SIGTERM; left out, 30.", type=float)
@model_options
@dtype_option
@backend_options
@batch_options
@debug_option
@click.pass_context
def serve(context: click.Context, /, word: str | None, **values: Any) -> None:
    """Serve a model.

    MODEL is a hub id, a folder or a .gguf file; left out, it is Gemma 3 270M. Clients of OpenAI, Anthropic and Ollama
    find their routes below the address that the ready line names; docs/api.md lists them, and the page at / chats.
    Tools and thoughts need no flag. SIGTERM lets running answers end.
    """
    from gemwright.cli.asked import choose_model
    from gemwright.errors import UnsupportedError

    try:
        from gemwright.server.serve import serve as run_server
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "serving needs packages that are not installed",
            value=error.name,
            remedy="pip install 'gemwright[server]'",
        ) from error
    model = choose_model(word, context)
    settings = _settings(values)
    if settings.is_open:
        print(
            f"warning: {settings.host} is reachable from other machines and no --api-key is set: anyone may use it",
            file=sys.stderr,
        )
    code = run_server(settings, model or "gemma-3-270m", lambda: _load(model, settings, values), _announce)
    if code:
        raise SystemExit(code)


def _settings(values: dict[str, Any]) -> ServerSettings:
    from gemwright.cli.measuring import planned_runtime_bytes
    from gemwright.engine.start import choose_holding
    from gemwright.server.settings import ServerSettings

    names = {
        "host": "host",
        "port": "port",
        "served_model_name": "served_model_names",
        "allowed_origins": "cors_origins",
        "reasoning_field": "reasoning_field",
        "metrics_prefix": "metrics_prefix",
        "log_prompts": "log_prompts",
        "max_num_queued_reqs": "max_num_queued_requests",
        "max_body_bytes": "max_body_bytes",
        "max_answers": "max_answers",
        "request_timeout": "request_timeout_s",
        "sse_keep_alive_interval": "keep_alive_s",
        "drain_timeout": "drain_timeout_s",
    }
    fields = {names[name]: value for name, value in given(values, tuple(names)).items()}
    for name in ("ssl_keyfile", "ssl_certfile"):
        if values[name] is not None:
            fields[name] = _readable(values[name], f"--{name.replace('_', '-')}")
    keys = [*values["api_key"], *_keys_of_file(values["api_key_file"])]
    backend = choose_holding(values["kernels"] or "auto", values["device"] or "cpu").name
    return ServerSettings(
        **fields, api_keys=tuple(dict.fromkeys(keys)), planned_runtime_bytes=planned_runtime_bytes(backend)
    )


def _keys_of_file(name: str | None) -> list[str]:
    """Return the keys of a file, one a line; empty lines and those that begin with # are passed over."""
    from gemwright.errors import CheckpointError, RequestError

    if name is None:
        return []
    try:
        text = _readable(name, "--api-key-file").read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError("--api-key-file is not UTF-8 text", value=name, remedy="write one key a line") from error
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise RequestError("--api-key-file holds no key", value=name, remedy="write one key a line")
    return keys


def _readable(name: str, flag: str) -> Path:
    from gemwright.errors import CheckpointError

    path = Path(name).expanduser()
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise CheckpointError(f"{flag} cannot be read", value=name, limit=error.strerror) from error


def _load(model: str | None, settings: ServerSettings, values: dict[str, Any]) -> AsyncEngine:
    from gemwright.cli.load import load_model
    from gemwright.engine.async_engine import AsyncEngine

    llm = load_model(
        model,
        revision=values["revision"],
        offline=values["offline"],
        chat_template=values["chat_template"],
        options=engine_options(values),
    )
    return AsyncEngine(llm, max_waiting=settings.max_num_queued_requests)


def _announce(engine: AsyncEngine, address: str) -> None:
    """Print the ready line, and what a user should know of the start."""
    from gemwright.errors import show_bytes

    started = engine.llm.engine
    for note in started.notes:
        print(f"note: {note}", file=sys.stderr)
    kinds = ", ".join(
        f"{len(group.layers)} {group.kind} layers {started.runner.ops.name}" for group in started.layout.groups
    )
    token_bytes = sum(len(group.layers) * group.token_bytes for group in started.layout.groups if group.window is None)
    print(
        f"ready: {address} | {started.dtype} | {kinds} | K/V {show_bytes(token_bytes)} a token | "
        f"context {started.max_model_len} tokens",
        flush=True,
    )
