"""Matches the tensors of a file to those that spec.weights lists: every one found once, and none left over.

Refuses to know how files are read. Names: facts f (GGUF) and g.1 to g.3 (safetensors).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.mapped_file import shown
from gemwright.loading.stored_tensor import StoredTensor
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import TensorSpec, list_tensors, list_unused_tensors

LANGUAGE_MODEL_PREFIXES = (
    "model.language_model.model.",
    "language_model.model.",
    "model.language_model.",
    "language_model.",
    "model.",
    "",
)
"""Under which safetensors files keep the language model, longest first: text and multimodal classes, as published and
as transformers 5 writes them (facts g.1 to g.3)."""

_HEAD = "lm_head.weight"
_ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Match:
    """The stored tensors of every wanted tensor (several where they are to be stacked), and what was set aside."""

    tensors: Mapping[str, tuple[StoredTensor, ...]]
    spare_head: StoredTensor | None = None
    """An lm_head beside a tied embedding table; right only if it equals the table."""
    left_over: tuple[str, ...] = ()
    """Names of stored tensors that nothing uses. Filled for plans alone: a model that is to run has none."""
    notes: list[str] = field(default_factory=list)


def match_safetensors(
    spec: ModelSpec, stored: Mapping[str, StoredTensor], where: str, *, for_plan: bool = False
) -> Match:
    """Match by safetensors names; `where` names the checkpoint in messages.

    `for_plan` is for those who want sizes alone: left-over tensors are listed, and encodings not looked at.
    Raises CheckpointError for a tensor that is missing, left over, there under two names or of a wrong shape, and
    UnsupportedError for one whose encoding cannot be read.
    """
    wanted = {tensor.safetensors: tensor for tensor in list_tensors(spec)}
    unused = {tensor.safetensors: tensor for tensor in list_unused_tensors(spec)}
    known = wanted.keys() | unused.keys() | {_HEAD}
    found: dict[str, StoredTensor] = {}
    left_over: list[StoredTensor] = []
    skipped: Counter[str] = Counter()
    prefixes: Counter[str] = Counter()
    for name, tensor in stored.items():
        plain = _plain_name(name, known)
        if plain is None:
            tower = _tower_of(spec, name)
            if tower is None:
                left_over.append(tensor)
            else:
                skipped[tower] += 1
        elif plain in found:
            raise CheckpointError(
                f"{tensor.describe()} and {shown(found[plain].name)} are two spellings of one tensor",
                remedy="keep one of them",
            )
        else:
            found[plain] = tensor
            prefixes[name.removesuffix(plain)] += 1
    usual_prefix = prefixes.most_common(1)[0][0] if prefixes else ""
    missing = [("" if wanted[name].at_root else usual_prefix) + name for name in wanted if name not in found]
    _check_complete(where, missing, left_over, for_plan)
    for plain, spec_tensor in wanted.items():
        _check_tensor(spec, spec_tensor, found[plain], spec_tensor.shape, for_plan)
    dropped = {plain: found[plain] for plain in unused if plain in found}
    for plain, tensor in dropped.items():
        _check_shape(tensor, unused[plain].shape)
    notes = [f"skipped {count} tensors of the {tower} part: text only" for tower, count in skipped.items()]
    notes += _note_dropped(dropped)
    return Match(
        {tensor.name: (found[plain],) for plain, tensor in wanted.items()},
        spare_head=found.get(_HEAD) if spec.tied_head else None,
        left_over=tuple(tensor.name for tensor in left_over),
        notes=notes,
    )


def match_gguf(spec: ModelSpec, stored: Mapping[str, StoredTensor], where: str, *, for_plan: bool = False) -> Match:
    """Match by GGUF names; `for_plan` and what is raised as in `match_safetensors`."""
    tensors: dict[str, tuple[StoredTensor, ...]] = {}
    missing: list[str] = []
    used = {_ROPE_FREQS}
    wanted = list_tensors(spec)
    for tensor in wanted:
        complete = [names for names in tensor.gguf if all(name in stored for name in names)]
        if not complete:
            missing.append(tensor.gguf[0][0])
            continue
        names = complete[0]
        rivals = [name for other in tensor.gguf if other != names for name in other if name in stored]
        if rivals:
            raise CheckpointError(
                f"{stored[rivals[0]].describe()} and {shown(names[0])} are two spellings of one tensor",
                remedy="convert the model again",
            )
        tensors[tensor.name] = tuple(stored[name] for name in names)
        used.update(names)
    unused = {tensor.gguf: tensor for tensor in list_unused_tensors(spec) if tensor.gguf in stored}
    left_over = [tensor for name, tensor in stored.items() if name not in used and name not in unused]
    _check_complete(where, missing, left_over, for_plan)
    for tensor in wanted:
        for part in tensors[tensor.name]:
            shape = list(tensor.shape)
            if len(tensors[tensor.name]) > 1:
                shape[tensor.gguf_stack_axis] //= len(tensors[tensor.name])
            _check_tensor(spec, tensor, part, tuple(shape), for_plan)
    for name, spare in unused.items():
        _check_shape(stored[name], spare.shape)
    return Match(tensors, left_over=tuple(tensor.name for tensor in left_over), notes=_note_dropped(unused))


def _plain_name(name: str, known: Iterable[str]) -> str | None:
    for prefix in LANGUAGE_MODEL_PREFIXES:
        plain = name.removeprefix(prefix)
        if len(plain) + len(prefix) == len(name) and plain in known:
            return plain
    return None


def _tower_of(spec: ModelSpec, name: str) -> str | None:
    plain = name.removeprefix("model.")
    return next((tower.name for tower in spec.towers if plain.startswith(tower.prefixes)), None)


def _check_complete(where: str, missing: list[str], left_over: list[StoredTensor], for_plan: bool) -> None:
    if missing:
        raise CheckpointError(
            f"{where}: {_counted(missing, shown)} missing",
            value=f"left over: {_counted([tensor.name for tensor in left_over], shown)}" if left_over else None,
            remedy="fetch the checkpoint again; its config and its weights must be of the same model",
        )
    if left_over and not for_plan:
        raise CheckpointError(
            f"{where}: {_counted([tensor.name for tensor in left_over], shown)} left over, which no layer uses",
            remedy="a model that ignored them would be another one: use a checkpoint of an unchanged Gemma",
        )


def _counted(names: list[str], show: Callable[[str], str]) -> str:
    some = ", ".join(show(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")
    return f"tensor {some}" if len(names) == 1 else f"{len(names)} tensors ({some})"


def _check_tensor(
    spec: ModelSpec, tensor: TensorSpec, stored: StoredTensor, shape: tuple[int, ...], for_plan: bool
) -> None:
    if tensor.name in ("embedding", "head"):
        _check_vocabulary(spec, stored)
    _check_shape(stored, shape)
    if for_plan:
        return
    if tensor.role != "index":
        stored.require_readable()
    elif not stored.stored_as.index:
        raise UnsupportedError(f"{stored.describe()} holds indices", value=stored.encoding, limit="int32 or int64")


def _check_vocabulary(spec: ModelSpec, stored: StoredTensor) -> None:
    rows = stored.shape[0] if stored.shape else 0
    if rows != spec.vocab_size:
        raise CheckpointError(
            f"{stored.describe()}: the vocabulary was resized in one place only",
            value=f"{rows} rows",
            limit=f"vocab_size {spec.vocab_size}",
            remedy="set vocab_size in config.json to the number of rows",
        )


def _check_shape(stored: StoredTensor, shape: tuple[int, ...]) -> None:
    if stored.shape != shape:
        raise CheckpointError(
            f"{stored.describe()} has the wrong shape",
            value=list(stored.shape),
            limit=list(shape),
            remedy="config and weights must be of the same model: fetch the checkpoint again",
        )


def _note_dropped(dropped: Mapping[str, object]) -> list[str]:
    if not dropped:
        return []
    return [
        f"dropped {len(dropped)} K/V tensors of layers that read another layer's cache (such as {next(iter(dropped))})"
    ]
