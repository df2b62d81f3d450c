"""Who computes how many tokens in the next step. Sees requests and blocks, never a model.

One rule: every request has known and computed tokens, and a step spends a token budget on closing the gap, oldest
request first. There are no prefill and decode phases. A waiting request is admitted when the blocks it may ever need
are not promised to others, so a running request never lacks one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gemwright.engine.request import Request
from gemwright.errors import CapacityError
from gemwright.memory.block_manager import BlockManager


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """`num_tokens` more tokens of a request, beginning at its num_computed."""

    request: Request
    num_tokens: int


class Scheduler:
    """Holds the waiting and the running requests."""

    def __init__(self, blocks: BlockManager, *, step_tokens: int, max_num_seqs: int) -> None:
        self.blocks = blocks
        self.step_tokens = step_tokens
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def schedule(self) -> list[ScheduledRequest]:
        """Choose the tokens of the next step and make room for their K/V."""
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self.blocks.try_add(request.request_id, request.max_num_tokens, self.step_tokens):
                break
            self.running.append(self.waiting.popleft())
        if self.waiting and not self.running:
            raise CapacityError(
                f"request {self.waiting[0].request_id} can never run: the K/V pool is smaller than what it may need",
                value=f"{self.waiting[0].max_num_tokens} tokens",
            )
        budget = self.step_tokens
        scheduled = []
        for request in self.running:
            num_tokens = min(request.num_known - request.num_computed, budget)
            if num_tokens > 0:
                self.blocks.grow(request.request_id, request.num_computed, request.num_computed + num_tokens)
                scheduled.append(ScheduledRequest(request, num_tokens))
                budget -= num_tokens
        return scheduled

    def finish(self, request: Request) -> None:
        """Drop a request, wherever it is, and give back its blocks; nothing happens if it is nowhere."""
        if request in self.running:
            self.running.remove(request)
            self.blocks.remove(request.request_id)
        elif request in self.waiting:
            self.waiting.remove(request)
