"""Markdown and foreign HTML turned into HTML that a page can trust.

Equations become MathML, code is coloured, and nothing is left that a browser would run or fetch from elsewhere.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import bleach  # type: ignore[import-untyped]
import mistune
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

from cflib.equations import to_mathml

TAGS = frozenset(
    re.findall(
        r"\w+",
        "a abbr b blockquote br caption code col colgroup dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd "
        "li ol p pre q s section small span strong sub summary sup table tbody td tfoot th thead tr u ul var",
    )
)
ATTRIBUTES = {
    "*": ["class", "id", "title"],
    "a": ["href"],
    "img": ["src", "alt", "width", "height"],
    "td": ["colspan", "rowspan"],
    "th": ["colspan", "rowspan", "scope"],
    "ol": ["start"],
}
_WITH_CONTENT = re.compile(r"<(script|style|title|iframe|object)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_HELD = re.compile("\ue000(\\d+)\ue001")


def nowhere(target: str) -> str | None:
    """Lead no link anywhere."""
    return None


@dataclass
class Place:
    """What a text may refer to where it is shown, and what was found out while it was set."""

    link: Callable[[str], str | None] = nowhere
    """Where a link to a file leads on the site, or None if that file is not there."""
    picture: Callable[[str], str | None] = nowhere
    """The same for a picture."""
    headings: list[tuple[int, str, str]] = field(default_factory=list)
    """Level, anchor and text of every heading met, in order."""
    complaints: list[str] = field(default_factory=list)
    """Equations that could not be set; they are shown as they were written."""


def render(markdown: str, place: Place | None = None) -> str:
    r"""Return Markdown with ``$equations$`` as HTML.

    >>> render("Twice $x$")
    '<p>Twice <math display="inline" alttext="x"><mrow><mi>x</mi></mrow></math></p>\n'
    """
    writer = _Writer(place or Place())
    text = mistune.create_markdown(renderer=writer, plugins=["table", "strikethrough", "footnotes", "math"])(markdown)
    text = clean(str(text), writer.inside)
    return _HELD.sub(lambda match: writer.held[int(match[1])], text)


def clean(text: str, inside: Callable[[str], bool] = lambda url: False) -> str:
    """Return HTML without what runs, styles or loads; a picture stays only if ``inside`` knows its address."""

    def allowed(tag: str, name: str, value: str) -> bool:
        if name == "src":
            return inside(value)
        return name in ATTRIBUTES["*"] or name in ATTRIBUTES.get(tag, [])

    plain = _WITH_CONTENT.sub("", text.replace("\x00", ""))
    cleaned = bleach.clean(plain, tags=TAGS, attributes=allowed, protocols={"http", "https", "mailto"}, strip=True)
    return re.sub(r"<img(?![^>]*\ssrc=)[^>]*>", "", str(cleaned))


def colour(code: str, language: str = "python") -> str:
    """Return source code as HTML whose words carry the classes that the style sheet colours.

    >>> colour("x = 1")
    '<span class="n">x</span> <span class="o">=</span> <span class="mi">1</span>'
    """
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return html.escape(code.removesuffix("\n"))
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True))).removesuffix("\n")


def anchor(text: str) -> str:
    """Return the name under which Jupyter links to a heading: its words joined by dashes."""
    return re.sub(r"\s+", "-", html.unescape(re.sub(r"<[^>]+>", "", text)).strip())


class _Writer(mistune.HTMLRenderer):
    """Writes HTML; equations are held back behind marks, since they need no cleaning and would not survive it."""

    def __init__(self, place: Place) -> None:
        super().__init__(escape=False)
        self.place = place
        self.held: list[str] = []
        self.pictures: set[str] = set()

    def inside(self, url: str) -> bool:
        """Tell whether this address came from the site itself."""
        return url in self.pictures

    def text(self, text: str) -> str:
        return super().text(re.sub("[\ue000\ue001]", "", text))

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        name = anchor(_HELD.sub("", text))
        taken = {one for _, one, _ in self.place.headings}
        name = next(one for n in range(1, 1000) if (one := name if n == 1 else f"{name}-{n}") not in taken)
        words = html.unescape(re.sub(r"<[^>]+>", "", _HELD.sub("", text)))
        self.place.headings.append((level, name, words))
        return f'<h{level} id="{html.escape(name)}">{text}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        if not re.match(r"(https?:|mailto:|#)", url):
            found = self.place.link(url)
            return text if found is None else super().link(text, found, title)
        return super().link(text, url, title)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        found = self.place.picture(url)
        if found is None:
            return self.link(text or url, url, title)
        self.pictures.add(found)
        return super().image(text, found, title)

    def codespan(self, text: str) -> str:
        found = self.place.link(f"{text}.ipynb") if re.fullmatch(r"\d\d_\w+", text) else None
        return super().codespan(text) if found is None else super().link(super().codespan(text), found)

    def block_code(self, code: str, info: str | None = None) -> str:
        words = (info or "").split()
        return f'<pre class="code"><code>{colour(code, words[0] if words else "text")}</code></pre>\n'

    def table(self, text: str) -> str:
        return f'<div class="wide"><table>\n{text}</table></div>\n'

    def table_cell(self, text: str, align: str | None = None, head: bool = False) -> str:
        tag = "th" if head else "td"
        return f'<{tag} class="{align or "left"}">{text}</{tag}>'

    def block_math(self, text: str) -> str:
        return self._equation(text, display=True)

    def inline_math(self, text: str) -> str:
        return self._equation(text, display=False)

    def _equation(self, tex: str, *, display: bool) -> str:
        try:
            self.held.append(to_mathml(tex, display=display))
        except ValueError as error:
            self.place.complaints.append(str(error))
            return f"<code>{html.escape(tex)}</code>"
        mark = f"\ue000{len(self.held) - 1}\ue001"
        return f'<span class="equation">{mark}</span>' if display else mark
