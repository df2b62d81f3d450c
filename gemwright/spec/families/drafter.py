"""Gemma 4 drafters: config.json (gemma4_assistant, gemma4_unified_assistant) -> ModelSpec. Facts a.2, e.

A drafter's layers own no K/V (kv_source is None): they read the cache of the target.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gemwright.spec.families.bookkeeping import COMMON, IMAGE_TOKEN_COUNTS, MEDIA_TOKENS
from gemwright.spec.families.gemma4 import PLAIN, UNIFIED, Variant, read_language_model, text_config
from gemwright.spec.families.keys import KeyReader
from gemwright.spec.families.refused import check_architectures
from gemwright.spec.families.shared import MAX_VOCABULARY, MAX_WIDTH
from gemwright.spec.model_spec import DrafterSpec, ModelSpec

IGNORED: Final = COMMON | MEDIA_TOKENS | IMAGE_TOKEN_COUNTS


def read(top: KeyReader) -> ModelSpec:
    """Return the spec of a drafter of E2B, E4B, 26B-A4B or 31B."""
    check_architectures(top, frozenset({"Gemma4AssistantForCausalLM"}))
    return _read(top, PLAIN, default_target_size=1536)


def read_unified(top: KeyReader) -> ModelSpec:
    """Return the spec of the drafter of 12B."""
    check_architectures(top, frozenset({"Gemma4UnifiedAssistantForCausalLM"}))
    return _read(top, UNIFIED, default_target_size=3840)


def _read(top: KeyReader, variant: Variant, default_target_size: int) -> ModelSpec:
    spec = read_language_model(top, text_config(top, variant), variant, drafter=True)
    return replace(spec, drafter=_drafter(top, spec.vocab_size, default_target_size))


def _drafter(top: KeyReader, vocab_size: int, default_target_size: int) -> DrafterSpec:
    target_size = top.integer("backbone_hidden_size", default_target_size, maximum=MAX_WIDTH)
    ordered = top.flag("use_ordered_embeddings", False)
    num_centroids = top.integer("num_centroids", 2048, maximum=MAX_VOCABULARY)
    num_scored = top.integer("centroid_intermediate_top_k", 32, maximum=MAX_VOCABULARY)
    if not ordered:
        return DrafterSpec(target_size, None, None)
    if vocab_size % num_centroids:
        raise top.refusal("num_centroids", "does not divide the vocabulary", limit=f"a divisor of {vocab_size}")
    if num_scored > num_centroids:
        raise top.refusal("centroid_intermediate_top_k", "is more than num_centroids", limit=num_centroids)
    return DrafterSpec(target_size, num_centroids, num_scored)
