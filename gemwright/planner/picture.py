"""Pictures of a plan as SVG text: memory as a stacked bar, context against users as a curve. Knows no plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from gemwright.errors import show_bytes

_COLORS: Final = ("#3b6fb6", "#e08a2e", "#4d9a57", "#9a5fb0", "#c44e52", "#7a7a7a", "#b5a642", "#2a9d9d")
_WIDTH: Final = 760
_TEXT: Final = 'font-family="sans-serif" font-size="13" fill="#222"'


def stacked_bar(parts: Sequence[tuple[str, int]], limit_bytes: int | None) -> str:
    """Return a horizontal bar of named sizes in bytes, with a mark at `limit_bytes` where there is a limit."""
    shown = [(name, size) for name, size in parts if size > 0]
    total = sum(size for _, size in shown)
    scale = (_WIDTH - 40) / max(total, limit_bytes or 0, 1)
    rows: list[str] = []
    left = 20.0
    for index, (name, size) in enumerate(shown):
        color = _COLORS[index % len(_COLORS)]
        label = f"{escape(name)}: {show_bytes(size)}"
        box = f'x="{left:.1f}" y="34" width="{size * scale:.1f}" height="44"'
        rows.append(f'<rect {box} fill="{color}"><title>{label}</title></rect>')
        top = 128 + 22 * index
        rows.append(f'<rect x="20" y="{top - 11}" width="13" height="13" fill="{color}"/>')
        share = f"{size / total:.1%}"
        rows.append(f'<text x="42" y="{top}" {_TEXT}>{label} ({share})</text>')
        left += size * scale
    rows.append(f'<text x="20" y="22" {_TEXT}>{show_bytes(total)} in all</text>')
    if limit_bytes is not None:
        x = 20 + limit_bytes * scale
        anchor = "end" if x > _WIDTH / 2 else "start"
        rows.append(f'<line x1="{x:.1f}" y1="26" x2="{x:.1f}" y2="88" stroke="#222" stroke-width="2"/>')
        rows.append(
            f'<text x="{x:.1f}" y="102" text-anchor="{anchor}" {_TEXT}>{show_bytes(limit_bytes)} allowed</text>'
        )
    return _svg(128 + 22 * len(shown), rows)


def users_curve(points: Sequence[tuple[int, int]]) -> str:
    """Return context (tokens) against users at once, both axes logarithmic; points without a user are left out."""
    drawn = [(tokens, users) for tokens, users in points if users > 0]
    left, right, top, bottom = 80, _WIDTH - 30, 24, 300
    if not drawn:
        return _svg(bottom + 50, [f'<text x="20" y="40" {_TEXT}>not even one user fits</text>'])
    least, most = math.log2(drawn[0][0]), math.log2(drawn[-1][0])
    highest = max(1.0, math.log2(max(users for _, users in drawn)))

    def place(tokens: int, users: int) -> tuple[float, float]:
        x = left + (right - left) * ((math.log2(tokens) - least) / (most - least) if most > least else 0.5)
        return x, bottom - (bottom - top) * math.log2(users) / highest

    rows = [
        f'<line x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#222"/>',
        f'<line x1="{left}" y1="{top}" x2="{left}" y2="{bottom}" stroke="#222"/>',
    ]
    corners = [place(tokens, users) for tokens, users in drawn]
    rows.append(
        f'<polyline fill="none" stroke="{_COLORS[0]}" stroke-width="2" points="'
        + " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        + '"/>'
    )
    for (tokens, users), (x, y) in zip(drawn, corners, strict=True):
        rows.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_COLORS[0]}"/>')
        rows.append(f'<text x="{x:.1f}" y="{y - 9:.1f}" text-anchor="middle" {_TEXT}>{users:,}</text>')
        rows.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" {_TEXT}>{_short(tokens)}</text>')
    rows.append(f'<text x="{left}" y="{bottom + 40}" {_TEXT}>tokens of context</text>')
    rows.append(f'<text x="14" y="{top + 4}" {_TEXT}>users</text>')
    return _svg(bottom + 50, rows)


def _short(tokens: int) -> str:
    return f"{tokens >> 10}K" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def _svg(height: int, rows: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *rows, "</svg>"]) + "\n"
