"""Writes docs/api.md: every route of the server, and what it does with every field of a request.

    .venv/bin/python -m docs.write_api

Routes and fields stand in docs/api_rows.py; the tests compare the page and try what it says of fields.
"""

# ruff: noqa: E501  (rows of tables stand on one line)

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from docs import api_rows as rows
from docs.api_rows import Route, Row
from gemwright.server.errors import BusyError, FieldError, Style, error_body
from gemwright.server.openapi import MEANINGS
from gemwright.server.settings import ServerSettings

DOCUMENT = Path(__file__).with_name("api.md")

USUAL = ServerSettings()
TAGS = {
    "OpenAI": "OpenAI's",
    "Tokens": "Tokens, in vLLM's words",
    "Anthropic": "Anthropic's",
    "Ollama": "Ollama's",
    "Status": "For operators",
    "Page": "For browsers",
}
CHAT_PARTS = {
    "Message": "A message of a chat. What clients send back of an answer passes.",
    "ContentPart": "A part of a message's content.",
    "Call": "A call that the model made. The inner object alone is taken too.",
    "Tool": "A tool of the client. The inner object alone is taken too.",
}


def document() -> str:
    """Return docs/api.md."""
    return f"""# The HTTP interface

`gemwright serve MODEL` answers at `http://127.0.0.1:8000` until `--host` and `--port` say otherwise. What a client
sends is honored, or ignored where it cannot change an answer, or refused by name with status 400. There is no fourth
way, and a field that is not in these tables is refused. Written by `python -m docs.write_api` from the schemas that
read the requests; the tests try every field that is called ignored or refused. `GET /openapi.json` has the same for
programs.

## Clients

| Client of | Base URL | Key |
| --- | --- | --- |
| OpenAI | `http://127.0.0.1:8000/v1` (`OPENAI_BASE_URL`) | `Authorization: Bearer KEY` (`OPENAI_API_KEY`) |
| Anthropic | `http://127.0.0.1:8000` (`ANTHROPIC_BASE_URL`) | `x-api-key: KEY` (`ANTHROPIC_API_KEY`), or Bearer |
| Ollama | `http://127.0.0.1:8000` (`OLLAMA_HOST`) | `Authorization: Bearer KEY` |

Without `--api-key` and `--api-key-file` no key is looked at; clients that insist on one may send any. With them every
route wants one of the keys in either header, but for `/health`, `/ready`, `/ping`, `/metrics` and the page, which asks
its user. The model is called what `--served-model-name` says, or what it was started as; `GET /v1/models` lists it, and
Ollama's clients may put `:latest` behind it. Any other name is a 404.

A body is JSON in UTF-8, whatever its content type says; NaN and Infinity are refused. `x-request-id` is taken if it is
128 letters, digits or `._:/+=-` at most, made otherwise, and comes back with every answer, as `request-id` too; the log
has it. Pages of other origins may call where `--allowed-origins` names them.

## Nothing is stored

A request brings the whole conversation along, and its answer is kept by whoever received it: there are no threads,
files or stored responses, and what asks for one by an id is refused. What stays is the prefix cache: blocks of keys and
values that a later prompt with the same beginning finds. It changes no answer. `cache_salt` keeps prompts apart: within
one salt alone they share.

## Errors

| Status | When |
| --- | --- |
{statuses()}

405 is a route under another method. Where a client goes away first, its request ends within a step, and the log says
499. An error tells what is wrong, the value, the limit and a remedy. OpenAI's routes and all others that are not named
here answer with the first shape, `/v1/messages` with the second, `/api/` with the third:

```json
{shape("openai")}
{shape("anthropic")}
{shape("ollama")}
```

`param` is the path of the field, and `code` one that clients look for: `model_not_found`, `invalid_api_key`,
`rate_limit_exceeded`, `context_length_exceeded`. `Retry-After` comes with 429 (1 second) and 503 (5 seconds). An error
in the middle of a stream is its last event, in the same shape: OpenAI's streams end with `[DONE]` behind it, one of
`/v1/responses` with `response.failed`, Anthropic's with an `error` event, Ollama's with a line.

## Streams

| Routes | Form | In silence |
| --- | --- | --- |
| `/v1/chat/completions`, `/v1/completions` | `data:` with JSON, at the end `data: [DONE]`; usage with `stream_options` | a comment |
| `/v1/responses` | named events, numbered; the last has the whole response | a comment |
| `/v1/messages` | named events from `message_start` to `message_stop` | `ping` |
| `/api/chat`, `/api/generate` | a JSON object a line; the default, `stream` false gives one object | nothing |

Keep-alives come after {USUAL.keep_alive_s:g} seconds (`--sse-keep-alive-interval`).

## Thoughts

| Routes | Asked for by | Where they come |
| --- | --- | --- |
| `/v1/chat/completions` | `chat_template_kwargs.enable_thinking`, `reasoning_effort` | `reasoning` and `reasoning_content` of the message or delta; `--reasoning-field` chooses one |
| `/v1/responses` | `reasoning.effort` | an item of type `reasoning`, its content `reasoning_text` |
| `/v1/messages` | `thinking` | blocks of type `thinking`, without a signature |
| `/api/chat`, `/api/generate` | `think` | `thinking` of the message, or beside `response` |

Nothing asked, the model does not think. It reads its thoughts again until the next message of the user, if they are
sent back in the same fields.

## Usage

| Routes | Prompt | Of it from the cache | Answer | Of it thoughts |
| --- | --- | --- | --- | --- |
| `/v1/chat/completions`, `/v1/completions` | `prompt_tokens` | `prompt_tokens_details.cached_tokens` | `completion_tokens` | `completion_tokens_details.reasoning_tokens` |
| `/v1/responses` | `input_tokens` | `input_tokens_details.cached_tokens` | `output_tokens` | `output_tokens_details.reasoning_tokens` |
| `/v1/messages` | `input_tokens`, without what came from the cache | `cache_read_input_tokens` | `output_tokens` | `output_tokens_details.thinking_tokens` |
| `/api/chat`, `/api/generate` | `prompt_eval_count` | | `eval_count` | |

Ollama's durations are nanoseconds.

## Limits

| Flag | Left out | What it bounds |
| --- | --- | --- |
| `--max-num-queued-reqs` | {USUAL.max_num_queued_requests} | prompts that wait for their first step; more get 429 |
| `--max-num-seqs` | 16 | answers that are written together; others wait |
| `--max-body-bytes` | {USUAL.max_body_bytes >> 20} MiB | a request's body; larger ones get 413 |
| `--max-answers` | {USUAL.max_answers} | answers of one request: `n`, times prompts |
| `--request-timeout` | {USUAL.request_timeout_s:g} s | an answer, from its arrival on: 504, or an error in its stream; then a client that does not read |
| `--max-model-len` | the model's, or what the cache holds | prompt and answer; a longer prompt gets 400 |
| `--drain-timeout` | {USUAL.drain_timeout_s:g} s | answers that still run after SIGTERM |

## Start and end

The server listens before the model is loaded: until then `/health` and whatever needs the model answer 503. The ready
line on stdout names the address. After SIGTERM new requests get 503, those that run are answered, and the exit code is
0; SIGINT does the same with 130, and a second signal ends at once. Before that: 2 for a wrong flag or an address that
cannot be listened on, 3 for a model that is not supported, 4 for one that does not fit, 5 for a bad or missing file.

## Routes

Where keys are set, 401 is among the statuses of all that want one.

{all_routes()}

## Bodies

Honored fields stand first, then those that are ignored, then those that are refused. null is the same as leaving a
field out, unless it is required. A refused field passes with the values that are named, as they ask for what happens
anyway.

{bodies()}

### Messages and tools of chats

For `/v1/chat/completions` and `/tokenize`; Ollama's tools and calls are read the same way.

{chat_parts()}
"""


def statuses() -> str:
    """Return the rows of what a status means."""
    return "\n".join(f"| {status} | {meaning} |" for status, meaning in MEANINGS.items())


def shape(style: Style) -> str:
    """Return an error as JSON."""
    if style == "ollama":
        return json.dumps(error_body(BusyError("too many requests wait", value=256, limit="256 waiting"), style))
    error = FieldError("logit_bias.7", "is no number", value="'x'", remedy="change it")
    return json.dumps(error_body(error, style))


def all_routes() -> str:
    """Return the tables of routes."""
    found = rows.routes()
    return "\n\n".join(
        f"### {heading}\n\n" + _route_table([route for route in found if route.tag == tag])
        for tag, heading in TAGS.items()
    )


def _route_table(found: list[Route]) -> str:
    together: dict[str, list[Route]] = {}
    for route in found:
        together.setdefault(route.path, []).append(route)
    lines = ["| Route | What it does | Statuses |", "| --- | --- | --- |"]
    for path, same in together.items():
        methods = ", ".join(sorted(route.method for route in same))
        name = f"`{methods} {path}`"
        shown = name if same[0].body is None else f"[{name}](#{_anchor(f'{methods} {path}')})"
        lines.append(f"| {shown} | {cell(same[0].what)} | {', '.join(same[0].statuses)} |")
    return "\n".join(lines)


def _anchor(heading: str) -> str:
    """Return the anchor that a heading has on a page."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def bodies() -> str:
    """Return a section for each body and for each part, a part behind the body that it first stands in."""
    names = {route.body: f"{route.method} {route.path}" for route in rows.routes() if route.body is not None}
    order = {name: place for place, name in enumerate(names)}
    found: list[str] = []
    seen: set[str] = set()
    for name in sorted(order, key=lambda body: order[body]):
        (body,) = [part for part in rows.all_parts() if part.__name__ == name]
        waiting = [body]
        while waiting:
            part = waiting.pop(0)
            title = rows.title(part)
            if title in seen:
                continue
            seen.add(title)
            heading = f"### {names[title]}" if title in names else f"#### {title}"
            found.append(f"{heading}\n\n{' '.join((part.__doc__ or '').split())}\n\n{table(rows.rows_of(part))}")
            waiting = [inner for parts in rows.parts_below(part).values() for inner in parts] + waiting
    return "\n\n".join(found)


def chat_parts() -> str:
    """Return the sections of a chat's objects."""
    return "\n\n".join(
        f"#### {name}\n\n{CHAT_PARTS[name]}\n\n{table(found)}" for name, found in rows.chat_rows().items()
    )


def table(found: Iterable[Row]) -> str:
    """Return a table of fields."""
    lines = ["| Field | | Values | |", "| --- | --- | --- | --- |"]
    for row in found:
        name = row.name if row.name == rows.OTHER else f"`{row.name}`"
        handling = f"**{row.handling}**" if row.handling == "refused" else row.handling
        handling += ", required" if row.is_required else ""
        note = row.note
        if row.harmless:
            # 1 and 1.0 are one number to clients.
            passing = [f"`{json.dumps(value)}`" for value in row.harmless if not isinstance(value, float)]
            note += f"; {', '.join(passing)} {'passes' if len(passing) == 1 else 'pass'}"
        lines.append(f"| {name} | {handling} | {cell(row.kind)} | {cell(note)} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Return a text as one cell can hold it."""
    return text.replace("|", r"\|").replace("\n", " ")


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
