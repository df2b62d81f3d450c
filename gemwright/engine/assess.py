"""Whether a model runs here, and how: found, opened, planned and weighed as at a start, with nothing read or fetched.

torch is not needed: the plan comes from headers, and backends are only asked which of them could compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gemwright.config import EngineConfig
from gemwright.engine.model_defaults import sampling_defaults, stop_ids, suppressed_ids
from gemwright.engine.start import plan_engine
from gemwright.errors import CheckpointError, GemwrightError
from gemwright.loading.checkpoint import open_checkpoint
from gemwright.loading.default_model import cache_folder, joined_path
from gemwright.loading.describe import Description, describe_checkpoint
from gemwright.memory.engine_plan import EnginePlan
from gemwright.ops.backends import choose_backend
from gemwright.text.tokenizer import load_tokenizer

_SHOWN_FILES = 3

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Assessment:
    """What is known of a model on this machine: as much as could be found out before the first refusal."""

    model: str
    path: Path | None
    description: Description | None
    plan: EnginePlan | None
    backend: str | None
    """The backend that will compute."""
    notes: tuple[str, ...]
    """What was set aside, lowered or chosen, as a start would print it."""
    refusals: tuple[GemwrightError, ...]
    """What a start would end with, the first one first; none where it runs."""


def assess_model(
    model: str | None, config: EngineConfig, *, revision: str | None = None, reads_tokenizer: bool = True
) -> Assessment:
    """Return whether and how a model runs here; None is the default model.

    A model of the hub is looked for in the local cache alone. With `reads_tokenizer` the tokenizer is built, which
    takes a second or two and shows a damaged one. Never raises for what is wrong with the model: that is in `refusals`.
    """
    name = "the default model" if model is None else model
    refusals: list[GemwrightError] = []

    def attempt(step: Callable[[], Result]) -> Result | None:
        try:
            return step()
        except GemwrightError as error:
            refusals.append(error)
            return None

    path = attempt(lambda: _find(model, revision))
    if path is None:
        return Assessment(name, None, None, None, None, (), tuple(refusals))
    allow = config.allow_unknown_config_keys
    checkpoint = attempt(lambda: open_checkpoint(path, allow_unknown_config_keys=allow, must_answer=True))
    if checkpoint is None:
        return Assessment(name, path, None, None, None, (), tuple(refusals))
    description = attempt(lambda: describe_checkpoint(checkpoint, path))
    attempt(lambda: stop_ids(checkpoint.generation_config, checkpoint.spec.eos_token_ids))
    attempt(lambda: suppressed_ids(checkpoint.generation_config))
    attempt(lambda: sampling_defaults(checkpoint.generation_config))
    plan = attempt(lambda: plan_engine(checkpoint, config))
    if plan is not None:
        attempt(plan.require_fit)
    backend = attempt(lambda: choose_backend(config.kernels, config.device))
    if reads_tokenizer:
        attempt(
            lambda: load_tokenizer(
                checkpoint.folder, gguf_metadata=checkpoint.gguf_metadata, cache_dir=cache_folder() / "tokenizers"
            )
        )
    notes = (*checkpoint.notes, *(() if plan is None else plan.notes))
    return Assessment(name, path, description, plan, None if backend is None else backend.name, notes, tuple(refusals))


def _find(model: str | None, revision: str | None) -> Path:
    """Return the path of a model that is on this machine; CheckpointError with a way to get it where it is not."""
    from gemwright.loading.hub_cache import find_snapshot, locate_model
    from gemwright.loading.resolve import local_path_or_name, resolve_model

    if model is None:
        if revision is not None:
            return resolve_model(None, revision=revision)  # refuses it
        joined = joined_path()
        if joined is None:
            raise CheckpointError(
                "the default model is not joined yet", remedy="gemwright run joins it, if the extra demo is installed"
            )
        return joined
    found = local_path_or_name(model, revision)
    if isinstance(found, Path):
        return found
    snapshot = find_snapshot(found.repository, found.revision)
    if snapshot is None:
        raise CheckpointError(
            "this model is not in the local cache",
            value=f"{found.model} at revision {found.revision}",
            remedy=f"fetch it: gemwright pull {found}",
        )
    located = locate_model(snapshot, found.quantization)
    if located.path is None or located.missing:
        lacking = ", ".join(located.missing[:_SHOWN_FILES])
        more = len(located.missing) - _SHOWN_FILES
        raise CheckpointError(
            "this model is in the local cache in part",
            value=f"{found.model} lacks {lacking}{f' and {more} more' if more > 0 else ''}",
            remedy=f"fetch the rest: gemwright pull {found}",
        )
    return located.path
