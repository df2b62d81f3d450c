"""Which chat template a model has: the user's choice, its own, ours for its vocabulary, or none. Renders nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemwright.errors import CheckpointError, GemwrightError, UnsupportedError
from gemwright.text.template import BUILT_IN, ChatTemplate
from gemwright.text.template_jinja import MAX_SOURCE, JinjaTemplate, read_own_template
from gemwright.text.tokenizer import Tokenizer

_TUNED_PART = re.compile(r"(^|[-_. ])(it|instruct|chat)(?![A-Za-z0-9])", re.IGNORECASE)
_BASE_PART = re.compile(r"(^|[-_. ])(pt|base|pretrained)(?![A-Za-z0-9])", re.IGNORECASE)
_SNAPSHOTS = "snapshots"
"""The folder of the hub's local cache in which a model's revisions lie, named by their commits."""


def dialect_of(tokenizer: Tokenizer) -> str | None:
    """Return whose turns a vocabulary has: `gemma2`, `gemma3`, `gemma4`, or None (facts c.1, c.2)."""
    words = tokenizer.special_tokens
    if "<|turn>" in words:
        return "gemma4"
    start = words.get("<start_of_turn>")
    return None if start is None else "gemma2" if start == 106 else "gemma3"


def names_of(path: Path) -> tuple[str, ...]:
    """Return what the model at a path is called: its file or folder and, of one in the hub's cache, its repository."""
    path = path.absolute()
    folder = path.parent if path.is_file() else path
    if folder.parent.name == _SNAPSHOTS:
        repository = folder.parent.parent.name
        return (path.name, repository) if path.is_file() else (repository,)
    return (path.name,)


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """What decides about a model's chat template.

    folder, gguf_metadata: where its own would be. names: what it is called (`names_of`). stop_ids: those of its
    configs. is_large: a Gemma 4 beyond E4B. chosen: a name of BUILT_IN or a file, which goes before all.
    """

    tokenizer: Tokenizer
    folder: Path
    gguf_metadata: Mapping[str, Any] | None
    names: Sequence[str]
    stop_ids: Sequence[int]
    is_large: bool
    chosen: str | None = None

    @property
    def takes_turns(self) -> bool:
        """Whether the model has learned to take turns, or is to be used so; also where its own template is damaged."""
        if self.chosen is not None:
            return True
        try:
            has_own = read_own_template(self.folder, self.gguf_metadata) is not None
        except GemwrightError:
            has_own = True
        return has_own or (dialect_of(self.tokenizer) is not None and self._is_instruction_tuned())

    def all_stop_ids(self) -> tuple[int, ...]:
        """Return where answers end: at the stop ids of the configs and, where the model takes turns, also at what its
        tokenizer names so, at the end of a turn and at `<eos>`, which some GGUF files leave out for it."""
        if not self.takes_turns:
            return tuple(self.stop_ids)
        end = self.tokenizer.special_tokens.get("<eos>")
        named = [*self.stop_ids, *self.tokenizer.eos_token_ids, *([] if end is None else [end])]
        return tuple(dict.fromkeys(named))

    def load(self) -> ChatTemplate | None:
        """Return the template, or None for a base model.

        The model's own goes first, then ours for its vocabulary if the model is instruction-tuned. Raises
        CheckpointError for damaged files, UnsupportedError for a choice that is of another family.
        """
        dialect = dialect_of(self.tokenizer)
        if self.chosen in BUILT_IN:
            if self.chosen.removesuffix("-large") != dialect:
                raise UnsupportedError(
                    "this chat template is not for this model's vocabulary",
                    value=self.chosen,
                    limit=f"{dialect}, or a file" if dialect is not None else "a file: it knows no turns",
                )
            return ChatTemplate(self.tokenizer, self.chosen)
        if self.chosen is not None:
            own = JinjaTemplate(_read_file(self.chosen), name=self.chosen)
            return ChatTemplate(self.tokenizer, dialect or "gemma3", own)
        source = read_own_template(self.folder, self.gguf_metadata)
        if source is not None:
            return ChatTemplate(self.tokenizer, dialect or "gemma3", JinjaTemplate(source))
        if dialect is None or not self._is_instruction_tuned():
            return None
        return ChatTemplate(self.tokenizer, "gemma4-large" if dialect == "gemma4" and self.is_large else dialect)

    def _is_instruction_tuned(self) -> bool:
        """Whether a model without a template of its own has learned to take turns.

        Its names decide, if they have the part `it`, `instruct` or `chat`, or else `pt`, `base` or `pretrained`, as
        published ones do; with them count what GGUF metadata call it. Else one that ends sequences with the word that
        ends a turn has. Names go first since configs of some published base models list that word too.
        """
        metadata = self.gguf_metadata or {}
        names = [*self.names, *(_text(metadata.get(f"general.{key}", "")) for key in ("finetune", "name"))]
        for part, says in ((_TUNED_PART, True), (_BASE_PART, False)):
            if any(part.search(name) for name in names):
                return says
        own = self.tokenizer.eos_token_id
        turn_ends = set(self.tokenizer.eos_token_ids) - {own, 1}
        return own not in (None, 1) or bool(turn_ends & set(self.stop_ids))


def _read_file(chosen: str) -> str:
    try:
        path = Path(chosen).expanduser()
        if path.is_file() and path.stat().st_size <= MAX_SOURCE:
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{chosen}: the chat template cannot be read", value=error) from error
    raise CheckpointError(
        f"{chosen}: no chat template",
        limit=f"{', '.join(BUILT_IN)}, or a file of at most {MAX_SOURCE >> 20} MiB",
        remedy="name one of them",
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
