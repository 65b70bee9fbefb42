"""Numbers, durations and names as a reader wants to see them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MINUS, DASH = "\u2212", "\u2013"


def number(value: float | None) -> str:
    """Return a number to three significant digits, whole numbers in full; a dash if there is none.

    >>> number(1663370.0), number(0.98234), number(12.345)
    ('1,663,370', '0.982', '12.3')
    """
    if value is None or math.isnan(value):
        return DASH
    size = abs(value)
    if math.isinf(value):
        text = "\u221e"
    elif value == int(value):
        text = f"{int(size):,}"
    elif size < 1:
        text = f"{size:.3f}" if size >= 0.0005 else f"{size:.1g}"
    else:
        text = f"{size:.3g}" if size < 1000 else f"{size:,.0f}"
    return f"{MINUS}{text}" if value < 0 else text


def plain(value: Any) -> str:
    """Return what a paper reports, however the ledger writes it, as text.

    >>> plain([0.5, 10]), plain({"k": 3}), plain("about 1"), plain(8000)
    ('0.5, 10', 'k 3', 'about 1', '8,000')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain(one) for one in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}".replace("-", MINUS)
    return str(value)


def clock(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> clock(3.2), clock(125), clock(7260)
    ('3.2 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s" if left else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def words(name: str) -> str:
    """Return an identifier as words.

    >>> words("as_published")
    'as published'
    """
    return name.replace("_", " ")


def sentence(text: str) -> str:
    """Return a remark as a sentence.

    >>> sentence("no run yet")
    'No run yet.'
    """
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")
