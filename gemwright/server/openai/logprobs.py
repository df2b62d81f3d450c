"""Log probabilities in the two shapes of OpenAI: of chat completions, and of text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemwright.engine.request import TokenLogprob
from gemwright.text.detokenizer import Detokenizer
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


class TextPlaces:
    """Where tokens begin in the text that they make, a character at which `begin` others stand before it.

    Tokens that share a character begin where it does. Control words are not in the text, unless `control_words`; the
    first `num_hidden` tokens never are. Without a tokenizer there is no text.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, begin: int = 0, *, control_words: bool = False, num_hidden: int = 0
    ) -> None:
        self._decoder = None if tokenizer is None else Detokenizer(tokenizer, skip_special=not control_words)
        self._num_hidden = num_hidden
        self._end = begin
        self._parts: list[str] = []

    def of(self, token_ids: Sequence[int]) -> list[int]:
        """Return the places of the next tokens."""
        places = []
        for token_id in token_ids:
            places.append(self._end)
            if self._num_hidden:
                self._num_hidden -= 1
            elif self._decoder is not None:
                self._add(self._decoder.push([token_id]))
        return places

    def finish(self) -> str:
        """Return the whole text; no token follows."""
        if self._decoder is not None:
            self._add(self._decoder.finish())
        return "".join(self._parts)

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._end += len(text)


def shown(entry: Entry | None, num_top: int, chosen: int) -> Entry | None:
    """Return the `num_top` likeliest tokens of an entry, and the one that came; an entry may hold more."""
    if entry is None:
        return None
    return tuple(item for place, item in enumerate(entry) if place < num_top or item.token_id == chosen)


def text_logprobs(
    tokenizer: Tokenizer | None,
    token_ids: Sequence[int],
    entries: Sequence[Entry | None],
    num_top: int,
    offsets: Sequence[int],
) -> dict[str, list[Any]]:
    """Return the `logprobs` object of a text completion; `offsets` are the places of the tokens in the text.

    An entry of None is that of the first token of a prompt, which nothing predicts.
    """
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        best = shown(entry, num_top, token_id)
        if best is None:
            values.append(None)
            tops.append(None)
            continue
        values.append(_finite(next(item.logprob for item in best if item.token_id == token_id)))
        # Of tokens with one text, such as parts of characters, the likeliest stands for all: it is the last one here.
        tops.append({token_text(tokenizer, item.token_id)[0]: _finite(item.logprob) for item in reversed(best)})
    tokens = [token_text(tokenizer, token_id)[0] for token_id in token_ids]
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": list(offsets)}


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
