"""From what a user names to what is known of the model: a path, a model of the hub, or the default, headers only.

Where the hub cannot be asked or does not answer, the table of published configs stands in, and a note says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gemwright.errors import CheckpointError, RequestError
from gemwright.loading import default_model
from gemwright.loading.hub_name import DEFAULT_REVISION, HubName
from gemwright.loading.resolve import local_path_or_name
from gemwright.planner.quantization import find_recipe
from gemwright.spec.model_header import ModelHeader

_DEFAULT_HUB_ID: Final = "google/gemma-3-270m"
_DEFAULT_QUANTIZATION: Final = "q4_k_m"


def read_header(
    model: str | None,
    *,
    revision: str | None = None,
    offline: bool = False,
    allow_unknown_config_keys: bool = False,
) -> ModelHeader:
    """Return what the headers of a model tell: a folder, a GGUF file, a config.json, or a model of the hub.

    None is the default model. A model of the hub whose headers lie in the local cache costs no request; of another its
    config and headers are requested, unless `offline` or $HF_HUB_OFFLINE forbids that. Raises RequestError for an empty
    name, two revisions and a name that leaves open which GGUF model is meant, UnsupportedError for what is refused,
    CheckpointError for what is not there, damaged, or can be learned neither from the hub nor from what is here.
    """
    if revision is not None and not revision.strip():
        raise RequestError("--revision is empty", remedy="name a branch, a tag or a commit, or leave it out")
    if model is None:
        if revision is not None:
            raise RequestError("the default model has one revision", value=revision, remedy="leave --revision out")
        return replace(_default_header(), is_default=True)
    found = local_path_or_name(model, revision)
    if isinstance(found, HubName):
        if model.endswith(".json"):
            raise CheckpointError("no such file", value=model, remedy="look at the path")
        return _hub_header(found, offline, allow_unknown_config_keys)
    from gemwright.loading.headers import local_header

    return local_header(found, model, allow_unknown_config_keys=allow_unknown_config_keys)


def _default_header() -> ModelHeader:
    """Read the default model where it lies: joined, in pieces inside its packages, or nowhere yet."""
    from gemwright.loading.headers import chunk_header, local_header

    name = default_model.MODEL_NAME.removesuffix(".gguf")
    joined = default_model.joined_path()
    if joined is not None:
        return local_header(joined, name)
    chunk = default_model.first_chunk_path()
    if chunk is not None:
        note = "the header was read from the packages of the default model, which is put together on first use"
        return chunk_header(chunk, default_model.MODEL_NAME, default_model.MODEL_BYTES, name, note)
    reason = "the packages of the default model are not installed"
    header = _published_header(_DEFAULT_HUB_ID, name, reason, False, quantization=_DEFAULT_QUANTIZATION)
    assert header is not None, f"{_DEFAULT_HUB_ID} is in the table of published configs"
    return header


def _hub_header(name: HubName, offline: bool, allow_unknown_config_keys: bool) -> ModelHeader:
    from gemwright.loading.headers import cached_header
    from gemwright.loading.hub_cache import is_offline

    cached = cached_header(name, allow_unknown_config_keys=allow_unknown_config_keys)
    if cached is not None:
        return cached
    if offline or is_offline():
        header = _without_hub(name, "the hub was not asked (offline)", allow_unknown_config_keys)
        if header is not None:
            return header
        _refuse_by_name(name)
        raise CheckpointError(
            "this model is neither in the local cache nor among the published ones that Gemwright knows, and offline "
            "mode forbids asking the hub",
            value=f"{name.model} at revision {name.revision}",
            remedy=f"leave {'--offline' if offline else 'HF_HUB_OFFLINE'} out, or give the path of its config.json",
        )
    from gemwright.loading.hub_reach import listens

    if not listens():
        # The client would find the same later, and taking it up takes longer than the plan.
        header = _without_hub(name, "the hub could not be reached", allow_unknown_config_keys)
        if header is not None:
            return header
    from gemwright.loading.hub_errors import why_unanswered
    from gemwright.loading.hub_headers import hub_header

    try:
        return hub_header(name, allow_unknown_config_keys=allow_unknown_config_keys)
    except CheckpointError as error:
        reason = why_unanswered(error)
        header = None if reason is None else _without_hub(name, reason, allow_unknown_config_keys)
        if header is None:
            if reason is not None:
                _refuse_by_name(name)
            raise
        return header


def _refuse_by_name(name: HubName) -> None:
    """Raise UnsupportedError for a model of which nothing is known but a name that says enough."""
    from gemwright.spec.families.refused import refuse_name

    refusal = refuse_name(name.repository)
    if refusal is not None:
        raise refusal


def _without_hub(name: HubName, reason: str, allow_unknown_config_keys: bool) -> ModelHeader | None:
    """Return what the cache or the table of published configs knows of a model whose headers are not to be had."""
    from gemwright.loading.headers import cached_config_header

    note = f"planned from the config in the local cache alone, as {reason}"
    cached = cached_config_header(name, note, allow_unknown_config_keys=allow_unknown_config_keys)
    revision = None if name.revision == DEFAULT_REVISION else name.revision
    return cached or _published_header(name.model, str(name), reason, allow_unknown_config_keys, revision=revision)


def _published_header(
    model: str,
    name: str,
    reason: str,
    allow_unknown_config_keys: bool,
    *,
    quantization: str | None = None,
    revision: str | None = None,
) -> ModelHeader | None:
    from gemwright.loading.headers import read_model_config
    from gemwright.planner.published import find_published

    repository, _, named = model.partition(":")
    published = find_published(repository)
    if published is None or (named and not published.is_gguf):
        return None
    if named:
        quantization = find_recipe(named).name
    notes = [f"planned from the config of {published.base_id} that comes with Gemwright, as {reason}"]
    if not published.is_exact:
        notes.append(f"{repository} is taken to be a variant of {published.base_id}")
    if published.is_gguf and not (quantization or published.quantization):
        notes.append(
            f"{repository} holds files of several types and none is named: 16 bits are assumed, unless {repository}"
            ":Q4_K_M or --quantization q4_k_m says otherwise"
        )
    if revision is not None:
        notes.append(f"revision {revision} was not looked at: what is published as main is planned")
    source = f"{published.hub_id}/config.json"
    spec, labeled = read_model_config(published.config, source, allow_unknown_config_keys)
    return ModelHeader(
        name,
        spec,
        "config",
        "published",
        None,
        quantization or published.quantization or labeled,
        tuple(notes),
        published.embedding_quantization,
        published.has_unused_tensors,
    )
