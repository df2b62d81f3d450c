"""Opens a model: a folder with config.json and safetensors, or GGUF -> its spec and a source for each of its tensors.

Reads headers only; a tensor's values are read when a source is asked for rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gemwright.errors import CheckpointError
from gemwright.loading.gguf import GgufCheckpoint, open_gguf, part_paths
from gemwright.loading.gguf_header import GgufMetadata
from gemwright.loading.json_files import read_json_object
from gemwright.loading.matching import Match, match_gguf, match_safetensors
from gemwright.loading.safetensors import (
    ADAPTER_NAME,
    PICKLED_SUFFIXES,
    SafetensorsCheckpoint,
    adapter_alone,
    open_safetensors,
    pickled_weights,
)
from gemwright.loading.sources import OffsetSource, StackedSource
from gemwright.loading.stored_tensor import StoredTensor
from gemwright.spec.families import read_config, read_gguf_metadata
from gemwright.spec.families.refused import refuse_drafter
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.tensor_source import TensorSource
from gemwright.spec.weights import TensorSpec, list_tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_COMPARED_BYTES = 16 << 20
ROPE_FREQS = "rope_freqs.weight"
_ROPE_FREQS_LIMIT = 1 << 16
_TOKEN_ARRAYS = ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
_SUPPRESS_TOKENS = "tokenizer.ggml.suppress_tokens"
# How GGUF spells what generation_config.json holds.
_SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk, opened and checked: every tensor of `spec` is there, once, in its shape."""

    spec: ModelSpec
    format: Literal["safetensors", "gguf"]
    folder: Path
    """Where the files of the model lie, the tokenizer's among them."""
    files: SafetensorsCheckpoint | GgufCheckpoint
    generation_config: Mapping[str, Any]
    """The model's generation defaults, in the names of generation_config.json; from GGUF what its metadata says."""
    match: Match
    notes: list[str] = field(default_factory=list)
    """What was set aside on the way, one sentence each, to be shown to the user."""

    @property
    def gguf_metadata(self) -> GgufMetadata | None:
        """The metadata of a GGUF file, None for safetensors."""
        return self.files.metadata if isinstance(self.files, GgufCheckpoint) else None

    @property
    def stored_dtype(self) -> str | None:
        """The checkpoint's own dtype as its config names it, else that of its embedding table; None for GGUF."""
        if self.format == "gguf":
            return None
        return self.spec.stored_dtype or self.match.tensors["embedding"][0].encoding

    def sources(self) -> dict[str, TensorSource]:
        """Return a source for every name of spec.weights.list_tensors, with the values a safetensors file would hold.

        Raises CheckpointError for an lm_head that differs from the table it should be tied to.
        """
        if self.match.spare_head is not None:
            self._drop_head(self.match.spare_head, self.match.tensors["embedding"][0])
        return {tensor.name: self._source(tensor) for tensor in list_tensors(self.spec)}

    def encodings(self) -> dict[str, str]:
        """Return the encoding of every one of `sources`, from headers alone: what a plan asks for."""
        return {tensor.name: self._source(tensor).encoding for tensor in list_tensors(self.spec)}

    def release(self) -> None:
        """Drop the pages of all files from the resident set."""
        self.files.release()

    def _source(self, tensor: TensorSpec) -> TensorSource:
        parts = self.match.tensors[tensor.name]
        if len(parts) > 1:
            return StackedSource(parts)
        if self.format == "gguf" and tensor.gguf_offset:
            return OffsetSource(parts[0], tensor.gguf_offset)
        return parts[0]

    def _drop_head(self, head: StoredTensor, table: StoredTensor) -> None:
        row = _first_different_row(head, table)
        if row is not None:
            raise CheckpointError(
                f"{head.describe()} differs from the embedding table, to which the config ties it",
                value=row,
                remedy="set tie_word_embeddings to false in config.json if the model was trained so",
            )
        note = f"dropped {head.name}, which equals the embedding table"
        if note not in self.notes:
            self.notes.append(note)


def open_checkpoint(path: Path, *, allow_unknown_config_keys: bool = False, must_answer: bool = False) -> Checkpoint:
    """Open a folder with config.json and safetensors, a folder with one GGUF model, or a GGUF file.

    With `must_answer` a drafter is refused before its weights are looked for.
    Raises CheckpointError for what is missing, damaged or does not fit together, UnsupportedError for models and
    encodings that are understood and refused; both name the file and the key or tensor.
    """
    kind, found = locate_files(path)
    if kind == "gguf":
        return _open_gguf_model(found, allow_unknown_config_keys)
    return _open_safetensors_model(found, allow_unknown_config_keys, must_answer)


def locate_files(path: Path) -> tuple[Literal["safetensors", "gguf"], Path]:
    """Return the format of the model at `path`, and its folder (safetensors) or its first file (GGUF).

    Raises CheckpointError for what is no model, UnsupportedError for adapters and pickled weights.
    """
    try:
        names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else None
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read", value=error) from error
    if not exists:
        raise CheckpointError(f"{path}: no such file or folder")
    if names is None:
        return "gguf", _gguf_file(path)
    has_safetensors = any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names)
    models = _gguf_models([path / name for name in names if name.endswith(".gguf")])
    if len(models) > 1 and not has_safetensors:
        raise CheckpointError(
            f"{path}: {len(models)} GGUF models lie here",
            value=", ".join(model.name for model in models[:5]),
            remedy="name one of the files",
        )
    if models and not has_safetensors:
        return "gguf", models[0]
    if "config.json" in names:
        return "safetensors", path
    if ADAPTER_NAME in names:
        raise adapter_alone(path)
    pickled = [name for name in names if name.endswith(PICKLED_SUFFIXES)]
    if pickled and not has_safetensors:
        raise pickled_weights(path / pickled[0])
    raise CheckpointError(
        f"{path}: no config.json", limit="a folder with config.json and safetensors, or with one .gguf file"
    )


def _gguf_file(path: Path) -> Path:
    if path.name.endswith(PICKLED_SUFFIXES):
        raise pickled_weights(path)
    if path.name.endswith((".safetensors", ".json")):
        raise CheckpointError(f"{path}: one file of a checkpoint", remedy=f"give its folder, {path.parent}")
    return path


def _gguf_models(paths: list[Path]) -> list[Path]:
    """Return one path a model: a split set counts once, and the vision part of a model (mmproj) not at all."""
    firsts = (part_paths(path)[0] for path in paths if not path.name.lower().startswith("mmproj"))
    return list(dict.fromkeys(firsts))


def _open_safetensors_model(folder: Path, allow_unknown_config_keys: bool, must_answer: bool) -> Checkpoint:
    config_path = folder / "config.json"
    spec = read_config(
        read_json_object(config_path), source=str(config_path), allow_unknown_keys=allow_unknown_config_keys
    )
    if must_answer and spec.drafter is not None:
        raise refuse_drafter(folder.name)
    files = open_safetensors(folder)
    generation_path = folder / "generation_config.json"
    generation_config = read_json_object(generation_path) if generation_path.exists() else {}
    match = match_safetensors(spec, files.tensors, str(folder))
    return Checkpoint(spec, "safetensors", folder, files, generation_config, match, list(match.notes))


def _open_gguf_model(path: Path, allow_unknown_config_keys: bool) -> Checkpoint:
    files = open_gguf(path)
    rope_freqs = read_rope_freqs(files.tensors.get(ROPE_FREQS))
    spec = read_gguf_spec(files, rope_freqs=rope_freqs, allow_unknown_config_keys=allow_unknown_config_keys)
    match = match_gguf(spec, files.tensors, str(files.paths[0]))
    generation_config = _generation_config(files.metadata, spec)
    return Checkpoint(spec, "gguf", path.parent, files, generation_config, match, list(match.notes))


def read_gguf_spec(
    files: GgufCheckpoint, *, rope_freqs: NDArray[np.float32] | None, allow_unknown_config_keys: bool = False
) -> ModelSpec:
    """Return the spec that a GGUF model's headers tell, given the values of the tensor ROPE_FREQS where it has one.

    Raises CheckpointError and UnsupportedError as `open_checkpoint`.
    """
    metadata, where = files.metadata, str(files.paths[0])
    # Token lists are long, and no spec depends on them: they stay undecoded.
    short = {
        key: metadata[key]
        for key in metadata
        if not (key.startswith("tokenizer.") and metadata.array_length(key) is not None)
    }
    shapes = {name: tensor.shape for name, tensor in files.tensors.items()}
    spec = read_gguf_metadata(
        short,
        tensor_shapes=shapes,
        rope_freqs=rope_freqs,
        source=where,
        allow_unknown_keys=allow_unknown_config_keys,
    )
    _check_token_arrays(metadata, spec, where)
    return spec


def read_rope_freqs(tensor: StoredTensor | None) -> NDArray[np.float32] | None:
    """Return the values of the tensor ROPE_FREQS, one a pair of a head; CheckpointError for one of another shape."""
    if tensor is None:
        return None
    check_rope_freqs(tensor)
    tensor.require_readable()
    return tensor.read_rows(0, tensor.num_rows)


def check_rope_freqs(tensor: StoredTensor) -> None:
    """Raise CheckpointError for a tensor ROPE_FREQS that cannot hold one number for each pair of a head."""
    if len(tensor.shape) != 1 or tensor.num_rows > _ROPE_FREQS_LIMIT:
        raise CheckpointError(
            f"{tensor.describe()} has the wrong shape", value=list(tensor.shape), limit="one number for each pair"
        )


def _check_token_arrays(metadata: GgufMetadata, spec: ModelSpec, where: str) -> None:
    for key in _TOKEN_ARRAYS:
        if key not in metadata:
            continue
        length = metadata.array_length(key)
        if length != spec.vocab_size:
            raise CheckpointError(
                f"{where}: {key} and the rows of token_embd.weight differ",
                value="no array" if length is None else f"{length} entries",
                limit=f"{spec.vocab_size} rows",
                remedy="convert the model again",
            )


def _generation_config(metadata: GgufMetadata, spec: ModelSpec) -> dict[str, Any]:
    import numpy as np

    found: dict[str, Any] = {
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": list(spec.eos_token_ids),
        "pad_token_id": spec.pad_token_id,
    }
    for name, key in _SAMPLING_KEYS.items():
        value = metadata.get(key)
        if isinstance(value, float):
            # The shortest decimal that rounds to the float32 in the file: 0.95, not 0.949999988079071.
            value = float(str(np.float32(value)))
        if value is not None:
            found[name] = value
            found["do_sample"] = True
    suppressed = metadata.get(_SUPPRESS_TOKENS)
    if suppressed is not None:
        ids = np.asarray(suppressed)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or bool((ids < 0).any()):
            raise CheckpointError(f"{_SUPPRESS_TOKENS}: no list of token ids", value=str(suppressed)[:80])
        found["suppress_tokens"] = ids.tolist()
    return found


def _first_different_row(head: StoredTensor, table: StoredTensor) -> str | None:
    """Return where two tensors differ first, in words; None where they are equal bit for bit."""
    if head.shape != table.shape:
        return f"shape {list(head.shape)}, not {list(table.shape)}"
    head.require_readable()
    step = max(1, _COMPARED_BYTES * head.num_rows // max(1, head.num_bytes))
    for begin in range(0, head.num_rows, step):
        end = min(begin + step, head.num_rows)
        if head.encoding == table.encoding:
            equal = head.stored_rows(begin, end) == table.stored_rows(begin, end)
        else:
            equal = head.read_rows(begin, end) == table.read_rows(begin, end)
        if not equal.all():
            return f"first in row {begin + int((~equal.all(axis=1)).argmax())}"
        head.release()
        table.release()
    return None
