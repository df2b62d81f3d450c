"""A model that says what a test wants: a real engine, tokenizer, scheduler, cache and parser, with its logits written.

Whatever reads an answer (a server, a client, an agent) meets thoughts and calls exactly as a trained model would write
them, token by token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemwright.engine.core import EngineCore
from gemwright.engine.llm import LLM
from gemwright.engine.request import Request
from gemwright.engine.scheduler import ScheduledRequest
from gemwright.text.tokenizer import Tokenizer

Script = Callable[[str, int], str]
"""From the text of a prompt, control words included, and the number of the answer to what is answered.

The answer may hold control words, such as `<|channel>thought\\n...<channel|>`; it ends at the end of the text.
"""

_CERTAIN = np.float32(30.0)


def answers(replies: Mapping[str, str | Sequence[str]], otherwise: str = "Hello.") -> Script:
    """Return a script: the reply of the key that stands last in the prompt; of several replies, one an answer."""

    def choose(prompt: str, answer_index: int) -> str:
        places = {key: prompt.rfind(key) for key in replies}
        key = max(places, key=lambda name: places[name], default="")
        if not places or places[key] < 0:
            return otherwise
        reply = replies[key]
        return reply if isinstance(reply, str) else reply[answer_index % len(reply)]

    return choose


class ScriptedCore(EngineCore):
    """The step loop with written logits. With `computes` the model is run as well, for its cost."""

    def __init__(
        self, core: EngineCore, tokenizer: Tokenizer, script: Script, *, computes: bool, seconds_per_step: float
    ) -> None:
        super().__init__(
            core.runner,
            core.limits,
            tuple(core.eos_token_ids),
            core.make_decoder,
            core.encode,
            core.constraints,
            tuple(core.suppressed_token_ids),
        )
        self._tokenizer = tokenizer
        self._script = script
        self._computes = computes
        self._seconds_per_step = seconds_per_step
        self._written: dict[int, list[int]] = {}
        self._end = max(self.eos_token_ids)

    def _execute(self, scheduled: Sequence[ScheduledRequest]) -> list[NDArray[np.float32] | None]:
        if self._computes or any(item.request.params.prompt_logprobs is not None for item in scheduled):
            super()._execute(scheduled)
        if self._seconds_per_step:
            time.sleep(self._seconds_per_step)
        rows: list[NDArray[np.float32] | None] = []
        for item in scheduled:
            request = item.request
            is_last = request.num_computed + item.num_tokens == request.num_known
            rows.append(self._logits(request) if is_last else None)
        return rows

    def _logits(self, request: Request) -> NDArray[np.float32]:
        written = self._written.get(request.request_id)
        if written is None:
            prompt = self._tokenizer.decode(request.prompt_token_ids, skip_special=False)
            reply = self._script(prompt, request.answer_index)
            written = self._written[request.request_id] = self._tokenizer.encode(reply)
        place = len(request.token_ids)
        logits = np.zeros(self.limits.vocab_size, dtype=np.float32)
        logits[written[place] if place < len(written) else self._end] = _CERTAIN
        return logits

    def forget(self, request: Request) -> None:
        """Drop a request and what was written for it."""
        self._written.pop(request.request_id, None)
        super().forget(request)


def scripted_llm(
    folder: str | Path,
    script: Script,
    *,
    computes: bool = False,
    seconds_per_step: float = 0.0,
    **options: Any,
) -> LLM:
    """Return an engine on a checkpoint (such as a tiny one) that answers by a script; `options` are those of LLM.

    The model is run for prompt logprobs too. `seconds_per_step` makes every step take so long, for tests of time.
    """
    llm = LLM(folder, **options)
    if llm.tokenizer is None:
        raise ValueError(f"{folder} has no tokenizer, which a script needs")
    llm.core = ScriptedCore(llm.core, llm.tokenizer, script, computes=computes, seconds_per_step=seconds_per_step)
    return llm
