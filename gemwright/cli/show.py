"""`gemwright show`: what a model is and what it needs, without reading its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.options import (
    SectionCommand,
    offline_option,
    output_options,
    revision_option,
    unknown_keys_option,
)

if TYPE_CHECKING:
    from gemwright.loading.describe import Description
    from gemwright.spec.model_spec import ModelSpec

_NAME_WIDTH = 18


@click.command(
    cls=SectionCommand,
    short_help="Show what a model is.",
    epilog="""\b
Examples:
  gemwright show google/gemma-3-1b-it
  gemwright show model.gguf --json""",
)
@click.argument("model", required=False, metavar="[MODEL]", shell_complete=complete_model)
@revision_option
@offline_option
@unknown_keys_option
@output_options
def show(model: str | None, **values: Any) -> None:
    """Show family, size, layers, context, K/V bytes, tokenizer, sampling defaults and files of MODEL.

    Weights are not read. Of a hub id that is not in the local cache only the small files are looked at, unless
    offline, and nothing is kept. Left out, MODEL is the default model.
    """
    from gemwright.cli.run import write_json

    found = describe(
        model,
        revision=values["revision"],
        offline=values["offline"],
        allow_unknown_config_keys=values["allow_unknown_config_keys"],
    )
    content = to_json(model, found)
    if values["json"]:
        write_json(content)
    else:
        for line in lines(content):
            print(line)


def describe(model: str | None, *, revision: str | None, offline: bool, allow_unknown_config_keys: bool) -> Description:
    """Return what a model is. Raises as `resolve_model` and `open_checkpoint`."""
    from dataclasses import replace

    from gemwright.cli.load import fetch_model
    from gemwright.loading.describe import describe_path, describe_remote
    from gemwright.loading.hub_cache import find_snapshot, is_offline, locate_model
    from gemwright.loading.resolve import local_path_or_name, resolve_model

    if model is None:
        fetch_model(None, revision=revision, offline=offline, options={})
        return describe_path(resolve_model(None))
    name = local_path_or_name(model, revision)
    if isinstance(name, Path):
        return describe_path(name, allow_unknown_config_keys=allow_unknown_config_keys)
    snapshot = find_snapshot(name.repository, name.revision)
    located = None if snapshot is None else locate_model(snapshot, name.quantization)
    if snapshot is not None and located is not None and located.path is not None and not located.missing:
        found = describe_path(located.path, allow_unknown_config_keys=allow_unknown_config_keys)
        return replace(found, commit=snapshot.commit, revision=name.revision)
    if offline or is_offline():
        return describe_path(resolve_model(model, revision=revision, offline=offline))  # says what is missing
    return describe_remote(name, allow_unknown_config_keys=allow_unknown_config_keys)


def to_json(model: str | None, found: Description) -> dict[str, Any]:
    """Return what the verb prints with --json; null for what cannot be known without fetching more."""
    content: dict[str, Any] = {
        "model": model or (None if found.path is None else found.path.name),
        "revision": found.revision,
        "commit": found.commit,
        "path": None if found.path is None else str(found.path),
        "family": found.family,
        "format": found.format,
        "dtype": found.stored_dtype,
        "weights_bytes": found.weights_bytes,
        "license": found.license,
        "tokenizer": found.has_tokenizer if found.spec is not None else None,
        "chat_template": found.has_chat_template if found.spec is not None else None,
        "files": [{"name": name, "bytes": size} for name, size in sorted(found.files.items())],
    }
    content.update(
        dict.fromkeys(("num_language_parameters", "layers", "max_context", "kv", "vocab_size", "towers", "is_drafter"))
    )
    content.update(dict.fromkeys(("bos_token_id", "stop_token_ids", "sampling")))
    if found.spec is not None:
        content.update(_spec_fields(found.spec, found))
    return content


def _spec_fields(spec: ModelSpec, found: Description) -> dict[str, Any]:
    from gemwright.engine.model_defaults import sampling_defaults, stop_ids
    from gemwright.spec.model_spec import LayerKind
    from gemwright.spec.weights import count_parameters, list_tensors

    windows = sorted({layer.window for layer in spec.layers if layer.window is not None})
    return {
        "num_language_parameters": count_parameters(list_tensors(spec)),
        "layers": {
            "total": spec.num_layers,
            "sliding": sum(layer.kind == LayerKind.SLIDING for layer in spec.layers),
            "full": sum(layer.kind == LayerKind.FULL for layer in spec.layers),
            "sharing_kv": sum(not layer.owns_kv for layer in spec.layers),
            "window": windows[-1] if windows else None,
        },
        "max_context": spec.max_context,
        "vocab_size": spec.vocab_size,
        "kv": _kv_bytes(spec, found.stored_dtype),
        "towers": [tower.name for tower in spec.towers],
        "is_drafter": spec.drafter is not None,
        "bos_token_id": spec.bos_token_id,
        "stop_token_ids": list(stop_ids(found.generation_config, spec.eos_token_ids)),
        "sampling": sampling_defaults(found.generation_config),
    }


def _kv_bytes(spec: ModelSpec, stored_dtype: str | None) -> dict[str, Any] | None:
    """Return the bytes of K/V in the dtype that `run` takes unasked; None for a drafter, which has no cache."""
    from gemwright.memory.kv_layout import group_layers

    if spec.drafter is not None:
        return None
    dtype: Any = "float32" if stored_dtype == "float32" else "bfloat16"
    groups = group_layers(spec, 16, dtype, keys_from_values=True).groups
    sizes = [(group.window, group.token_bytes * len(group.layers)) for group in groups]
    return {
        "dtype": dtype,
        "bytes_per_token_full": sum(size for window, size in sizes if window is None),
        "bytes_per_token_sliding": sum(size for window, size in sizes if window is not None),
        "sliding_bytes_per_sequence": sum(size * window for window, size in sizes if window is not None),
    }


def lines(content: dict[str, Any]) -> list[str]:
    """Return the same for people, one fact a line."""
    from gemwright.errors import show_bytes

    facts: list[tuple[str, str]] = [("model", str(content["model"]))]
    if content["commit"] is not None:
        facts.append(("revision", f"{content['revision']} ({content['commit'][:12]})"))
    facts.append(("path", content["path"] or "not on this machine; gemwright pull fetches it"))
    drafter = ", a drafter" if content["is_drafter"] else ""
    facts.append(("family", f"{content['family'] or 'in the header of the GGUF file, which is not fetched'}{drafter}"))
    if content["num_language_parameters"] is not None:
        facts.append(("parameters", f"{_count(content['num_language_parameters'])}, of the language model"))
    facts.append(("weights", f"{show_bytes(content['weights_bytes'])}, {content['format']}, {content['dtype'] or '?'}"))
    if (layers := content["layers"]) is not None:
        sharing = f", {layers['sharing_kv']} of them sharing K/V" if layers["sharing_kv"] else ""
        window = f" (window {layers['window']})" if layers["window"] is not None else ""
        facts.append(
            ("layers", f"{layers['total']}: {layers['sliding']} sliding{window}, {layers['full']} full{sharing}")
        )
        facts.append(("context", f"{content['max_context']} tokens"))
    if (kv := content["kv"]) is not None:
        sliding = show_bytes(kv["sliding_bytes_per_sequence"])
        facts.append(
            (
                "K/V cache",
                f"{kv['bytes_per_token_full']} bytes a token in {kv['dtype']}, and up to {sliding} for sliding layers",
            )
        )
    if content["towers"]:
        facts.append(("also holds", ", ".join(content["towers"])))
    if content["tokenizer"] is not None:
        facts.append(("tokenizer", f"yes, {content['vocab_size']} rows" if content["tokenizer"] else "none: ids only"))
        facts.append(("chat template", "yes" if content["chat_template"] else "none in its files"))
        facts.append(("stop ids", ", ".join(map(str, content["stop_token_ids"]))))
        facts.append(("sampling", ", ".join(f"{name} {value}" for name, value in content["sampling"].items())))
    facts.append(("license", content["license"] or "not stated in its files"))
    facts += [
        ("files" if index == 0 else "", f"{file['name']}  {show_bytes(file['bytes'])}")
        for index, file in enumerate(content["files"])
    ]
    return [f"{name:<{_NAME_WIDTH}}{value}" for name, value in facts]


def _count(number: int) -> str:
    """Return a large number in words, three digits of it."""
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,}"
