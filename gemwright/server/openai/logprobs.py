"""Log probabilities in the two shapes of OpenAI: of chat completions, and of text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemwright.engine.request import TokenLogprob
from gemwright.text.tokenizer import Tokenizer

Entry = tuple[TokenLogprob, ...]

LEAST_LOGPROB = -9999.0
"""JSON has no infinity: a token that could not come has this, as in vLLM."""


def token_text(tokenizer: Tokenizer | None, token_id: int) -> tuple[str, list[int]]:
    """Return a token as text, and its bytes; without a tokenizer its number."""
    if tokenizer is None:
        return f"token_id:{token_id}", []
    if tokenizer.is_special(token_id):
        text = tokenizer.id_to_token(token_id) or ""
        return text, list(text.encode())
    content = tokenizer.token_bytes(token_id)
    return content.decode("utf-8", errors="replace"), list(content)


def chat_logprobs(tokenizer: Tokenizer | None, token_ids: Sequence[int], entries: Sequence[Entry], num_top: int) -> Any:
    """Return the `logprobs` object of a chat's choice for some of its tokens."""
    content = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        chosen = next(item for item in entry if item.token_id == token_id)
        content.append(
            {
                **_token(tokenizer, chosen),
                "top_logprobs": [_token(tokenizer, item) for item in entry[:num_top]],
            }
        )
    return {"content": content, "refusal": None}


def text_logprobs(
    tokenizer: Tokenizer | None, token_ids: Sequence[int], entries: Sequence[Entry | None], num_top: int, offset: int
) -> dict[str, Any]:
    """Return the `logprobs` object of a text completion; `offset` is the place of the first token in the text.

    An entry of None is that of the first token of a prompt, which nothing predicts.
    """
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        text, _ = token_text(tokenizer, token_id)
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
        if entry is None:
            values.append(None)
            tops.append(None)
            continue
        values.append(_finite(next(item.logprob for item in entry if item.token_id == token_id)))
        tops.append({token_text(tokenizer, item.token_id)[0]: _finite(item.logprob) for item in entry[:num_top]})
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def prompt_logprobs(tokenizer: Tokenizer | None, entries: Sequence[Entry | None] | None) -> Any:
    """Return vLLM's `prompt_logprobs`: for each token of the prompt the best ids with their logprobs."""
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {
            str(item.token_id): {
                "logprob": _finite(item.logprob),
                "rank": None,
                "decoded_token": token_text(tokenizer, item.token_id)[0],
            }
            for item in entry
        }
        for entry in entries
    ]


def _token(tokenizer: Tokenizer | None, item: TokenLogprob) -> dict[str, Any]:
    text, content = token_text(tokenizer, item.token_id)
    return {"token": text, "logprob": _finite(item.logprob), "bytes": content}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
