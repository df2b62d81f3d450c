"""Every route of the server and every field of its requests, read out of the declarations: the data behind docs/api.md.

Fields come from the schemas of `gemwright/server`, with how they are handled; those of a chat's messages and tools from
`gemwright/text/messages.py`. tests/server/test_api_document.py tries what is called ignored or refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi.routing import APIRoute
from pydantic_core import PydanticUndefined

from gemwright.server import page
from gemwright.server.anthropic import schema as anthropic
from gemwright.server.app import make_app
from gemwright.server.fields import Part, json_schema
from gemwright.server.openai import responses_schema as responses
from gemwright.server.route import BODIES
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings
from gemwright.text.messages import FIELDS_OF_ROLE, HARMLESS_FIELDS, MEDIA_PARTS, TEXT_PARTS


@dataclass(frozen=True)
class Row:
    """One field: of which part, its name on the wire, what it may be, and what happens with it.

    `harmless` are values of a refused field that pass, since they ask for what happens anyway.
    """

    part: str
    name: str
    kind: str
    handling: str
    note: str = ""
    is_required: bool = False
    harmless: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Route:
    """One route; `body` names the schema of what is sent, `statuses` are those of its OpenAPI entry."""

    method: str
    path: str
    what: str
    tag: str
    body: str | None
    statuses: tuple[str, ...]


# Objects that are read apart, because their kind is known only by looking at them: field -> what may stand there.
READ_APART: dict[str, dict[str, tuple[type[Part], ...]]] = {
    "ResponsesBody": {
        "input": (
            responses.MessageItem,
            responses.FunctionCallItem,
            responses.FunctionCallOutputItem,
            responses.ReasoningItem,
        ),
        "tools": (responses.FunctionTool,),
        "tool_choice": (responses.FunctionChoice, responses.AllowedTools),
    },
    "MessageItem": {"content": (responses.TextContent, responses.RefusalContent)},
    "FunctionCallOutputItem": {"output": (responses.TextContent,)},
    "ReasoningItem": {"content": (responses.ReasoningText,), "summary": (responses.ReasoningText,)},
    "AllowedTools": {"tools": (responses.FunctionChoice,)},
    **{
        name: {"system": (anthropic.TextBlock,), "tools": (anthropic.CustomTool,)}
        for name in ("MessagesBody", "CountTokensBody")
    },
    "MessagePart": {
        "content": (
            anthropic.TextBlock,
            anthropic.ToolUseBlock,
            anthropic.ToolResultBlock,
            anthropic.ThinkingBlock,
            anthropic.RedactedThinkingBlock,
        )
    },
    "ToolResultBlock": {"content": (anthropic.TextBlock,)},
}

# Objects of a chat, which text/messages.py reads for all protocols: field -> their names here.
OF_CHATS: dict[str, dict[str, tuple[str, ...]]] = {
    "ChatBody": {"messages": ("Message",), "tools": ("Tool",)},
    "TokenizeBody": {"messages": ("Message",), "tools": ("Tool",)},
    "OllamaChatBody": {"tools": ("Tool",)},
    "OllamaMessage": {"tool_calls": ("Call",)},
    "Message": {"content": ("ContentPart",), "tool_calls": ("Call",)},
}

TITLES = {
    f"{anthropic.__name__}.MessagePart": "AnthropicMessage",
    "gemwright.server.ollama.schema.MessagePart": "OllamaMessage",
}
"""Names of parts that two protocols call the same."""

OTHER = "any other"


def title(part: type[Part]) -> str:
    """Return what the page calls a part."""
    return TITLES.get(f"{part.__module__}.{part.__name__}", part.__name__)


def parts_below(part: type[Part]) -> dict[str, tuple[type[Part], ...]]:
    """Return the parts that stand in a part's fields, by the field's name on the wire."""
    found: dict[str, tuple[type[Part], ...]] = {}
    for name, field in part.model_fields.items():
        inner = tuple(_parts_of(field.annotation))
        if inner:
            found[field.alias or name] = inner
    key = part.__name__ if title(part) != "OllamaMessage" else ""
    return {**found, **READ_APART.get(key, {})}


def _parts_of(annotation: Any) -> Iterator[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _parts_of(inner)


def all_parts() -> list[type[Part]]:
    """Return the bodies and every part that stands in them, each once, a part behind where it first stands."""
    found: list[type[Part]] = []

    def add(part: type[Part]) -> None:
        if part in found:
            return
        found.append(part)
        for inner in parts_below(part).values():
            for other in inner:
                add(other)

    for body in BODIES.values():
        add(body)
    return found


def rows_of(part: type[Part]) -> list[Row]:
    """Return the fields of a part in their order, honored first, then ignored, then refused."""
    properties = json_schema(part)["properties"]
    below = {name: tuple(title(inner) for inner in parts) for name, parts in parts_below(part).items()}
    below.update(OF_CHATS.get(title(part), {}))
    rows = []
    for own, field in part.model_fields.items():
        name = field.alias or own
        extra = field.json_schema_extra
        assert isinstance(extra, dict), f"{part.__name__}.{own} is not declared as honored, ignored or refused"
        harmless = extra.get("x-harmless", [])
        assert isinstance(harmless, list)
        rows.append(
            Row(
                title(part),
                name,
                kind(properties[name], below.get(name, ())),
                str(extra["x-handling"]),
                field.description or "",
                field.default is PydanticUndefined or field.is_required(),
                tuple(harmless),
            )
        )
    return sorted(rows, key=lambda row: ("honored", "ignored", "refused").index(row.handling))


def kind(schema: dict[str, Any], below: tuple[str, ...] = ()) -> str:
    """Return in words what a value may be; "" where anything may stand."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if option.get("type") != "null"]
        found = [kind(option, below) for option in options]
        return " or ".join(_without_repeats(found)) + _bounds(schema)
    shown = " or ".join(f"[{name}](#{name.lower()})" for name in below)
    if schema.get("type") == "array":
        inner = shown or _plural(kind(schema.get("items", {})))
        return f"a list of {inner}" if inner else "a list"
    if shown and schema.get("type") != "string":
        return shown
    return _WORDS.get(schema.get("type", ""), "") + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    bounds = [f", {word} {schema[key]:g}" for key, word in _BOUNDS.items() if key in schema]
    bounds += [f", at most {schema['maxLength']} characters"] if "maxLength" in schema else []
    return "".join(bounds)


def _plural(words: str) -> str:
    return f"lists{words.removeprefix('a list')}" if words.startswith("a list") else _PLURALS.get(words, words)


def _without_repeats(words: list[str]) -> list[str]:
    found = list(dict.fromkeys(words))
    # An integer is a number.
    numbers = [word.replace("integer", "number") for word in found if word.startswith("integer")]
    return [word for word in found if not (word.startswith("integer") and any(n in found for n in numbers))]


_WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "object": "object"}
_PLURALS = {"integer": "integers", "text": "texts", "object": "objects"}
_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}


def chat_rows() -> dict[str, list[Row]]:
    """Return the fields of a chat's objects."""
    roles = "`system`, `developer`, `user`, `assistant` (or `model`), `tool` (or `function`)"
    notes = {
        "content": "with a tool's result an object too",
        "reasoning": "a thought; read again since the last user turn, as the model was trained to",
        "reasoning_content": "the same under its other name",
        "tool_calls": "calls that the model made",
        "function_call": "the old form of one call",
        "tool_call_id": "the id of a call before it; without one, send `name`",
    }
    kinds = {
        "content": "text or a list of [ContentPart](#contentpart)",
        "tool_calls": "a list of [Call](#call)",
        "function_call": "object",
    }
    message = [Row("Message", "role", roles, "honored", is_required=True)]
    names = dict.fromkeys(name for role in FIELDS_OF_ROLE.values() for name in sorted(role))
    for name in names:
        owners = [role for role, fields in FIELDS_OF_ROLE.items() if name in fields]
        only = "" if len(owners) == len(FIELDS_OF_ROLE) else f"role {', '.join(owners)} alone: "
        message.append(Row("Message", name, kinds.get(name, "text"), "honored", only + notes[name]))
    message += [
        Row(
            "Message",
            name,
            "",
            "ignored",
            "no template prints it"
            if name != "name"
            else "but with role tool and without tool_call_id: which tool answered",
        )
        for name in sorted(HARMLESS_FIELDS)
    ]
    message.append(Row("Message", OTHER, "", "refused", "no such field of a message of its role"))
    media = ", ".join(f"`{name}`" for name in MEDIA_PARTS)
    return {
        "Message": message,
        "ContentPart": [
            Row(
                "ContentPart",
                "type",
                ", ".join(f"`{name}`" for name in TEXT_PARTS),
                "honored",
                f"{media} are refused: this version reads text alone",
                True,
            ),
            Row("ContentPart", "text", "text", "honored", "", True),
            Row("ContentPart", OTHER, "", "ignored", "the model reads the text"),
        ],
        "Call": [
            Row("Call", "id", "text", "honored", "what tool_call_id names"),
            Row("Call", "type", "`function`", "honored"),
            Row("Call", "function.name", "text without spaces, quotes and brackets", "honored", "", True),
            Row("Call", "function.arguments", "object, or the JSON text of one", "honored"),
            Row("Call", OTHER, "", "ignored", "no template prints it"),
        ],
        "Tool": [
            Row("Tool", "type", "`function`", "honored", "tools that other servers run are refused"),
            Row("Tool", "function.name", "text without spaces, quotes and brackets", "honored", "each name once", True),
            Row("Tool", "function.description", "text", "honored"),
            Row("Tool", "function.parameters", "object", "honored", "the schema of the arguments"),
            Row(
                "Tool",
                "function.strict",
                "true or false",
                "honored",
                "true: arguments keep to the schema; a schema that cannot be enforced whole is refused",
            ),
            Row("Tool", OTHER, "", "honored", "is handed to the model's template, which prints what it knows"),
        ],
    }


def all_rows() -> list[Row]:
    """Return the fields of all bodies and parts."""
    found = [row for part in all_parts() for row in rows_of(part)]
    return [*found, *(row for rows in chat_rows().values() for row in rows)]


APP = make_app(Service(ServerSettings(), "gemma"))
DOCUMENT: dict[str, Any] = APP.openapi()


def routes() -> list[Route]:
    """Return all routes in the order of the application, the page's and the OpenAPI document itself at the end."""
    found = []
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            found.append(
                Route(
                    method.upper(),
                    path,
                    _sentence(operation["description"]),
                    operation["tags"][0],
                    operation.get("x-body"),
                    tuple(operation["responses"]),
                )
            )
    for route in page.router.routes:
        assert isinstance(route, APIRoute)
        statuses = ("200", "404") if "{" in route.path else ("200",)
        for method in sorted(route.methods or ()):
            found.append(Route(method, route.path, _sentence(route.description), "Page", None, statuses))
    found.append(Route("GET", "/openapi.json", "All this as an OpenAPI document.", "Status", None, ("200",)))
    return found


def _sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())
