"""Schemas as tools and structured answers in the world have them, written for these tests."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def thing(required: str = "", /, **properties: Any) -> Schema:
    """Return the schema of an object; `required` names properties with spaces between."""
    return {"type": "object", "properties": properties, **({"required": required.split()} if required else {})}


def text(**more: Any) -> Schema:
    return {"type": "string", **more}


def whole(**more: Any) -> Schema:
    return {"type": "integer", **more}


def number(**more: Any) -> Schema:
    return {"type": "number", **more}


def many(items: Any, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


YES_NO: Schema = {"type": "boolean"}
SHORT = text(maxLength=24)

PARAMETERS: dict[str, Schema] = {
    "get_weather": thing("city", city=text(minLength=1, maxLength=30), unit=text(enum=["celsius", "fahrenheit"])),
    "no_arguments": thing(),
    "search_web": thing("query", query=SHORT, limit=whole(minimum=1, maximum=50), safe=YES_NO),
    "send_mail": thing(
        "to subject body",
        to=many(text(format="email"), minItems=1, maxItems=3),
        subject=SHORT,
        body=text(maxLength=60),
        urgent={"type": ["boolean", "null"]},
    ),
    "create_event": thing(
        "title start",
        title=SHORT,
        start=text(format="date-time"),
        minutes=whole(minimum=5, maximum=600, multipleOf=5),
        guests=many(thing("name", name=SHORT, optional=YES_NO), maxItems=2),
    ),
    "edit_file": thing(
        "path edits",
        path=text(pattern=r"^/[a-z]{1,8}(/[a-z]{1,8})*$"),
        edits=many(
            {**thing("line text", line=whole(minimum=0), text=SHORT), "additionalProperties": False},
            minItems=1,
            maxItems=2,
        ),
    ),
    "run_sql": thing("statement", statement=SHORT, values=many({"type": ["string", "number", "null"]}, maxItems=3)),
    "click": thing(
        "x y", x=number(minimum=0, maximum=1), y=number(minimum=0, maximum=1), button=one_of("left", "right")
    ),
    "open_issue": thing(
        "repo title", repo=text(pattern="^[a-z]+/[a-z]+$"), title=SHORT, labels=many(one_of("bug", "idea"), maxItems=2)
    ),
    "translate": thing(
        "text target", text=SHORT, target=text(enum=["de", "fr", "日本語", 'with "quotes"', "a, b: {c}"])
    ),
    "pay": thing(
        "amount currency",
        amount=number(exclusiveMinimum=0, maximum=10_000),
        currency=text(pattern="^[A-Z]{3}$"),
        memo={"anyOf": [SHORT, {"type": "null"}]},
    ),
    "move_robot": thing(
        "to", to={"type": "array", "prefixItems": [number(), number()], "items": False, "minItems": 2}, speed=whole()
    ),
    "set_headers": thing("headers", headers={"type": "object", "additionalProperties": SHORT}),
    "store": {"type": "object", "properties": {"key": SHORT}, "required": ["key"], "additionalProperties": whole()},
    "book_table": {
        "type": "object",
        "$defs": {"Day": text(format="date"), "Guest": thing("name", name=SHORT, child=YES_NO)},
        "properties": {
            "day": {"$ref": "#/$defs/Day"},
            "host": {"$ref": "#/$defs/Guest"},
            "guests": many({"$ref": "#/$defs/Guest"}, maxItems=2),
        },
        "required": ["day", "host"],
    },
    "comment_tree": {
        "type": "object",
        "$defs": {"Node": thing("text", text=SHORT, replies=many({"$ref": "#/$defs/Node"}, maxItems=2))},
        "properties": {"root": {"$ref": "#/$defs/Node"}},
        "required": ["root"],
    },
    "draw": thing(
        "shape",
        shape={
            "oneOf": [
                {
                    **thing("kind radius", kind={"const": "circle"}, radius=number(minimum=0)),
                    "additionalProperties": False,
                },
                {
                    **thing("kind sides", kind={"const": "polygon"}, sides=whole(minimum=3)),
                    "additionalProperties": False,
                },
            ]
        },
    ),
    "filter_rows": thing(
        "where",
        where=many(
            thing("column op", column=SHORT, op=one_of("=", "<", ">"), value={"type": ["string", "number", "boolean"]}),
            minItems=1,
            maxItems=2,
        ),
    ),
    "odd_keys": thing(
        "a.b",
        **{"a.b": whole(), "with space": YES_NO, "x:y": SHORT, "Größe": number(), "$ref": SHORT, 'qu"ote': whole()},
    ),
    "case_order": thing("b A", b=whole(), A=whole(), B=YES_NO, a=YES_NO),
    "constants": thing("version mode", version={"const": 2}, mode={"const": "fast"}, level=one_of(1, 2.5, None, "max")),
    "nested_free": thing("payload", payload={"type": "object"}),
    "anything": thing("value", value={}),
    "configure": {"allOf": [thing("a", a=whole(minimum=0)), thing("b", b=YES_NO)]},
    "schedule": thing(
        "at every",
        at=text(format="time"),
        every=one_of("day", "week"),
        zone=text(default="UTC", maxLength=8),
        id=text(format="uuid"),
    ),
    "network": thing("host", host=text(format="ipv4"), port=whole(minimum=1, maximum=65535), link=text(format="uri")),
}
"""By the name of a tool: the schema of its arguments."""

ANSWERS: dict[str, Schema] = {
    **PARAMETERS,
    "a list": many(thing("id", id=whole()), minItems=1, maxItems=3),
    "a number": number(minimum=-5, maximum=5),
    "a word": one_of("yes", "no"),
    "by pattern": {"type": "object", "patternProperties": {"^x_[a-z]{1,5}$": whole()}, "additionalProperties": False},
    "linked list": {
        "$ref": "#/definitions/link",
        "definitions": {
            "link": thing("value", value=whole(), next={"anyOf": [{"type": "null"}, {"$ref": "#/definitions/link"}]})
        },
    },
}
"""Schemas of whole answers: those of tools and some that are no objects."""
