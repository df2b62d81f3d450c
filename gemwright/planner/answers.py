"""One plan: a model, settings, and every answer that follows from them. What `gemwright plan` prints and returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gemwright.errors import RequestError, show_both_bytes, show_bytes
from gemwright.planner.changes import Change, cheapest_change
from gemwright.planner.checks import check_against_model
from gemwright.planner.devices import Device
from gemwright.planner.estimate import Estimate, estimate
from gemwright.planner.fit import MOST_USERS, Fit, Marginal, fixed_pool_bytes, held_bytes, is_within_pool
from gemwright.planner.ledger import Ledger
from gemwright.planner.load import MOST_LOAD_USERS, LoadMix, LoadUse, load_use, users_for
from gemwright.planner.margins import cache_bytes, with_margin
from gemwright.planner.placement import Placement, placement
from gemwright.planner.settings import ENGINES, UNKNOWN_ENGINES, PlanSettings
from gemwright.planner.time import TimeEstimate, predict
from gemwright.planner.weights import num_language_parameters, num_parameters
from gemwright.spec.model_header import ModelHeader

DEFAULT_PROMPT_TOKENS = 2048
"""The prompt that times are told for unless one is named."""
_ENDLESS_BYTES = 1 << 62


@dataclass(frozen=True)
class Plan:
    """A model planned under settings. Answers that need many estimates are worked out when they are asked for."""

    header: ModelHeader
    settings: PlanSettings
    estimate: Estimate
    """With the margins that were asked for."""
    prompt_tokens: int
    mix: LoadMix | None = None

    @property
    def ledger(self) -> Ledger:
        """What is held, line by line, margins included."""
        return self.estimate.ledger

    @property
    def memory_bytes(self) -> int | None:
        """What may be taken on each device; None where nothing was named."""
        return self.settings.memory_bytes

    @property
    def needed_bytes(self) -> int:
        """The least that serves what was asked, margins included."""
        return self.estimate.needed_bytes

    @property
    def held_bytes(self) -> int:
        """What must fit: the most that will be held or is needed, whichever is more. vLLM takes whatever its share of
        the memory leaves, so that there only what is needed counts, as the memory of which it takes its share; where
        its bytes for K/V are given, these and all around them."""
        return held_bytes(self.estimate, self.settings)

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where no memory was named. What a K/V pool of a fixed size does not hold fits in no
        memory."""
        if self.pool_reason is not None:
            return False
        return None if self.memory_bytes is None else self.held_bytes <= self.memory_bytes

    @cached_property
    def pool_reason(self) -> str | None:
        """Why a K/V pool of the size that was given does not hold what was asked, and what the engine would do with it;
        None where it does, or where the engine sizes its pool."""
        pool, found = fixed_pool_bytes(self.settings), self.estimate
        if pool is None or is_within_pool(found, self.settings):
            return None
        request, allowed = show_both_bytes(found.kv.bytes_per_sequence, pool)
        length = f"{found.max_model_len:,} tokens"
        if found.kv.bytes_per_sequence <= pool:
            num_held = pool // found.kv.bytes_per_sequence
            return (
                f"a K/V pool of {allowed} holds {num_held:,} of {self.settings.max_num_seqs:,} requests of {length} at "
                f"once ({request} each); the others would wait (raise --kv-cache-memory-bytes, or lower --max-num-seqs)"
            )
        reason = f"the engine would refuse to start: a K/V pool of {allowed} does not hold one request of {length}"
        if found.engine == "vllm":
            held = found.engine_facts["vllm"]["max_model_len_that_fits"]
            return f"{reason} ({request}); it holds one of {held:,} (raise --kv-cache-memory-bytes)"
        shorter = estimate(self.header, replace(self.settings, max_model_len=None, max_num_seqs=None))
        if shorter.is_refused:
            return f"{reason} ({request}), nor one of any length (raise --kv-cache-memory-bytes)"
        return (
            f"{reason} ({request}); without --max-model-len it would lower the context to the "
            f"{shorter.max_model_len:,} tokens that it holds"
        )

    @property
    def lowered_from(self) -> int | None:
        """The model's context, where our engine would lower it to `estimate.max_model_len` by itself, as its K/V pool
        holds no longer request; None where it would not."""
        is_lowered = self.estimate.max_model_len < self.header.spec.max_context
        is_its_choice = self.settings.engine == "gemwright" and self.settings.max_model_len is None
        return self.header.spec.max_context if is_lowered and is_its_choice else None

    @property
    def pool_to_ask_for(self) -> int | None:
        """The bytes to give to --kv-cache-memory-bytes, where all of it fits and yet our engine would not start without
        them: the share of memory that it takes for K/V by itself is less. None where it would start."""
        is_unasked = self.settings.kv_cache_memory_bytes is None
        return cache_bytes(self.ledger) if self.fits and is_unasked and self.estimate.is_refused else None

    @property
    def is_close(self) -> bool:
        """Whether the answer could be the other one within the error bars. A pool that is too small has none."""
        if self.memory_bytes is None or self.pool_reason is not None:
            return False
        return abs(self.memory_bytes - self.held_bytes) < self.ledger.error_bytes

    @property
    def spare_bytes(self) -> int | None:
        """What is left over, below zero what is lacking."""
        return None if self.memory_bytes is None else self.memory_bytes - self.held_bytes

    @cached_property
    def fit(self) -> Fit:
        """The inverse questions."""
        return Fit(self.header, self.settings)

    @property
    def max_context_tokens(self) -> int:
        """The longest request that fits, as many of them as planned; where no memory was named, the planned length or
        what the K/V pool holds."""
        budget = self._budget_of_answers
        return self.estimate.max_model_len if budget is None else self.fit.longest_context(budget)

    @property
    def max_num_seqs(self) -> int:
        """The most requests of the planned length at once; where no memory was named, the planned number or what the
        K/V pool holds."""
        budget = self._budget_of_answers
        return self.estimate.max_num_seqs if budget is None else self.fit.most_users(budget)

    @cached_property
    def curve(self) -> tuple[tuple[int, int], ...]:
        """Context against users; empty where neither memory nor the size of a K/V pool was named."""
        budget = self._budget_of_answers
        return () if budget is None else self.fit.curve(budget)

    @cached_property
    def marginal(self) -> Marginal | None:
        """What the next GiB buys; None where no memory was named."""
        return None if self.memory_bytes is None else self.fit.marginal(self.memory_bytes)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Single changes that make it fit; empty unless it does not."""
        budget = self._budget_of_answers
        return () if budget is None or self.fits is not False else cheapest_change(self.header, self.settings, budget)

    @cached_property
    def time(self) -> TimeEstimate | None:
        """How fast it will be on the device named; None where none was."""
        device: Device | None = self.settings.device
        if device is None or device.bandwidth_bytes_per_s is None:
            return None
        prompt = min(self.prompt_tokens, self.estimate.max_model_len)
        return predict(
            self.header,
            self.settings,
            self.estimate,
            device,
            context=prompt,
            num_seqs=self.settings.max_num_seqs or 1,
            prompt_tokens=prompt,
        )

    @cached_property
    def placement(self) -> Placement | None:
        """How heads lie on several devices; None on one."""
        size = self.settings.tensor_parallel_size
        return None if size == 1 or self.settings.engine != "vllm" else placement(self.header.spec, size)

    @cached_property
    def load(self) -> LoadUse | None:
        """What a mix of lengths takes of the pool."""
        if self.mix is None:
            return None
        return load_use(self.mix, self.estimate, self.settings, self.settings.max_num_seqs or 1, self.pool_bytes)

    @cached_property
    def users_of_mix(self) -> int | None:
        """Most requests of the mix at once with at most one chance in a hundred of preemption."""
        return None if self.mix is None else users_for(self.mix, self.estimate, self.settings, self.pool_bytes)

    @property
    def pool_bytes(self) -> int:
        """The K/V cache that requests may fill when all else has been taken from the memory, the margin of K/V
        included; without memory, as planned. A pool of a fixed size is that size."""
        held, fixed = cache_bytes(self.ledger), fixed_pool_bytes(self.settings)
        if fixed is not None:
            return fixed
        margin = self.settings.margin
        if self.settings.engine == "vllm":
            # The pool is a share's rest, and vLLM's own rules have worked it out.
            available: int | None = self.estimate.engine_facts["vllm"]["available_kv_bytes"]
            pool = held if available is None else min(held, available) if margin else available
        elif self.memory_bytes is None:
            pool = held
        else:
            pool = max(0, held + self.memory_bytes - self.ledger.total_bytes)
        return int(pool / margin.get("kv", 1.0))

    @property
    def _budget_of_answers(self) -> int | None:
        """The memory named; where none was, without end if a K/V pool of a fixed size bounds the answers."""
        is_bounded = fixed_pool_bytes(self.settings) is not None
        return _ENDLESS_BYTES if self.memory_bytes is None and is_bounded else self.memory_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON output of `gemwright plan`."""
        found = self.estimate
        content: dict[str, Any] = {
            "model": self.header.name,
            "engine": found.engine,
            "origin": self.header.origin,
            "quantization": self.settings.quantization or self.header.quantization,
            "num_parameters": num_parameters(self.header.spec),
            "num_language_parameters": num_language_parameters(self.header.spec),
            "weights_bytes": found.weights_bytes,
            "lines": self.ledger.to_dict(),
            "kv": found.kv.to_dict(),
            "max_model_len": found.max_model_len,
            "total_bytes": self.ledger.total_bytes,
            "needed_bytes": self.needed_bytes,
            "error_bytes": self.ledger.error_bytes,
            "place": self.ledger.place,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "fits_not_because": self.pool_reason,
            "context_lowered_from": self.lowered_from,
            "kv_cache_memory_bytes_to_ask_for": self.pool_to_ask_for,
            "is_close": self.is_close,
            "spare_bytes": self.spare_bytes,
            "max_context_tokens": self.max_context_tokens,
            "max_num_seqs": self.max_num_seqs,
            "changes": [change.to_dict() for change in self.changes],
            "time": None if self.time is None else self.time.to_dict(),
            **found.engine_facts,
            "notes": list(found.notes),
        }
        if self.placement is not None:
            content["placement"] = self.placement.to_dict()
        if self.load is not None:
            content["load"] = {**self.load.to_dict(), "max_users": self.users_of_mix}
        return content


def make_plan(
    header: ModelHeader,
    settings: PlanSettings,
    *,
    prompt_tokens: int = DEFAULT_PROMPT_TOKENS,
    mix: LoadMix | None = None,
) -> Plan:
    """Return the plan of a model under settings.

    Raises RequestError for settings that contradict the model, UnsupportedError for what the engine cannot do. That
    something does not fit is an answer, not an error.
    """
    if settings.memory_bytes is None and settings.device is not None:
        settings = replace(settings, memory_bytes=settings.device.memory_bytes)
    if (
        settings.embedding_quantization is None
        and settings.quantization is None
        and header.tensors is None
        and header.embedding_quantization is not None
    ):
        settings = replace(settings, embedding_quantization=header.embedding_quantization)
    if mix is not None:
        _check_mix(mix, header, settings)
        if settings.max_model_len is None:
            # Whoever names the lengths of requests has named the longest.
            settings = replace(settings, max_model_len=mix.max_tokens)
    check_against_model(header.spec, settings)
    found = estimate(header, settings)
    found.ledger.with_margin(settings.margin)  # refuses a part that this ledger does not have
    planned = Plan(header, settings, with_margin(found, settings), prompt_tokens, mix)
    if mix is not None:
        # What cannot be told of a mix is refused here, before anything is shown.
        _ = planned.load
    return planned


def _check_mix(mix: LoadMix, header: ModelHeader, settings: PlanSettings) -> None:
    context = header.spec.max_context
    if mix.max_tokens > context:
        raise RequestError(
            "the longest request of the mix is beyond the model's context",
            value=f"max={mix.max_tokens}",
            limit=f"{context} tokens",
            remedy=f"write max={context} or less",
        )
    if (settings.max_num_seqs or 1) > MOST_LOAD_USERS:
        raise RequestError(
            "a mix is not drawn for so many requests at once",
            value=settings.max_num_seqs,
            limit=f"{MOST_LOAD_USERS}",
            remedy="lower --max-num-seqs",
        )


def show_conditions(planned: Plan) -> str:
    """Return what a plan that fits depends on, to be put behind "yes"; empty where it is as asked."""
    if planned.pool_to_ask_for is not None:
        size = show_bytes(planned.pool_to_ask_for)
        return (
            f" with --kv-cache-memory-bytes {planned.pool_to_ask_for} ({size}; the engine's own share for K/V "
            "is less, and without it the engine would refuse to start)"
        )
    if planned.lowered_from is not None:
        held = f"{planned.estimate.max_model_len:,}"
        return f" with the context lowered from {planned.lowered_from:,} to the {held} tokens that the K/V pool holds"
    return ""


def unknown_engine(name: str) -> str | None:
    """Return why there is no formula for an engine that people ask for; None for names that are not among them."""
    asked = _plain(name)
    return next((reason for known, reason in UNKNOWN_ENGINES.items() if _plain(known) == asked), None)


def known_engine(name: str) -> str:
    """Return the engine that a name means, however it is spelled: "VLLM", "llamacpp", "llama-cpp"; other names as they
    are."""
    return next((known for known in ENGINES if _plain(known) == _plain(name)), name)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def show_fact(value: Any) -> str:
    """Return one of the facts of an engine for people: a number, a size, yes or no, some of them by name."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {show_fact(item)}" for name, item in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def show_users(num_users: int) -> str:
    """Return a number of users, and that it is at least so many where the count stopped."""
    return f"{num_users:,} or more" if num_users == MOST_USERS else f"{num_users:,}"
