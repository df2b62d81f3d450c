"""How a server runs: addresses, keys, limits. Checked once; each field documents its flag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, get_args

from gemwright.errors import RequestError

ReasoningField = Literal["both", "reasoning", "reasoning_content"]

_METRICS_PREFIX = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server, the engine's own apart."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    """`--served-model-name`: what clients call the model, the first one in answers; left out, its own name."""
    api_keys: tuple[str, ...] = ()
    """`--api-key`, `--api-key-file`: one of them must come with every request but those for health and metrics."""
    max_num_queued_requests: int = 256
    """`--max-num-queued-reqs`: prompts that may wait for their first step; more get 429."""
    max_body_bytes: int = 32 << 20
    """`--max-body-bytes`: the largest request body; larger ones get 413."""
    max_answers: int = 16
    """`--max-answers`: answers that one request may ask for (`n`, times prompts)."""
    request_timeout_s: float = 600.0
    """`--request-timeout`: seconds after which an answer is cut off."""
    keep_alive_s: float = 15.0
    """`--sse-keep-alive-interval`: seconds of silence after which a stream sends a comment."""
    drain_timeout_s: float = 30.0
    """`--drain-timeout`: seconds that running answers have after SIGTERM."""
    cors_origins: tuple[str, ...] = ()
    """`--allowed-origins`: pages of these origins may call; `*` is any."""
    ssl_keyfile: Path | None = None
    ssl_certfile: Path | None = None
    log_prompts: bool = False
    """`--log-prompts`: put the text of prompts and answers into the log."""
    metrics_prefix: str = "vllm:"
    """`--metrics-prefix`: what the names of metrics begin with."""
    reasoning_field: ReasoningField = "both"
    """`--reasoning-field`: under which name an answer's thought goes out."""
    planned_runtime_bytes: int | None = None
    """What the process is planned to take beside the engine's lines, as this machine was calibrated; None: as seen
    elsewhere."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise RequestError("port", value=self.port, limit="0 to 65535", remedy="change --port")
        for name in ("max_num_queued_requests", "max_body_bytes", "max_answers"):
            if getattr(self, name) < 1:
                raise RequestError(name, value=getattr(self, name), limit="at least 1")
        for name in ("request_timeout_s", "keep_alive_s"):
            if not getattr(self, name) > 0:
                raise RequestError(name, value=getattr(self, name), limit="above 0")
        if not self.drain_timeout_s >= 0:
            raise RequestError("drain_timeout_s", value=self.drain_timeout_s, limit="0 or more")
        if any(not key.strip() for key in self.api_keys):
            raise RequestError("an API key is empty", remedy="leave --api-key out, or give a key")
        if any(key != key.strip() for key in self.api_keys):
            raise RequestError("an API key has spaces around it", limit="headers come without them")
        if self.reasoning_field not in get_args(ReasoningField):
            raise RequestError("reasoning_field", value=self.reasoning_field, limit=", ".join(get_args(ReasoningField)))
        if not _METRICS_PREFIX.fullmatch(self.metrics_prefix):
            raise RequestError(
                "metrics_prefix",
                value=self.metrics_prefix,
                limit="letters, digits, _ and :, no digit first; or nothing",
            )
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise RequestError("TLS needs a key and a certificate", remedy="give --ssl-keyfile and --ssl-certfile")

    @property
    def is_open(self) -> bool:
        """Whether anyone on the network can use it: not on loopback, and no key."""
        return not self.api_keys and not _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"
