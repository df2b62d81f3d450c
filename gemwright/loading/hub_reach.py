"""Whether anybody listens where the hub should be: asked before its client is loaded, by whoever can do without it.

Refuses to judge what answers there: that is the client's to find out.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final
from urllib.parse import urlsplit

CONNECT_SECONDS: Final = 4.0
"""How long all addresses of the hub together are waited for."""

_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy")


def listens() -> bool:
    """Return False where nobody takes a connection at $HF_ENDPOINT: no such host, a closed port, no route, no answer.

    True also where it cannot be told so: behind a proxy, or where the address makes no sense.
    """
    from huggingface_hub import constants

    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        return True
    try:
        address = urlsplit(constants.ENDPOINT)
        host, port = address.hostname, address.port or (80 if address.scheme == "http" else 443)
    except ValueError:
        return True
    if host is None or address.scheme not in ("http", "https"):
        return True
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    except UnicodeError:
        return True
    until = time.monotonic() + CONNECT_SECONDS
    for index, (family, kind, protocol, _, where) in enumerate(found):
        # An address that swallows what is sent to it leaves time for the others.
        seconds = (until - time.monotonic()) / (len(found) - index)
        if seconds <= 0:
            break
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(seconds)
                connection.connect(where)
        except OSError:
            continue
        return True
    return False
