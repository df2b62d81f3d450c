"""Which model is this? config.json and GGUF metadata -> ModelSpec; the only place that reads either.

A new family is one file beside these and one line in a table below: `CONFIG_READERS` for config.json,
`gguf.ARCHITECTURES` for GGUF. A key that no reader asks for and no list in bookkeeping.py names is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gemwright.spec.families import drafter, gemma2, gemma3, gemma4
from gemwright.spec.families.bookkeeping import refuse_changed_library_keys
from gemwright.spec.families.gguf import read_gguf_metadata
from gemwright.spec.families.keys import KeyReader
from gemwright.spec.families.quantized import quantization_label, without_quantization
from gemwright.spec.families.refused import refuse_quantization, refuse_type
from gemwright.spec.model_spec import ModelSpec

__all__ = ["CONFIG_READERS", "ConfigReader", "quantization_label", "read_config", "read_gguf_metadata"]


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """How one model_type is read, and which keys at the top of its config change no result."""

    read: Callable[[KeyReader], ModelSpec]
    ignored: frozenset[str]
    can_answer: bool = True
    """False for drafters, which are read but not run."""


CONFIG_READERS: Final[Mapping[str, ConfigReader]] = {
    "gemma2": ConfigReader(gemma2.read, gemma2.IGNORED),
    "gemma3_text": ConfigReader(gemma3.read_text, gemma3.IGNORED_TEXT),
    "gemma3": ConfigReader(gemma3.read_multimodal, gemma3.IGNORED_MULTIMODAL),
    "gemma4_text": ConfigReader(gemma4.read_text, gemma4.IGNORED_TEXT),
    "gemma4": ConfigReader(gemma4.read_multimodal, gemma4.IGNORED_MULTIMODAL),
    "gemma4_unified_text": ConfigReader(gemma4.read_unified_text, gemma4.IGNORED_TEXT),
    "gemma4_unified": ConfigReader(gemma4.read_unified_multimodal, gemma4.IGNORED_MULTIMODAL),
    "gemma4_assistant": ConfigReader(drafter.read, drafter.IGNORED, can_answer=False),
    "gemma4_unified_assistant": ConfigReader(drafter.read_unified, drafter.IGNORED, can_answer=False),
}


def read_config(
    config: Mapping[str, Any],
    *,
    source: str = "config.json",
    allow_unknown_keys: bool = False,
    allow_quantized: bool = False,
) -> ModelSpec:
    """Return the spec that a config.json describes, in the published spelling or in that of transformers 5.24.

    `source` names the file in messages. `allow_unknown_keys` leaves keys that nobody knows out of account instead of
    refusing them. `allow_quantized` does so with the sections that say how the weights are quantized, for those who
    only want the shapes (`quantization_label` tells what they say). Raises UnsupportedError for models, options and
    values that cannot be run, naming the key, and CheckpointError where a key that is needed is missing.
    """
    probe = KeyReader(config, source=source)
    model_type = probe.text("model_type")
    if model_type is None:
        raise probe.missing("model_type")
    reader = CONFIG_READERS.get(model_type)
    if reader is None:
        can_answer = [name for name, known in CONFIG_READERS.items() if known.can_answer]
        raise refuse_type(source, "model_type", model_type, can_answer)
    if allow_quantized:
        config = without_quantization(config)
    top = KeyReader(config, source=source, ignored=reader.ignored | {"model_type"})
    refuse_quantization(top)
    refuse_changed_library_keys(top)
    spec = reader.read(top)
    top.finish(allow_unknown_keys=allow_unknown_keys)
    return spec
