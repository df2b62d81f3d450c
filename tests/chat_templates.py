"""What the template tests share: tokenizers of each family, Jinja templates of our own, drawn conversations."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gemwright.testing.tokenizer_files import FAMILY_IDS, MEDIA_WORDS, write_byte_tokenizer
from gemwright.text.template import ChatTemplate
from gemwright.text.template_jinja import JinjaTemplate
from gemwright.text.tokenizer import Tokenizer, from_tokenizer_json

TEMPLATES = Path(__file__).parent / "data" / "templates"
VOCAB_SIZE = 400
LARGE = "{#- LARGE -#}"
"""Where the template of the larger Gemma 4 models differs, and by what."""
CLOSED_THOUGHT = "{{- '<|channel>thought\\n<channel|>' if not enable_thinking -}}"

CONTROL_WORDS = sorted({word for family in FAMILY_IDS for word in (*FAMILY_IDS[family], *MEDIA_WORDS[family])})


@cache
def byte_folder(family: str) -> Path:
    """Return a folder with a byte tokenizer of a family."""
    folder = Path(tempfile.mkdtemp(prefix=f"tokenizer-{family}-"))
    write_byte_tokenizer(folder, VOCAB_SIZE, family, with_media=True)
    return folder


@cache
def byte_tokenizer(family: str) -> Tokenizer:
    """Return a tokenizer of bytes and a family's control words, most of them at their published ids."""
    return from_tokenizer_json(byte_folder(family))


def template_source(name: str) -> str:
    """Return the Jinja template of a name of BUILT_IN, written from the same facts as ours."""
    source = (TEMPLATES / f"{name.removesuffix('-large')}.jinja").read_text(encoding="utf-8")
    return source.replace(LARGE, CLOSED_THOUGHT) if name.endswith("-large") else source


@cache
def built_in(name: str) -> ChatTemplate:
    """Return our own template of that name, with a byte tokenizer."""
    return ChatTemplate(byte_tokenizer(name.removesuffix("-large")), name)


@cache
def through_jinja(name: str) -> ChatTemplate:
    """Return the same as a checkpoint with a Jinja template would have it."""
    return ChatTemplate(byte_tokenizer(name.removesuffix("-large")), name, JinjaTemplate(template_source(name)))


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def assistant(text: Any = None, *calls: tuple[str, str, Any], thought: str | None = None) -> dict[str, Any]:
    """Return an assistant message; calls are (id, name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought is not None:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    return message


def tool(call_id: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def function(name: str, description: str = "", **parameters: Any) -> dict[str, Any]:
    """Return a tool in OpenAI's form."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            **({"parameters": parameters} if parameters else {}),
        },
    }


SAID = st.lists(
    st.sampled_from(["Hello", " ", "\n", "<", "|", "<|", "|>", "thought\n", "{", "}", ",", ":", "é", "\ufdd0", "你"])
    | st.sampled_from(CONTROL_WORDS)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=3),
    max_size=5,
).map("".join)
"""Texts that hold control words and pieces of them."""

NAMES = st.sampled_from(["look_up", "fs.read-v2", "f", "Émile", "a_b_c"])
KEYS = st.sampled_from(["a", "B", "b", "key", "place name", "ä", "z9", "_"])
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | SAID,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
"""JSON values whose keys stand bare in a call."""
ARGUMENTS = st.dictionaries(KEYS, VALUES, max_size=3)

JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | SAID,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SAID, inner, max_size=4),
    max_leaves=12,
)


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Draw schemas of a parameter that every template prints alike: typed, without references."""
    common = {"description": SAID, "nullable": st.booleans()}
    drawn = [
        st.fixed_dictionaries({"type": st.sampled_from(["number", "integer", "boolean"])}, optional=common),
        st.fixed_dictionaries(
            {"type": st.just("string")}, optional={**common, "enum": st.lists(SAID, min_size=1, max_size=3)}
        ),
    ]
    if depth:
        inner = schemas(depth - 1)
        drawn += [
            st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional=common),
            st.fixed_dictionaries(
                {"type": st.just("object"), "properties": st.dictionaries(KEYS, inner, max_size=3)},
                optional={**common, "required": st.lists(KEYS, max_size=2, unique=True)},
            ),
        ]
    return st.one_of(drawn)


@st.composite
def tools_lists(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw the tools of a request."""
    found = []
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        parameters = {"type": "object", "properties": draw(st.dictionaries(KEYS, schemas(), max_size=3))}
        if draw(st.booleans()):
            parameters["required"] = draw(st.lists(KEYS, max_size=2, unique=True))
        found.append(function(name, draw(SAID), **(parameters if draw(st.booleans()) else {})))
    return found


@st.composite
def conversations(draw: st.DrawFn, *, ends_open: bool = False) -> list[dict[str, Any]]:
    """Draw a Gemma 4 conversation; with `ends_open`, one whose last message is the assistant's text."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(SAID)})
    num_calls = 0
    for _ in range(draw(st.integers(1, 4))):
        messages.append(user(draw(SAID | contents())))
        for _ in range(draw(st.integers(0, 3))):
            calls = []
            for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
                num_calls += 1
                calls.append((f"call-{num_calls}", draw(NAMES), draw(ARGUMENTS)))
            messages.append(assistant(draw(SAID | st.none()), *calls, thought=draw(st.none() | SAID)))
            if calls and draw(st.booleans()):
                # A mapping and media together have no form that templates print.
                results = draw(st.sampled_from([SAID | ARGUMENTS, SAID | contents()]))
                messages += [tool(call_id, draw(results)) for call_id, _, _ in calls]
    if ends_open:
        messages.append(assistant(draw(SAID) + draw(st.sampled_from(["x", " x ", "end\n"]))))
    return messages


@st.composite
def contents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw content that is a list of parts."""
    part = SAID.map(lambda text: {"type": "text", "text": text}) | st.sampled_from(
        [{"type": "image"}, {"type": "audio"}]
    )
    return draw(st.lists(part, min_size=1, max_size=3))


@st.composite
def alternating(draw: st.DrawFn, *, with_system: bool, ends_open: bool = False) -> list[dict[str, Any]]:
    """Draw a conversation as the templates of Gemma 2 and 3 demand it."""
    messages = [system(draw(SAID))] if with_system and draw(st.booleans()) else []
    num_turns = draw(st.integers(0, 3))
    for _ in range(num_turns):
        messages += [user(draw(SAID)), assistant(draw(SAID))]
    messages.append(user(draw(SAID)))
    if ends_open:
        messages.append(assistant(draw(SAID) + draw(st.sampled_from(["x", " x ", "end\n"]))))
    return messages
