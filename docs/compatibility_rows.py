"""What docs/compatibility.md says, row by row, and for every row how to see that it is so.

A row that is refused holds the call that refuses, and its reason and remedy are taken from the error. A row that works
holds what tests/end_to_end/test_compatibility.py runs. Rows come from the declarations of the package where it has
any, so that a new entry there is a new row here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemwright.config import DEVICES, DTYPES, KERNELS, MAX_BLOCK_SIZE, MAX_THREADS, REFUSED_DTYPES, EngineConfig
from gemwright.errors import GemwrightError
from gemwright.loading.checkpoint import open_checkpoint
from gemwright.loading.encodings import GGML_ENCODINGS, SAFETENSORS_ENCODINGS
from gemwright.ops.backends import BACKENDS
from gemwright.spec.families import read_config, read_gguf_metadata
from gemwright.spec.families.refused import REFUSED_CLASSES, REFUSED_MODELS, RefusedModel
from gemwright.testing import TINY_CONFIGS

Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of a table.

    It is refused where `refusal` is given, not there where flags are `absent`, and works otherwise.
    """

    name: str
    note: str = ""
    """How far it works, or what stands in its place."""
    refusal: Call | None = None
    """A call that raises what a user would see."""
    absent: tuple[str, ...] = ()
    """Flags (and verbs, without dashes) that do not exist, and must not exist while this row stands."""
    config: Mapping[str, Any] | None = None
    """The config.json of a tiny model that shows that it works."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that show it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Engine options that show it."""

    @property
    def state(self) -> str:
        """works, refused or not there."""
        return "refused" if self.refusal is not None else "not there" if self.absent else "works"

    def error(self) -> GemwrightError:
        """Return the error of a refused row; AssertionError where nothing refuses."""
        assert self.refusal is not None
        try:
            self.refusal()
        except GemwrightError as error:
            return error
        raise AssertionError(f"{self.name} is not refused")


# Configs of tiny models as they are published.


def text_part(name: str) -> dict[str, Any]:
    """Return a tiny config as it stands inside a multimodal one."""
    return {key: value for key, value in TINY_CONFIGS[name].items() if key != "architectures"}


def multimodal(model_type: str, architecture: str, name: str, **towers: str) -> dict[str, Any]:
    """Return a multimodal config around a tiny one; `towers` names the model_type of each."""
    configs = {tower: {"model_type": kind} for tower, kind in towers.items()}
    text = text_part(name)
    return {"model_type": model_type, "architectures": [architecture], "text_config": text, **configs}


GEMMA3_MULTIMODAL = multimodal(
    "gemma3", "Gemma3ForConditionalGeneration", "gemma3-linear", vision_config="siglip_vision_model"
)
GEMMA4_TOWERS = {"vision_config": "gemma4_vision", "audio_config": "gemma4_audio"}
UNIFIED_TOWERS = {"vision_config": "gemma4_unified_vision", "audio_config": "gemma4_unified_audio"}

TEXT_ONLY = "text; image tensors are left out, and a line says so"

FAMILIES = (
    Row("Gemma 2: 2B, 9B, 27B", config=TINY_CONFIGS["gemma2"]),
    Row("Gemma 3: 270M, 1B", config=TINY_CONFIGS["gemma3"]),
    Row("Gemma 3: 4B, 12B, 27B", TEXT_ONLY, config=GEMMA3_MULTIMODAL),
    Row(
        "Gemma 4: E2B, E4B",
        "text; image and audio tensors are left out, and a line says so",
        config=multimodal("gemma4", "Gemma4ForConditionalGeneration", "gemma4-e", **GEMMA4_TOWERS),
    ),
    Row(
        "Gemma 4: 12B (unified)",
        "text; image and audio tensors are left out, and a line says so",
        config=multimodal(
            "gemma4_unified", "Gemma4UnifiedForConditionalGeneration", "gemma4-unified", **UNIFIED_TOWERS
        ),
    ),
    Row(
        "Gemma 4: 26B-A4B",
        TEXT_ONLY,
        config=multimodal("gemma4", "Gemma4ForConditionalGeneration", "gemma4-moe", vision_config="gemma4_vision"),
    ),
    Row(
        "Gemma 4: 31B",
        TEXT_ONLY,
        config=multimodal(
            "gemma4", "Gemma4ForConditionalGeneration", "gemma4-k-equals-v", vision_config="gemma4_vision"
        ),
    ),
)

# Models that were made of one of these, by the config.json they come with.
RELATIVES = (
    Row("ShieldGemma (the first, for text)", "is a Gemma 2: it answers Yes or No", config=TINY_CONFIGS["gemma2"]),
    Row("DataGemma, TxGemma", "are Gemma 2", config=TINY_CONFIGS["gemma2"]),
    Row("FunctionGemma", "is a Gemma 3 270M", config=TINY_CONFIGS["gemma3"]),
    Row("MedGemma for text (27B)", "is a Gemma 3", config=TINY_CONFIGS["gemma3-linear"]),
    Row("MedGemma 4B, TranslateGemma", f"are Gemma 3: {TEXT_ONLY}", config=GEMMA3_MULTIMODAL),
    Row("CodeGemma", refusal=lambda: read({"model_type": "gemma", "architectures": ["GemmaForCausalLM"]})),
    Row(
        "EmbeddingGemma as it is published",
        refusal=lambda: read(TINY_CONFIGS["gemma3"] | {"architectures": ["Gemma3TextModel"]}),
    ),
    Row(
        "Gemma 4 drafters (-assistant)",
        refusal=lambda: open_files(
            {"config.json": {"model_type": "gemma4_assistant", "text_config": {"model_type": "gemma4_text"}}},
            must_answer=True,
        ),
    ),
)


def read(config: Mapping[str, Any]) -> object:
    """Read a config.json."""
    return read_config(config)


def read_gguf(**metadata: Any) -> object:
    """Read GGUF metadata: general__architecture stands for general.architecture."""
    named = {key.replace("__", "."): value for key, value in metadata.items()}
    return read_gguf_metadata(named, tensor_shapes={}, rope_freqs=None, source="model.gguf")


def open_files(files: Mapping[str, Any], *, name: str = "", must_answer: bool = False) -> object:
    """Open a folder with these files (or the one called `name`): bytes, or objects that are written as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            (Path(folder) / file).write_bytes(data)
        try:
            return open_checkpoint(Path(folder) / name, must_answer=must_answer)
        except GemwrightError as error:
            error.what = error.what.replace(folder, "the folder")
            error.value = error.value and str(error.value).replace(Path(folder).name, "")
            raise


def refused_model(model: RefusedModel) -> Row:
    """Return the row of a model that is refused by its type."""
    return Row(model.name, refusal=lambda: read({"model_type": model.types[0]}))


BY_TYPE = tuple((refused_model(model), model.types) for model in REFUSED_MODELS)

BY_CLASS = tuple(
    Row(
        f"a class with {entry.part} in its name",
        refusal=lambda entry=entry: read(TINY_CONFIGS["gemma3"] | {"architectures": [f"Some{entry.part}"]}),
    )
    for entry in REFUSED_CLASSES
)

# What a config may not ask for: the config it is changed in, the key, the value.
_CHANGES: tuple[tuple[str, str, str, Any], ...] = (
    ("Another activation", "gemma2", "hidden_activation", "silu"),
    ("Biases in attention", "gemma3", "attention_bias", True),
    ("Attention in both directions", "gemma3", "use_bidirectional_attention", True),
    ("An encoder and a decoder", "gemma3", "is_encoder_decoder", True),
    ("Pruned heads", "gemma3", "pruned_heads", {"0": [1]}),
    ("Layers of another kind", "gemma4-e", "layer_types", ["linear_attention"] * 10),
    ("RoPE scaled by yarn", "gemma3", "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
    ("RoPE scaled by dynamic", "gemma3", "rope_scaling", {"rope_type": "dynamic", "factor": 4.0}),
    ("RoPE scaled by longrope", "gemma3", "rope_scaling", {"rope_type": "longrope", "factor": 4.0}),
    ("RoPE scaled by llama3", "gemma3", "rope_scaling", {"rope_type": "llama3", "factor": 4.0}),
    ("A key that nobody knows", "gemma3", "attention_sink", 4),
)
CHANGES = (
    *(
        Row(name, refusal=lambda tiny=tiny, key=key, value=value: read(TINY_CONFIGS[tiny] | {key: value}))
        for name, tiny, key, value in _CHANGES
    ),
    Row(
        "An image tower of another model",
        refusal=lambda: read(GEMMA3_MULTIMODAL | {"vision_config": {"model_type": "vit"}}),
    ),
    Row("RoPE scaled linearly", "as Gemma 3 from 4B on is", config=TINY_CONFIGS["gemma3-linear"]),
)

QUANTIZATION_METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gemma", "gptq", "torchao")

_CONFIG = TINY_CONFIGS["gemma3"]
FORMATS = (
    Row("Safetensors: one file, or shards with their index", config=_CONFIG),
    Row("GGUF of version 2 or 3: one file, or a split set", "in memory its weights have the dtype that is computed in"),
    Row(
        f"Quantized safetensors ({', '.join(QUANTIZATION_METHODS)} and any other method)",
        refusal=lambda: read(_CONFIG | {"quantization_config": {"quant_method": "gptq"}}),
    ),
    Row("Quantized by MLX", refusal=lambda: read(_CONFIG | {"quantization": {"bits": 4, "group_size": 64}})),
    Row(
        "Pickled weights (.bin, .pt, .pth, .ckpt)",
        refusal=lambda: open_files({"config.json": _CONFIG, "pytorch_model.bin": b""}),
    ),
    Row(
        "Weights of TensorFlow, Flax or ONNX alone",
        refusal=lambda: open_files({"config.json": _CONFIG, "tf_model.h5": b"", "model.onnx": b""}),
    ),
    Row(
        "An adapter (LoRA) without its model",
        refusal=lambda: open_files({"adapter_config.json": {}, "adapter_model.safetensors": b""}),
    ),
    Row(
        "A GGUF adapter",
        refusal=lambda: read_gguf(general__architecture="gemma3", general__type="adapter"),
    ),
    Row("The vision part of a GGUF model (mmproj)", refusal=lambda: read_gguf(general__architecture="clip")),
    Row(
        "GGUF of another byte order",
        refusal=lambda: open_files({"m.gguf": b"GGUF" + (3).to_bytes(4, "big") + bytes(32)}),
    ),
    Row(
        "GGUF of version 1",
        refusal=lambda: open_files({"m.gguf": b"GGUF" + (1).to_bytes(4, "little") + bytes(32)}),
    ),
)

GGUF_READ = tuple(encoding.name for encoding in GGML_ENCODINGS.values() if encoding.readable)
GGUF_REFUSED = tuple(
    encoding.name for encoding in GGML_ENCODINGS.values() if not encoding.readable and not encoding.index
)
SAFETENSORS_READ = tuple(encoding.name for encoding in SAFETENSORS_ENCODINGS.values() if encoding.readable)
SAFETENSORS_REFUSED = tuple(
    encoding.name for encoding in SAFETENSORS_ENCODINGS.values() if not encoding.readable and not encoding.index
)

_DTYPE_NOTES = {
    "auto": "the checkpoint's own; bfloat16 for GGUF, and for float16 checkpoints with a line that says so",
    "float32": "any model; what the tests compare with transformers most strictly",
    "bfloat16": "any model",
}
COMPUTED_IN = (
    *(Row(f"--dtype {name}", _DTYPE_NOTES[name], config=_CONFIG, options={"dtype": name}) for name in DTYPES),
    *(Row(f"--dtype {name}", refusal=lambda name=name: EngineConfig(dtype=name)) for name in REFUSED_DTYPES),
)

_DEVICE_NOTES = {
    "cpu": "any x86-64 or Arm processor",
    "cuda": "an NVIDIA GPU and a torch built for it (cuda:N is one of several); tested where there is one",
}
OTHER_DEVICES = ("mps", "xpu", "tpu")
OTHER_KERNELS = tuple(name for name in ("native", "portable", "avx2", "avx512", "amx") if name not in KERNELS)
DEVICES_AND_KERNELS = (
    *(Row(f"--device {name}", _DEVICE_NOTES[name], options={"device": name}) for name in DEVICES),
    Row(f"--device {', '.join(OTHER_DEVICES)}", refusal=lambda: EngineConfig(device=OTHER_DEVICES[0])),
    *(
        Row(
            f"--kernels {backend.name}",
            f"{backend.what}; {', '.join(backend.devices)}",
            options={"kernels": backend.name},
        )
        for backend in BACKENDS
    ),
    *(
        Row(f"--kernels {', '.join(OTHER_KERNELS)}", refusal=lambda: EngineConfig(kernels=OTHER_KERNELS[0]))
        for _ in OTHER_KERNELS[:1]
    ),
    Row("--block-size", f"powers of two up to {MAX_BLOCK_SIZE}", options={"block_size": MAX_BLOCK_SIZE}),
    Row("--block-size that is no power of two", refusal=lambda: EngineConfig(block_size=24)),
    Row("--threads", f"up to {MAX_THREADS}", options={"threads": 2}),
    Row(f"--threads above {MAX_THREADS}", refusal=lambda: EngineConfig(threads=MAX_THREADS + 1)),
)

FEATURES = (
    Row("Prompts as text or as token ids"),
    Row("Many requests in one step", "no answer changes by a bit with its company"),
    Row("Prefix caching", options={"prefix_caching": True}),
    Row("Several answers to a prompt (--n)", params={"n": 3, "temperature": 1.0, "seed": 5}),
    Row("Repeatable sampling (--seed)", params={"temperature": 0.7, "top_k": 8, "top_p": 0.9, "min_p": 0.1, "seed": 1}),
    Row("Penalties", params={"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5}),
    Row("Log probabilities of the answer", params={"logprobs": 3}),
    Row("Log probabilities of the prompt", params={"prompt_logprobs": 3}),
    Row("Stop texts and stop ids", params={"stop": ("zq",), "stop_token_ids": (7,)}),
    Row("Biased, allowed and bad tokens", params={"logit_bias": {65: 1.5}, "allowed_token_ids": (65, 66, 67, 1)}),
    Row("Answers by JSON schema", params={"json_schema": {"type": "boolean"}, "max_tokens": 16}),
    Row("Answers that are a JSON object", params={"json_object": True, "max_tokens": 64}),
    Row("Answers by regular expression", params={"regex": "[ab]{2}"}),
    Row("Answers out of a list", params={"choice": ("yes", "no"), "max_tokens": 8}),
    Row("Answers by grammar (Lark, GBNF)", params={"grammar": 'root ::= "a" | "b"'}),
    Row(
        "Keys rebuilt from values (--kv-layout v)",
        "where K equals V: 12B, 26B-A4B and 31B of Gemma 4",
        config=TINY_CONFIGS["gemma4-k-equals-v"],
        options={"kv_layout": "v"},
    ),
    Row("Images", "of multimodal models the text part runs", absent=("--image", "--images")),
    Row("Audio", "likewise", absent=("--audio",)),
    Row("Video", "likewise", absent=("--video",)),
    Row("Embeddings", "use an embedding server such as sentence-transformers", absent=("embed", "embeddings")),
    Row("LoRA adapters", "merge them into their model first", absent=("--lora", "--adapter", "--enable-lora")),
    Row("Speculative decoding", "a model alone gives the same tokens", absent=("--draft", "--drafter")),
    Row("Several GPUs for one model", "use one device", absent=("--tensor-parallel-size", "--tp")),
    Row("Layers shared out between CPU and GPU", "use one device", absent=("--n-gpu-layers", "--gpu-layers")),
    Row("A quantized K/V cache", "it has the dtype of the engine", absent=("--kv-cache-dtype", "--cache-type-k")),
    Row("Quantizing while loading", "use a GGUF file that is quantized", absent=("--quantization", "--quantize")),
    Row("Beam search", "use --n", absent=("--num-beams", "--beam-width")),
)
