"""Who computes how many tokens in the next step. Sees requests and blocks, never a model.

One rule: every request has known and computed tokens, and a step spends a token budget on closing the gaps. There are
no prefill and decode phases. Requests that lack one token go first, then the others by rank: lower priority number,
then arrival; every AGING_STEPS steps of waiting are worth one priority, so nobody starves.

When blocks run short, the lowest in rank is preempted: it gives back its blocks, keeps its tokens, and later computes
them again (mostly from the prefix cache). The highest in rank is never preempted and fits alone, so work goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemwright.engine.request import Request
from gemwright.errors import CapacityError, GemwrightError, show_both_bytes
from gemwright.memory.block_manager import BlockManager

AGING_STEPS = 64


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """`num_tokens` more tokens of a request, beginning at its num_computed."""

    request: Request
    num_tokens: int


class Scheduler:
    """Holds the waiting and the running requests."""

    def __init__(
        self, blocks: BlockManager, *, step_tokens: int, max_num_seqs: int, prefix_caching: bool = True
    ) -> None:
        self.blocks = blocks
        self.step_tokens = step_tokens
        self.max_num_seqs = max_num_seqs
        self.prefix_caching = prefix_caching
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        """Prompt tokens that first answers found in the prefix cache when they first ran."""
        self.clock = 0

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request. Raises CapacityError for one that the pool could not hold even alone."""
        layout = self.blocks.layout
        for group in layout.groups:
            if group.blocks_for_request(request.max_num_tokens, self.step_tokens) > group.num_blocks:
                needed = layout.request_bytes(request.max_num_tokens, self.step_tokens)
                value, limit = show_both_bytes(needed, layout.total_bytes)
                raise CapacityError(
                    f"a request of up to {request.max_num_tokens} tokens does not fit in the K/V pool",
                    value=f"{value} needed",
                    limit=limit,
                    remedy="lower max_tokens, or raise --kv-cache-memory-bytes",
                )
        request.arrived_at_step = self.clock
        self.waiting.append(request)

    def schedule(self) -> list[ScheduledRequest]:
        """Choose the tokens of the next step and make room for their K/V; empty only where there is no work.

        Raises GemwrightError where nobody can go on: the highest in rank fits alone, so blocks were lost.
        """
        self.clock += 1
        scheduled: dict[int, ScheduledRequest] = {}
        for request in sorted(self.running, key=lambda request: (request.num_missing > 1, self._rank(request))):
            if request in self.running:  # not preempted for one before it
                self._schedule_running(request, scheduled)
        for request in sorted(self.waiting, key=self._rank):
            budget = self.step_tokens - sum(item.num_tokens for item in scheduled.values())
            if budget == 0 or len(self.running) == self.max_num_seqs:
                break
            limit = self._max_cached_blocks(request)
            num_matched = self._match(request, limit)
            if num_matched < limit and self.blocks.is_being_computed(request.block_keys, num_matched):
                continue  # another request is about to compute what this one needs next: wait and share it
            if not self._admit(request, num_matched):
                break  # nobody overtakes it
            self._schedule_running(request, scheduled)
        if self.has_work and not scheduled:
            raise self._stuck()
        return list(scheduled.values())

    def finish(self, request: Request) -> None:
        """Drop a request, wherever it is, and give back its blocks; nothing happens if it is nowhere."""
        if request in self.running:
            self.running.remove(request)
            self.blocks.remove(request.request_id)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _schedule_running(self, request: Request, scheduled: dict[int, ScheduledRequest]) -> None:
        budget = self.step_tokens - sum(item.num_tokens for item in scheduled.values())
        num_tokens = min(request.num_missing, budget)
        while num_tokens > 0:
            try:
                self.blocks.grow(request.request_id, request.num_computed, request.num_computed + num_tokens)
            except CapacityError:
                lowest = max(self.running, key=self._rank)
                self._preempt(lowest)
                scheduled.pop(lowest.request_id, None)
                if lowest is request:
                    return
            else:
                scheduled[request.request_id] = ScheduledRequest(request, num_tokens)
                return

    def _stuck(self) -> GemwrightError:
        """Return the error of a step without a token, which would be tried again for ever."""
        blocks = self.blocks
        free = [
            f"{pool.num_free} of {group.num_blocks} {group.kind}"
            for group, pool in zip(blocks.layout.groups, blocks.pools, strict=True)
        ]
        return GemwrightError(
            "no request can go on: the books of the K/V pool do not add up",
            value=f"{len(self.running)} running, {len(self.waiting)} waiting; free blocks: {', '.join(free)}",
            limit="one request fits alone",
            remedy="start the engine again, and report what it was asked",
        )

    def _max_cached_blocks(self, request: Request) -> int:
        """Return how many leading blocks a request may find: none where prompt logprobs want every position's logits,
        and never the one with its last token."""
        wants_all = request.params.prompt_logprobs is not None and request.answer_index == 0
        if wants_all or not self.prefix_caching:
            return 0
        return request.max_cached_blocks(self.blocks.layout.block_size)

    def _match(self, request: Request, limit: int) -> int:
        """Return how many leading blocks of a waiting request, up to `limit`, are cached and may be taken."""
        while (found := self.blocks.match(request.block_keys, limit)) > 0:
            limit = request.max_cached_blocks(self.blocks.layout.block_size, found)
            if limit == found:
                break
        return found

    def _admit(self, request: Request, num_matched: int) -> bool:
        keys = request.block_keys if self.prefix_caching else ()
        if not self.blocks.try_add(request.request_id, request.num_known, self.step_tokens, keys, num_matched):
            return False
        request.num_computed = num_matched * self.blocks.layout.block_size
        if request.num_cached is None:
            request.num_cached = request.num_computed
            if request.answer_index == 0:
                self.num_cached_tokens += request.num_cached
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.blocks.remove(request.request_id)
        request.num_computed = 0
        self.waiting.append(request)
        self.num_preemptions += 1

    def _rank(self, request: Request) -> tuple[int, int]:
        waited = self.clock - request.arrived_at_step
        return request.priority - waited // AGING_STEPS, request.request_id
