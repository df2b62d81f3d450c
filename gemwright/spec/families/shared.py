"""What the readers of several families share: sizes, token ids, layer kinds, RoPE tables, K/V sources and their checks.

Refuses to know a family: defaults come in as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemwright.spec.families.bookkeeping import refuse_changed_library_keys
from gemwright.spec.families.keys import KeyReader, shown
from gemwright.spec.families.refused import refuse_quantization
from gemwright.spec.model_spec import LayerKind, RopeSpec

MAX_LAYERS: Final = 1000
MAX_WIDTH: Final = 2**20
MAX_HEADS: Final = 2**12
MAX_HEAD_DIM: Final = 2**14
MAX_VOCABULARY: Final = 2**24
MAX_EXPERTS: Final = 2**14
ACTIVATION: Final = "gelu_pytorch_tanh"

_KIND_NAMES: Final = {"sliding_attention": LayerKind.SLIDING, "full_attention": LayerKind.FULL}
_STORED_DTYPES: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class TextDefaults:
    """What an absent key of a text config means: the defaults of the family's config class in transformers."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    sliding_window: int


@dataclass(frozen=True, slots=True)
class TextSizes:
    """The keys that every text config holds under the same names, checked one by one and against each other."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    norm_eps: float


def read_sizes(text: KeyReader, defaults: TextDefaults) -> TextSizes:
    """Read the sizes of a text config and refuse what no decoder here computes (biases, another activation)."""
    refuse_quantization(text)
    refuse_changed_library_keys(text)
    activation = text.text("hidden_activation", ACTIVATION)
    if activation != ACTIVATION:
        raise text.refusal("hidden_activation", "is not supported", limit=ACTIVATION, remedy="use an unchanged Gemma")
    if text.flag("attention_bias", False):
        raise text.refusal("attention_bias", "is not supported", limit="false", remedy="use an unchanged Gemma")
    sizes = TextSizes(
        vocab_size=text.integer("vocab_size", defaults.vocab_size, maximum=MAX_VOCABULARY),
        hidden_size=text.integer("hidden_size", defaults.hidden_size, maximum=MAX_WIDTH),
        intermediate_size=text.integer("intermediate_size", defaults.intermediate_size, maximum=MAX_WIDTH),
        num_layers=text.integer("num_hidden_layers", defaults.num_hidden_layers, maximum=MAX_LAYERS),
        num_query_heads=text.integer("num_attention_heads", defaults.num_attention_heads, maximum=MAX_HEADS),
        num_kv_heads=text.integer("num_key_value_heads", defaults.num_key_value_heads, maximum=MAX_HEADS),
        head_dim=text.integer("head_dim", defaults.head_dim, maximum=MAX_HEAD_DIM),
        max_context=text.integer("max_position_embeddings", defaults.max_position_embeddings),
        norm_eps=text.number("rms_norm_eps", 1e-6),
    )
    check_heads(text, "num_key_value_heads", sizes.num_query_heads, sizes.num_kv_heads)
    check_head_dim(text, "head_dim", sizes.head_dim)
    return sizes


def check_heads(keys: KeyReader, name: str, num_query_heads: int, num_kv_heads: int) -> None:
    """Refuse query heads that cannot be shared out evenly over the KV heads."""
    if num_query_heads % num_kv_heads:
        raise keys.refusal(
            name,
            "does not divide the number of query heads",
            value=f"{num_query_heads} query heads, {num_kv_heads} KV heads",
            limit="query heads must be a multiple of KV heads",
            remedy="use the config as its publisher wrote it",
        )


def check_head_dim(keys: KeyReader, name: str, head_dim: int) -> None:
    """Refuse an odd head size: RoPE turns pairs."""
    if head_dim % 2:
        raise keys.refusal(
            name, "is odd", limit="an even number: RoPE turns pairs", remedy="use the config as its publisher wrote it"
        )


def read_softcap(keys: KeyReader, name: str, default: float | None = None) -> float | None:
    """Return a softcap (None where it is null); zero and negative caps are refused."""
    return keys.optional_number(name, default)


def layer_kinds(text: KeyReader, num_layers: int, default_period: int) -> tuple[LayerKind, ...]:
    """Return the kind of every layer: `layer_types` where given, else each `default_period`-th layer is full."""
    names = text.items("layer_types")
    if names is None:
        return periodic_kinds(num_layers, default_period)
    if len(names) != num_layers:
        raise text.refusal(
            "layer_types",
            "must name every layer once",
            value=f"{len(names)} names",
            limit=f"{num_layers} layers (num_hidden_layers)",
            remedy="use the config as its publisher wrote it",
        )
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in _KIND_NAMES:
            raise text.refusal(
                "layer_types",
                f"names a kind of layer that is not supported, at layer {index}",
                value=str(name)[:80] if isinstance(name, str) else "not a text",
                limit=", ".join(sorted(_KIND_NAMES)),
                remedy="use an unchanged Gemma",
            )
    return tuple(_KIND_NAMES[name] for name in names)


def periodic_kinds(num_layers: int, period: int) -> tuple[LayerKind, ...]:
    """Return layer kinds of which every `period`-th is full: layer i slides unless i + 1 is a multiple (facts a.3)."""
    return tuple(LayerKind.SLIDING if (index + 1) % period else LayerKind.FULL for index in range(num_layers))


def read_window(
    keys: KeyReader, kinds: Sequence[LayerKind], default: int | None, name: str = "sliding_window"
) -> int | None:
    """Return the window of the sliding layers, None where none slides; a window that is no window is refused."""
    if LayerKind.SLIDING not in kinds:
        keys.raw(name)
        return None
    if keys.has(name) or default is None:
        return keys.integer(name)
    if name in keys.names():
        raise keys.refusal(
            name, "is null, but there are sliding layers", limit="1 or more", remedy="set it to the model's window"
        )
    return keys.integer(name, default)


def read_rope(rope: KeyReader | None, default: RopeSpec) -> RopeSpec:
    """Return the RoPE table that one `rope_parameters` object describes; absent keys are taken from `default`.

    A given object without rope_type means the default type, as in transformers; without partial_rotary_factor, 1.
    """
    if rope is None:
        return default
    kind = rope.text("rope_type")
    old_kind = rope.text("type", kind)
    if kind is not None and old_kind != kind:
        raise rope.refusal("type", "disagrees with rope_type", limit=kind, remedy="delete one of the two")
    kind = old_kind or "default"
    theta = rope.number("rope_theta", default.theta)
    if kind == "default":
        rope.allow_only("factor", 1, 1.0)
        rope.allow_only("partial_rotary_factor", 1, 1.0)
        return RopeSpec("default", theta)
    if kind == "linear":
        rope.allow_only("partial_rotary_factor", 1, 1.0)
        return RopeSpec("linear", theta, factor=rope.number("factor"))
    if kind == "proportional":
        part = rope.number("partial_rotary_factor", 1.0, positive=False)
        if part > 1:
            raise rope.refusal("partial_rotary_factor", "is out of range", limit="from 0 to 1")
        return RopeSpec("proportional", theta, factor=rope.number("factor", 1.0), partial_rotary_factor=part)
    raise rope.refusal(
        "rope_type" if rope.has("rope_type") else "type",
        "is not supported",
        limit="default, linear, proportional",
        remedy="use an unchanged Gemma; none of them needs another type",
    )


def assign_kv_sources(keys: KeyReader, name: str, kinds: Sequence[LayerKind], num_shared: int) -> tuple[int, ...]:
    """Return for every layer the index of the layer whose K/V it reads (facts b.4).

    The last `num_shared` layers read the last layer of their kind before them that is not shared; all others read
    their own. Raises UnsupportedError where there is no such layer.
    """
    first_shared = len(kinds) - num_shared
    last_owner = {kind: index for index, kind in enumerate(kinds[:first_shared])}
    for kind in kinds[first_shared:]:
        if kind not in last_owner:
            raise keys.refusal(
                name,
                f"leaves no {kind} layer that owns K/V",
                limit=f"at least one unshared layer of each kind among {len(kinds)}",
                remedy="use the config as its publisher wrote it",
            )
    return tuple(index if index < first_shared else last_owner[kinds[index]] for index in range(len(kinds)))


def has_tower(top: KeyReader, name: str, tower_type: str) -> bool:
    """Return whether a tower's config is there; one that is not of `tower_type` is refused. Nothing in it is read."""
    config = top.raw(name)
    if config is None:
        return False
    found = config.get("model_type", tower_type) if isinstance(config, Mapping) else config
    if not isinstance(found, str) or found != tower_type:
        raise top.refusal(
            f"{name}.model_type",
            "names a tower that is not known",
            value=shown(found),
            limit=tower_type,
            remedy="use an unchanged Gemma, or its text config alone",
        )
    return True


@dataclass(frozen=True, slots=True)
class TopLevel:
    """What stands at the top of a config, or in its text config where the top does not say."""

    tied_head: bool
    bos_token_id: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    stored_dtype: str | None


def read_top_level(top: KeyReader, text: KeyReader) -> TopLevel:
    """Read token ids, tie_word_embeddings and dtype; `text` is `top` itself in a text-only config.

    The top wins for ids and dtype. A tie_word_embeddings of the text config that differs from what holds at the top
    (true where absent, as in transformers) is refused, because engines disagree about which one counts.
    """
    refuse_quantization(top)
    tied = top.flag("tie_word_embeddings", True)
    if text.flag("tie_word_embeddings", tied) != tied:
        raise text.refusal(
            "tie_word_embeddings",
            "disagrees with the top of the file",
            limit=str(tied).lower(),
            remedy="state it once, at the top",
        )
    dtypes = [_stored_dtype(keys) for keys in (top, text)]
    return TopLevel(
        tied_head=tied,
        bos_token_id=_token_id(top, text, "bos_token_id", 2),
        eos_token_ids=_eos_token_ids(top, text),
        pad_token_id=_token_id(top, text, "pad_token_id", 0),
        stored_dtype=next((dtype for dtype in dtypes if dtype is not None), None),
    )


def _token_id(top: KeyReader, text: KeyReader, name: str, default: int) -> int:
    ids = [keys.optional_integer(name, minimum=0) for keys in (top, text)]
    return next((token_id for token_id in ids if token_id is not None), default)


def _eos_token_ids(top: KeyReader, text: KeyReader) -> tuple[int, ...]:
    found = [_id_list(keys, keys.raw("eos_token_id")) for keys in (top, text)]
    return next((ids for ids in found if ids), (1,))


def _id_list(keys: KeyReader, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list | tuple) else [value]
    if len(ids) > 64:
        raise keys.refusal("eos_token_id", "lists too many ids", limit="64 ids")
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < MAX_VOCABULARY:
            raise keys.refusal("eos_token_id", "must be a token id or a list of them", limit=f"0 to {MAX_VOCABULARY}")
    return tuple(dict.fromkeys(ids))


def _stored_dtype(keys: KeyReader) -> str | None:
    names = [(name, keys.text(name)) for name in ("dtype", "torch_dtype")]
    for name, value in names:
        if value is None:
            continue
        dtype = value.removeprefix("torch.")
        if dtype not in _STORED_DTYPES:
            raise keys.refusal(name, "is not a dtype that is known", limit=", ".join(sorted(_STORED_DTYPES)))
        return dtype
    return None
