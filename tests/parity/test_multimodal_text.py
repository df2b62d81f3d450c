"""Multimodal checkpoints used for text: written by transformers with their towers, in both name layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gemwright import LLM
from gemwright.testing import TINY_CONFIGS
from gemwright.testing.logits import compute_logits
from tests.parity.oracle import TOLERANCE, logit_error

GEMMA3_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 24,
    "image_size": 28,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "patch_size": 14,
    "vision_use_head": False,
}
GEMMA4_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "global_head_dim": 12,
    "position_embedding_size": 32,
    "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
    "use_clipped_linears": True,
}


def text_config(name: str) -> dict[str, Any]:
    return {key: value for key, value in TINY_CONFIGS[name].items() if key not in ("architectures", "torch_dtype")}


CONFIGS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": 300,
        "eoi_token_index": 301,
        "image_token_index": 302,
        "mm_tokens_per_image": 4,
        "text_config": text_config("gemma3-linear"),
        "vision_config": GEMMA3_VISION,
    },
    "gemma4": {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "audio_config": None,
        "audio_token_id": 400,
        "boa_token_id": 401,
        "boi_token_id": 402,
        "eoa_token_id": 403,
        "eoi_token_id": 404,
        "image_token_id": 405,
        "video_token_id": 406,
        "text_config": text_config("gemma4-e"),
        "tie_word_embeddings": True,
        "vision_config": GEMMA4_VISION,
        "vision_soft_tokens_per_image": 4,
    },
}


@pytest.mark.parametrize("layout", ["as-written", "other-names"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_text_of_a_multimodal_checkpoint(family: str, layout: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[family]))
    torch.manual_seed(5)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    model_class = getattr(transformers, CONFIGS[family]["architectures"][0])
    model = model_class._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
    model.save_pretrained(tmp_path)
    if layout == "other-names":
        rename_to_other_layout(tmp_path / "model.safetensors")
    llm = LLM(tmp_path, dtype="float32", max_model_len=256, max_num_seqs=2)
    assert any("vision" in note for note in llm.engine.notes), "what was skipped is said"
    ids = np.random.default_rng(2).integers(3, 300, 90).tolist()
    with torch.inference_mode():
        reference = (
            model(torch.tensor([ids]), token_type_ids=torch.zeros(1, 90, dtype=torch.int64))
            if (family == "gemma3")
            else model(torch.tensor([ids]))
        )
    assert logit_error(compute_logits(llm, [ids])[0], reference.logits[0].numpy()) < TOLERANCE


def rename_to_other_layout(path: Path) -> None:
    """Give the tensors the other spelling that files carry: language_model.model.* or model.language_model.*, towers
    without or with the leading model. (facts g.2)."""
    tensors = load_file(path)
    published = any(name.startswith("language_model.model.") for name in tensors)
    renamed = {}
    for name, tensor in tensors.items():
        if published:
            other = "model." + name.replace("language_model.model.", "language_model.", 1)
        else:
            other = name.removeprefix("model.").replace("language_model.", "language_model.model.", 1)
        renamed[other] = tensor
    assert not set(renamed) & set(tensors)
    save_file(renamed, path, metadata={"format": "pt"})
