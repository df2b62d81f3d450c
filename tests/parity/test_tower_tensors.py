"""The tensors of towers against transformers' own classes, built on the meta device: names, shapes, buffers."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from transformers import AutoConfig

from gemwright.spec.families import read_config
from gemwright.spec.weights import count_all_parameters, list_tower_tensors
from tests.published_configs import config_path, load_config

LANGUAGE_MODEL = ("model.language_model.", "lm_head.")
# What transformers renames when it loads a published file (facts g.2, g.3).
RENAMED = (
    (r"^vision_tower\.vision_model\.", "vision_tower."),
    (r"^vision_embedder\.", "embed_vision."),
)
UNIFIED = (r"^embed_vision\.embedding_projection\.", "embed_vision.multimodal_embedder.embedding_projection.")


def as_in_memory(name: str, *, unified: bool) -> str:
    for pattern, replacement in (*RENAMED, *((UNIFIED,) if unified else ())):
        name = re.sub(pattern, replacement, name)
    return f"model.{name}"


@pytest.mark.parametrize("name", ["gemma-3-4b-it", "gemma-4-E2B-it", "gemma-4-12B-it", "gemma-4-31B-it"])
def test_tower_tensors_are_those_of_the_reference_class(name: str):
    config = AutoConfig.from_pretrained(config_path(name))
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    parameters = dict(model.named_parameters())
    theirs = {
        key: (tuple(tensor.shape), key not in parameters)
        for key, tensor in model.state_dict().items()
        if not key.startswith(LANGUAGE_MODEL)
    }
    spec = read_config(load_config(name))
    unified = config.model_type == "gemma4_unified"
    ours = {
        as_in_memory(tensor.name, unified=unified): (tensor.shape, tensor.is_buffer)
        for tensor in list_tower_tensors(spec)
    }
    assert ours == theirs
    assert count_all_parameters(spec).num_parameters == sum(tensor.numel() for tensor in parameters.values())


def test_the_default_siglip_has_the_tensors_of_its_class():
    with torch.device("meta"):
        model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig())
    text = load_config("gemma-3-4b-it")["text_config"]
    spec = read_config({"model_type": "gemma3", "text_config": text})
    ours = {
        tensor.name.removeprefix("vision_tower.vision_model."): tensor.shape
        for tensor in list_tower_tensors(spec)
        if tensor.name.startswith("vision_tower.")
    }
    assert ours == {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
