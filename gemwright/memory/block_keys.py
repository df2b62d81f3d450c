"""Names for the content of K/V blocks: a chain of hashes over everything that the keys and values depend on.

A block's key covers its own tokens and, through its parent's key, all tokens before it, the salt, and the content of
media. Two blocks with one key hold the same bits, whoever computed them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Positions begin..end whose embeddings come from media: same token ids, other content. Never cut by a hit,
    since its positions may see each other in both directions."""

    begin: int
    end: int
    content_hash: bytes


def root_key(salt: str | None) -> bytes:
    """Return the key before the first block; requests with different salts share nothing."""
    return blake2b(b"gemwright" if salt is None else b"salt:" + salt.encode(), digest_size=KEY_BYTES).digest()


def extend_block_keys(
    keys: list[bytes],
    token_ids: Sequence[int],
    block_size: int,
    root: bytes,
    media: Sequence[MediaSpan] = (),
) -> None:
    """Append to `keys` the key of every full block of `token_ids` that it does not cover yet."""
    for block in range(len(keys), len(token_ids) // block_size):
        begin, end = block * block_size, (block + 1) * block_size
        digest = blake2b(keys[-1] if keys else root, digest_size=KEY_BYTES)
        digest.update(array("i", token_ids[begin:end]).tobytes())
        for span in media:
            if span.begin < end and span.end > begin:
                digest.update(f"{span.begin}:{span.end}:".encode() + span.content_hash)
        keys.append(digest.digest())


def uncut_length(num_tokens: int, block_size: int, media: Sequence[MediaSpan]) -> int:
    """Return the longest length up to `num_tokens` that is whole blocks and ends inside no media span."""
    length = num_tokens // block_size * block_size
    while any(span.begin < length < span.end for span in media):
        length -= block_size
    return length
