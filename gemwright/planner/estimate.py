"""From a model's header and settings to what an engine will hold: one entry for every engine.

Each engine's rules stand in its own file under planner/engines/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemwright.planner.ledger import Ledger
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import WeightPart
from gemwright.spec.model_header import ModelHeader


@dataclass(frozen=True, slots=True)
class KVGroupFacts:
    """One kind of layer in an engine's K/V cache."""

    kind: str
    """"full" or "sliding"."""
    num_layers: int
    num_kv_heads: int
    """On each device: at least 1 under tensor parallelism, where fewer heads than devices are replicated."""
    head_dim: int
    window: int | None
    token_bytes: int
    """Bytes of one token (one cell) in one layer, K and V together as the engine stores them."""
    tokens_per_sequence: int
    """Tokens (cells) that one sequence of the planned length reserves in a layer."""

    @property
    def sequence_bytes(self) -> int:
        """Bytes that one sequence of the planned length reserves."""
        return self.num_layers * self.token_bytes * self.tokens_per_sequence

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "kind": self.kind,
            "num_layers": self.num_layers,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "window": self.window,
            "token_bytes": self.token_bytes,
            "tokens_per_sequence": self.tokens_per_sequence,
            "bytes": self.sequence_bytes,
        }


@dataclass(frozen=True, slots=True)
class KVFacts:
    """The cache of one sequence of the planned length, as the engine reserves it."""

    groups: tuple[KVGroupFacts, ...]

    @property
    def bytes_per_token_full(self) -> int:
        """What one more token of context costs: the full layers alone."""
        return sum(group.num_layers * group.token_bytes for group in self.groups if group.window is None)

    @property
    def sliding_bytes_per_sequence(self) -> int:
        """What the sliding layers of one sequence take, however long it grows."""
        return sum(group.sequence_bytes for group in self.groups if group.window is not None)

    @property
    def bytes_per_sequence(self) -> int:
        """All of it."""
        return sum(group.sequence_bytes for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "bytes_per_token_full": self.bytes_per_token_full,
            "sliding_bytes_per_sequence": self.sliding_bytes_per_sequence,
            "bytes_per_sequence": self.bytes_per_sequence,
            "groups": [group.to_dict() for group in self.groups],
        }


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an engine holds for a model under settings."""

    engine: str
    ledger: Ledger
    kv: KVFacts
    weights: tuple[WeightPart, ...]
    """What is loaded, part by part, before any split over devices."""
    max_model_len: int
    """The length planned for, as asked or as the engine's rule gives it."""
    max_num_seqs: int
    """Requests planned for at once."""
    needed_bytes: int
    """The least memory (of the ledger's place, on each device) that serves this many requests of this length."""
    engine_facts: dict[str, Any]
    """What is the engine's own, as the JSON output has it: {"vllm": {...}}, {"llama_cpp": {...}}, or empty."""
    notes: tuple[str, ...] = ()
    is_refused: bool = False
    """Whether the engine would not start with just these settings, as our own refuses a K/V pool that holds no request
    of the length asked for; a note says why."""

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights that the engine loads, over all devices, each once."""
        return sum(part.size_bytes for part in self.weights)


def estimate(header: ModelHeader, settings: PlanSettings) -> Estimate:
    """Return what the engine that `settings` names will hold.

    Raises RequestError for settings that contradict the model, UnsupportedError for what the engine cannot do.
    Never raises because something does not fit: that is read from `needed_bytes`.
    """
    # Each engine's file is imported when it is asked for, to keep the answer quick.
    if settings.engine == "vllm":
        from gemwright.planner.engines.vllm import estimate_vllm

        return estimate_vllm(header, settings)
    if settings.engine == "llama.cpp":
        from gemwright.planner.engines.llama_cpp import estimate_llama_cpp

        return estimate_llama_cpp(header, settings)
    if settings.engine == "ollama":
        from gemwright.planner.engines.ollama import estimate_ollama

        return estimate_ollama(header, settings)
    from gemwright.planner.engines.gemwright import estimate_gemwright

    return estimate_gemwright(header, settings)
