"""What a load test asks: random words of about the length asked for, or the prompts of a file.

No tokenizer is needed: a server counts the tokens of two short prompts, and from them follows how many words make up
the length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gemwright.bench.client import Prompt
from gemwright.errors import CheckpointError, RequestError

# All of four letters, so that they take as many tokens each by bytes, and by any larger vocabulary one.
_TEXT: Final = """
able area army away baby back ball bank base bath bear beat bell best bird blue boat body bone book born
both burn busy call calm camp card care case cent city club coal coat code cold come cook cool copy corn
cost dark data date dead deal deep desk door down draw drop dust duty each east easy edge face fact fair
fall farm fast film find fine fire fish flat food foot form free full game gate gift girl give glad gold
good grow hair half hall hand hard head hear heat help here high hill hold home hope hour idea iron join
jump keep king know lake land last late lead leaf left life lift like line list live long look loss love
main make many mark meat meet milk mind moon more move much name near neck need news nine nose note open
page pair park part path play poor rain read real rest rice rich ride ring rise road rock roof room root
rope rule safe salt sand seat seed sell send ship shoe shop show side sign silk sing size skin snow soft
soil song soon star stay step stop sure tail take talk tall tell term test time town tree turn wait walk
wall warm wash wave weak west wide wild wind wine wing wise wish wood word work year
"""
_WORDS: Final = tuple(_TEXT.split())

FEW_WORDS: Final = 8
MORE_WORDS: Final = 24
"""Words of the two prompts whose tokens the server counts."""


@dataclass(frozen=True, slots=True)
class WordTokens:
    """How many tokens a server makes of words: `fixed`, of control tokens and turns, and `each`."""

    fixed: float
    each: float

    @classmethod
    def from_counts(cls, few_tokens: int, more_tokens: int) -> WordTokens:
        """Return it from the tokens of FEW_WORDS and of MORE_WORDS. Raises RequestError where they make no sense."""
        each = (more_tokens - few_tokens) / (MORE_WORDS - FEW_WORDS)
        if each <= 0:
            raise RequestError(
                "the server's count of prompt tokens does not grow with the prompt",
                value=f"{few_tokens} tokens for {FEW_WORDS} words, {more_tokens} for {MORE_WORDS}",
                remedy="use --dataset-name custom",
            )
        return cls(few_tokens - each * FEW_WORDS, each)

    def num_words(self, num_tokens: int) -> int:
        """Return how many words are nearest to a length in tokens. Raises RequestError where one is too many."""
        if num_tokens < self.fixed + self.each:
            raise RequestError(
                "--random-input-len",
                value=num_tokens,
                limit=f"at least {self.fixed + self.each:.0f}, which this server makes of one word",
            )
        return max(1, round((num_tokens - self.fixed) / self.each))


def random_prompt(num_words: int, seed: int, index: int) -> str:
    """Return words that differ from those of every other index and seed."""
    places = np.random.default_rng([seed, 0, index]).integers(0, len(_WORDS), num_words)
    return " ".join(_WORDS[place] for place in places)


def random_prompts(count: int, num_words: int, output_len: int, seed: int, *, first: int = 0) -> list[Prompt]:
    """Return prompts of random words, those with the numbers from `first` on."""
    return [Prompt(random_prompt(num_words, seed, first + index), output_len) for index in range(count)]


def read_custom(path: Path, output_len: int | None) -> list[Prompt]:
    """Return the prompts of JSON lines: `{"prompt": text, "output_tokens": count}`, the count only where `output_len`
    is None. Raises RequestError for what is missing, CheckpointError for a file that cannot be read."""
    prompts = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        content = _parsed(line, f"{path}, line {number}")
        text = content.get("prompt") if isinstance(content, dict) else None
        if not isinstance(text, str) or not text:
            raise RequestError(f"{path}, line {number}: no prompt", value=line[:80], limit='{"prompt": text}')
        length = output_len if output_len is not None else content.get("output_tokens")
        if type(length) is not int or length < 1:
            raise RequestError(
                f"{path}, line {number}: no length of the answer",
                value=length,
                limit='"output_tokens": at least 1',
                remedy="add it to every line, or give --custom-output-len",
            )
        prompts.append(Prompt(text, length))
    return prompts


def read_sharegpt(path: Path, output_len: int) -> list[Prompt]:
    """Return the first question of each conversation of a ShareGPT file, a list of `{"conversations": [{"from",
    "value"}, ...]}`. Raises as `read_custom`."""
    content = _parsed(_read(path), str(path))
    if not isinstance(content, list):
        raise RequestError(f"{path}: no list of conversations", remedy="give a file in the form of ShareGPT")
    return [Prompt(text, output_len) for text in _questions(path, content)]


def _questions(path: Path, conversations: list[Any]) -> Iterator[str]:
    for number, found in enumerate(conversations):
        turns = found.get("conversations") if isinstance(found, dict) else None
        if not isinstance(turns, list) or any(not isinstance(turn, dict) for turn in turns):
            raise RequestError(f"{path}, entry {number}: no conversations", value=str(found)[:80])
        asked = [turn.get("value") for turn in turns if turn.get("from") in ("human", "user")]
        if asked and isinstance(asked[0], str) and asked[0]:
            yield asked[0]


def choose(prompts: list[Prompt], count: int, seed: int, path: Path) -> list[Prompt]:
    """Return so many of the prompts, in an order by the seed; none twice, since a prefix cache would answer for it."""
    if count > len(prompts):
        raise RequestError(
            "--num-prompts", value=count, limit=f"{len(prompts)}, which {path} holds", remedy="ask for fewer"
        )
    order = np.random.default_rng([seed, 2]).permutation(len(prompts))[:count]
    return [prompts[place] for place in order]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise CheckpointError("the prompts cannot be read", value=f"{path}: {reason}") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RequestError(f"{where}: no JSON", value=str(error)[:80], remedy="correct the file") from error
