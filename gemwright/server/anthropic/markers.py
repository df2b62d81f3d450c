"""What Claude Code writes anew into each request's system text, taken out again.

Standing at the head of the prompt it would hide from the prefix cache that all the rest is known, and it tells the
model nothing.
"""

from __future__ import annotations

import re

_BILLING_LINES = re.compile(r"\A(?:\s*x-anthropic-billing-header:[^\r\n]*(?:\r?\n|\Z))+", re.IGNORECASE)
_TOKEN_COUNT = re.compile(r"[ \t]*<total_tokens>\s*\d+ tokens left\s*</total_tokens>[ \t]*\n?", re.IGNORECASE)


def without_markers(text: str) -> str:
    """Return a system text without billing lines at its start and counts of the tokens that are left."""
    found = _TOKEN_COUNT.sub("", _BILLING_LINES.sub("", text))
    return text if found == text else found.strip()
