"""TeX equations turned into MathML, which browsers draw by themselves: no script, no font, no network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

_ENVIRONMENT = re.compile(r"\\(begin|end)\{(\w+)\*?\}")
_ALIGNED = frozenset({"align", "aligned", "split", "equation", "gathered"})
_TABLES = frozenset({"array", "cases", "matrix", "pmatrix", "bmatrix", "Bmatrix", "vmatrix", "Vmatrix", "smallmatrix"})
_PARTS = {"mfrac": 2, "msub": 2, "msup": 2, "msubsup": 3, "munder": 2, "mover": 2, "munderover": 3, "mroot": 2}

_LIMITS = frozenset({"max", "min", "sup", "inf", "lim", "arg\u2009max", "arg\u2009min"})
"""Operators that carry their condition below them where there is room."""


def to_mathml(tex: str, *, display: bool = False) -> str:
    r"""Return an equation, written in TeX without its dollar signs, as a ``<math>`` element.

    ``display`` sets it on a line of its own. Raises ``ValueError`` naming what is unknown or missing in it.

    >>> to_mathml("x_i")
    '<math display="inline" alttext="x_i"><mrow><msub><mi>x</mi><mi>i</mi></msub></mrow></math>'
    >>> to_mathml(r"\frobnicate{x}")
    Traceback (most recent call last):
    ValueError: cannot set the equation '\\frobnicate{x}': \frobnicate is not known
    """
    from latex2mathml.converter import convert

    source = tex.strip()
    try:
        _check_braces(source)
        text = convert(_ENVIRONMENT.sub(_known, source), display="block" if display else "inline")
    except Exception as error:
        # The converter raises many types, some of them without a word.
        reason = str(error) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
        raise ValueError(f"cannot set the equation {source!r}: {reason}") from error
    # A page in HTML needs no namespace, and XML no bare ampersand.
    text = re.sub(r"&(?!#)", "&amp;", text.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', ""))
    root = ElementTree.fromstring(text)
    for fault in _faults(root):
        raise ValueError(f"cannot set the equation {source!r}: {fault}")
    _join_words(root)
    for script in root.iterfind(".//msub"):
        if script[0].tag == "mo" and (script[0].text or "").strip() in _LIMITS:
            script.tag = "munder"
            script[0].set("movablelimits", "true")
    for bar in root.iterfind(".//mo[.='\u2016']"):
        if "stretchy" not in bar.attrib:
            # Browsers stretch a norm's bars to the height of a fraction beside them.
            bar.attrib.update(stretchy="false", lspace="0", rspace="0")
    root.set("alttext", source)
    return ElementTree.tostring(root, encoding="unicode")


def _check_braces(source: str) -> None:
    plain = re.sub(r"\\[{}\\]", "", source)
    if plain.count("{") != plain.count("}"):
        raise ValueError("its braces do not come in pairs")


def _known(match: re.Match[str]) -> str:
    if match[2] in _ALIGNED:
        return rf"\{match[1]}{{align*}}"
    if match[2] in _TABLES:
        return match[0]
    raise ValueError(f"the environment {match[2]} is not known")


def _faults(root: ElementTree.Element) -> Iterator[str]:
    """Find what the converter lets pass: commands it does not know, stray signs, fractions of one part."""
    for element in root.iter():
        text = (element.text or "").strip()
        if element.tag == "mi" and (text == "&" or (text.startswith("\\") and len(text) > 1)):
            yield f"{text} is not known" if text.startswith("\\") else f"a stray {text}"
        if len(element) != _PARTS.get(element.tag, len(element)):
            yield f"a part of the {element.tag.removeprefix('m')} is missing"
    if not list(root.iterfind(".//*[.!='']")):
        yield "there is nothing in it"


def _join_words(root: ElementTree.Element) -> None:
    """Make one word of upright letters that follow one another, so that they are set as a word."""
    for parent in root.iter():
        for left, right in zip(list(parent)[-2::-1], list(parent)[:0:-1], strict=True):
            if left.tag == right.tag == "mi" and left.attrib == right.attrib == {"mathvariant": "normal"}:
                left.text = f"{left.text}{right.text}"
                parent.remove(right)
