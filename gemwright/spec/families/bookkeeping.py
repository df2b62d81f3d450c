"""The written list of config keys that change no result of a forward pass, and of keys that may hold one value only.

Refuses to hold any key that some family reads: a key on this list is never looked at.
"""

from __future__ import annotations

from typing import Final

from gemwright.spec.families.keys import KeyReader

_LIBRARY: Final = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "attn_implementation",
        "chunk_size_feed_forward",
        "experts_implementation",
        "finetuning_task",
        "id2label",
        "is_decoder",
        "label2id",
        "name_or_path",
        "output_attentions",
        "output_hidden_states",
        "prefix",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "tf_legacy_loss",
        "tokenizer_class",
        "torchscript",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    }
)
"""What transformers (4.42 to 5.24) and common tools write about themselves."""

_TRAINING: Final = frozenset({"attention_dropout", "initializer_range"})
"""What matters while training only."""

_GENERATION: Final = frozenset(
    {
        "bad_words_ids",
        "begin_suppress_tokens",
        "cache_implementation",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    }
)
"""Old homes of generation settings; those count from generation_config.json and the request alone."""

COMMON: Final = _LIBRARY | _TRAINING | _GENERATION
"""Ignored at every level of a config."""

MEDIA_TOKENS: Final = frozenset(
    {
        "audio_token_id",
        "boa_token_id",
        "boa_token_index",
        "boi_token_id",
        "boi_token_index",
        "eoa_token_id",
        "eoa_token_index",
        "eoi_token_id",
        "eoi_token_index",
        "image_token_id",
        "image_token_index",
        "video_token_id",
    }
)
"""Ids of image, audio and video tokens at the top of multimodal configs: no text result depends on them."""

IMAGE_TOKEN_COUNTS: Final = frozenset({"mm_tokens_per_image", "vision_soft_tokens_per_image"})
"""How many tokens an image fills, as Gemma 3 and Gemma 4 spell it; each family reads its own spelling and ignores the
other."""

GGUF: Final = frozenset({"rope.scaling.finetuned", "rope.scaling.original_context_length"})
"""GGUF keys (after the architecture) that note how a model was trained."""


def refuse_changed_library_keys(keys: KeyReader) -> None:
    """Refuse library keys that are noise at one value and another model at any other."""
    for name in ("add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"):
        keys.allow_only(name, False, remedy="Gemwright runs decoder-only models")
    keys.allow_only("cross_attention_hidden_size")
    keys.allow_only("pruned_heads", {}, remedy="use a checkpoint whose heads were not pruned")
