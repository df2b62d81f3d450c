"""The page at /: chat and ledger in a browser, out of files of this package; a plain line for everybody else."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from gemwright.server.errors import NotFoundError

router = APIRouter(include_in_schema=False)

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Nothing but this server's own files: no inline script, no other origin, no frame around the page."""

_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Asked for again after an update of the server, since names stay.
    "cache-control": "no-cache",
}
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@router.api_route("/", methods=["GET", "HEAD"])
async def root(request: Request) -> Response:
    """The page for browsers; others learn that the server is up."""
    if "text/html" in request.headers.get("accept", ""):
        return _file("index.html", {"vary": "accept"})
    return PlainTextResponse("Gemwright is running", headers={"vary": "accept"})


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def page_file(name: str) -> Response:
    """A file of the page."""
    return _file(name)


@router.api_route("/favicon.ico", methods=["GET", "HEAD"])
async def icon() -> Response:
    """The page's icon, where browsers look for one unasked."""
    return _file("icon.svg")


def _file(name: str, headers: dict[str, str] | None = None) -> Response:
    found = page_files().get(name)
    if found is None:
        raise NotFoundError("the page has no such file", value=name[:200], remedy="open the page at /")
    media_type = _MEDIA_TYPES[name[name.rindex(".") :]]
    return Response(found, media_type=media_type, headers={**_HEADERS, **(headers or {})})


@cache
def page_files() -> dict[str, bytes]:
    """Return the page's files by name; they are read once."""
    folder = files("gemwright.server").joinpath("page")
    return {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()}
