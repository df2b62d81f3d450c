"""Chooses a token from one row of logits, and reads logprobs off it.

The order: logit bias; repetition, presence and frequency penalties; forbidden ids, those not allowed and those that a
constraint excludes go to -inf; then greedy, or top-k, temperature, min-p, top-p and a seeded draw. Logprobs are read
off the row as the model gave it.

Plain numpy on one row, so that a choice depends on its own request alone. Defines what faster samplers must equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemwright.engine.request import CONSTRAINT_FIELDS, SamplingParams, TokenLogprob
from gemwright.errors import GemwrightError, RequestError

Logits = NDArray[np.float32]

FIRST_SORTED = 64
"""How many of the most likely tokens top-p sorts at first."""


def choose_token(
    logits: Logits,
    params: SamplingParams,
    *,
    seed: int,
    answer_index: int,
    prompt_token_ids: Sequence[int],
    token_ids: Sequence[int],
    forbidden: Sequence[int] = (),
    mask: NDArray[np.bool_] | None = None,
) -> int:
    """Return the next token of an answer whose tokens so far are `token_ids`.

    The same seed, answer and place give the same random number, whatever runs beside it. `forbidden` ids (stop ids
    before min_tokens, the last ones of bad words) are never chosen, nor are those that the `mask` of a constraint does
    not allow. Raises GemwrightError when the logits are not finite, RequestError when no token may be chosen.
    """
    _require_finite(logits)
    scores = _penalize(_add_bias(logits, params), params, prompt_token_ids, token_ids)
    scores = _mask(scores, params, forbidden, mask)
    if params.temperature == 0:
        return int(scores.argmax())
    candidates, probabilities = _candidates(scores, params)
    cumulative = probabilities.cumsum()
    point = _uniform(seed, answer_index, len(token_ids)) * cumulative[-1]
    return int(candidates[min(int(cumulative.searchsorted(point, side="right")), len(candidates) - 1)])


def best_logprobs(logits: Logits, count: int, chosen: int) -> tuple[TokenLogprob, ...]:
    """Return the `count` most likely tokens, best first (equal ones by rising id), and the chosen one after them if it
    is not among them. Raises GemwrightError when the logits are not finite."""
    _require_finite(logits)
    candidates = np.flatnonzero(logits >= _kth_largest(logits, count)) if count else np.empty(0, dtype=np.int64)
    normalizer = log_sum_exp(logits)
    ids = [int(token_id) for token_id in _ordered(logits, candidates)[:count]]
    if chosen not in ids:
        ids.append(chosen)
    return tuple(TokenLogprob(token_id, float(logits[token_id]) - normalizer) for token_id in ids)


def log_sum_exp(logits: Logits) -> float:
    """Return log(sum(exp(logits))) in float64."""
    wide = logits.astype(np.float64)
    highest = wide.max()
    return float(highest + np.log(np.exp(wide - highest).sum()))


def _penalize(
    logits: Logits, params: SamplingParams, prompt_token_ids: Sequence[int], token_ids: Sequence[int]
) -> Logits:
    """Apply the repetition penalty (prompt and answer) and presence and frequency penalties (answer alone)."""
    if params.repetition_penalty == 1 and params.presence_penalty == 0 and params.frequency_penalty == 0:
        return logits
    scores = logits.copy()
    if params.repetition_penalty != 1:
        seen = np.unique(np.asarray([*prompt_token_ids, *token_ids], dtype=np.int64))
        values = scores[seen]
        scores[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if token_ids:
        used, counts = np.unique(np.asarray(token_ids), return_counts=True)
        penalties = params.presence_penalty + params.frequency_penalty * counts
        scores[used] -= penalties.astype(np.float32)
    return scores


def _add_bias(logits: Logits, params: SamplingParams) -> Logits:
    if not params.logit_bias:
        return logits
    scores = logits.copy()
    biases = params.biases
    scores[list(biases)] += np.array(list(biases.values()), dtype=np.float32)
    return scores


def _mask(scores: Logits, params: SamplingParams, forbidden: Sequence[int], mask: NDArray[np.bool_] | None) -> Logits:
    """Return scores with -inf for what may not be chosen."""
    if params.allowed_token_ids is not None:
        allowed = list(params.allowed_token_ids)
        masked = np.full_like(scores, -np.inf)
        masked[allowed] = scores[allowed]
        scores = masked
    if mask is not None:
        scores = np.where(mask, scores, np.float32(-np.inf))
    if len(forbidden):
        scores = scores.copy()
        scores[list(forbidden)] = -np.inf
    elif params.allowed_token_ids is None and mask is None:
        return scores
    if scores.max() == -np.inf:
        named = ("min_tokens", "bad_words", "allowed_token_ids", *CONSTRAINT_FIELDS)
        raise RequestError(
            "every token is a stop id before min_tokens, ends a bad word, or is not allowed",
            value=", ".join(name for name in named if getattr(params, name)) or None,
            remedy="name fewer stop_token_ids or bad_words, more allowed_token_ids, set min_tokens to 0, or leave the "
            "constraint out",
        )
    return scores


def _candidates(scores: Logits, params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ids that may be chosen and their probabilities, not normalized: by rising id, with top_p most likely
    first. Scores that equal the k-th best all stay; top_p keeps the fewest ids whose probabilities reach it."""
    ids = np.flatnonzero(scores > -np.inf)
    if 0 < params.top_k < len(ids):
        ids = np.flatnonzero(scores >= _kth_largest(scores, params.top_k))
    scaled = scores[ids].astype(np.float64)
    with np.errstate(over="ignore"):  # at a tiny temperature all but the best may go to -inf
        probabilities = np.exp((scaled - scaled.max()) / params.temperature)
    if params.min_p > 0:
        keep = probabilities >= params.min_p
        ids, probabilities = ids[keep], probabilities[keep]
    if params.top_p < 1:
        return _most_likely(ids, probabilities, params.top_p)
    return ids, probabilities


def _most_likely(
    ids: NDArray[np.int64], probabilities: NDArray[np.float64], top_p: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the fewest ids whose probabilities reach top_p, most likely first, equal ones by rising id.

    Sorts only as many of the largest as it needs: the sums are those of a full sort, bit for bit.
    """
    total = probabilities.sum()
    num_sorted = FIRST_SORTED
    while True:
        most = np.arange(len(ids))
        if num_sorted < len(ids):
            most = np.flatnonzero(probabilities >= np.partition(probabilities, -num_sorted)[-num_sorted])
        most = most[np.argsort(-probabilities[most], kind="stable")]
        reached = np.cumsum(probabilities[most] / total)
        if reached[-1] >= top_p or len(most) == len(ids):
            kept = most[: int(reached.searchsorted(top_p, side="left")) + 1]
            return ids[kept], probabilities[kept]
        num_sorted *= 8


def _require_finite(logits: Logits) -> None:
    if not np.isfinite(logits).all():
        raise GemwrightError(
            "the model's logits are not finite", remedy="use --dtype float32 or check the checkpoint's weights"
        )


def _kth_largest(scores: Logits, count: int) -> np.float32:
    if count >= len(scores):
        return np.float32(-np.inf)
    return np.float32(np.partition(scores, len(scores) - count)[len(scores) - count])


def _ordered(scores: Logits, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ids by falling score, equal scores by rising id."""
    return ids[np.lexsort((ids, -scores[ids]))]


def _uniform(seed: int, answer_index: int, place: int) -> float:
    """Return the random number in [0, 1) of one place of one answer: the upper 53 bits of the first of the four words
    of Philox4x64-10 keyed by (seed, answer_index) at counter place + 1, which is numpy's first after `place`."""
    bits = np.random.Philox(key=np.array([seed, answer_index], dtype=np.uint64), counter=place)
    return float(np.random.Generator(bits).random())
