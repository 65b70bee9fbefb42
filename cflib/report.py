"""The readable site: every claim with its verdict and evidence, the executed notebooks, and how all of it was made.

``build`` sets every page in memory and only then touches the folder, which is the site's own: what an earlier build
left there and this one does not need is removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
import yaml

from cflib import claims, lineage
from cflib.claims import ARMS, FOUND, NOTEBOOKS, OUTCOMES, PAPERS, PRESETS, Claim, Verdict
from cflib.files import write_atomically
from cflib.pages import Cell, Notebook, read
from cflib.rules import Finding
from cflib.tidying import impersonal
from cflib.wording import clock, number, plain, sentence, words

MADE = ".made-by-cflib"
"""The file by which the site knows its own folder; it lists what was written there."""
SIGNS = dict(zip(OUTCOMES, "\u2713\u25d0\u2717\u2013", strict=True))
SHOWN_ON_FRONT = 3
_TEMPLATES = Path(__file__).parent / "site"


@dataclass(frozen=True)
class View:
    """A claim and everything there is to show for it; its own arm's verdict comes first."""

    claim: Claim
    verdicts: tuple[Verdict, ...]
    defects: tuple[str, ...] = ()
    source: Notebook | None = None
    cells: tuple[Cell, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The headline verdict."""
        return self.verdicts[0]

    @property
    def outcome(self) -> str:
        """One of the four outcomes."""
        return self.verdict.outcome

    @property
    def address(self) -> str:
        """Where the claim is shown."""
        return f"paper-{self.claim.paper}.html#{self.claim.id}"

    @property
    def found(self) -> list[tuple[str, Finding]]:
        """The findings that fit on the front page."""
        return list(self.verdict.evidence.items())[:SHOWN_ON_FRONT]

    @property
    def more(self) -> int:
        """How many findings do not."""
        return max(0, len(self.verdict.evidence) - SHOWN_ON_FRONT)

    @property
    def basis(self) -> str:
        """What the verdict rests on: runs, arm and preset."""
        runs = sorted({one.n for one in self.verdict.evidence.values()})
        seeds = f"n = {runs[0]}" if len(runs) == 1 else f"n = {runs[0]} to {runs[-1]}"
        return f"{seeds}, {words(self.verdict.arm)}, {self.verdict.preset}"


@dataclass(frozen=True)
class Built:
    """What a build made, and what it could not show as it should."""

    front: Path
    claims: int
    pages: int
    complaints: tuple[str, ...]


def build(output: Path, *, executed: Path, results: Path, records: Path, reference: Path) -> Built:
    """Build the site from executed notebooks, verdicts, run records and the papers' defects.

    None of these folders needs to exist. Raises ``ValueError`` if ``output`` holds files that are not the site's.
    """
    _check_own(output)
    paths = sorted(executed.glob("*.ipynb"), key=lambda path: _order(path.name.removesuffix(".ipynb")))
    targets = {path.name.partition(".")[0]: path.name for path in paths} | {path.name: path.name for path in paths}

    def link(target: str) -> str | None:
        name = PurePosixPath(target.partition("#")[0]).name
        found = targets.get(name) or targets.get(name.removesuffix(".ipynb"))
        return found and f"{found.removesuffix('.ipynb')}.html"

    notebooks, complaints = [], []
    for path in paths:
        try:
            notebooks.append(read(path, link))
        except ValueError as error:
            complaints.append(str(error))
    defects = _defects(reference)
    views = _views(notebooks, claims.collect(results), defects)
    origins, unread = lineage.runs(records)
    complaints += [line for notebook in notebooks for line in notebook.complaints] + unread
    complaints += _unknown_claims(notebooks, views)
    files = _pages(notebooks, views, defects, origins)
    pages = len(files)
    files |= {address: content for notebook in notebooks for address, content in notebook.files.items()}
    files |= {name: (_TEMPLATES / name).read_bytes() for name in ("style.css", "icon.svg")}
    _write(output, files)
    return Built(output / "index.html", len(views), pages, tuple(complaints))


def _views(
    notebooks: list[Notebook], verdicts: Mapping[tuple[str, str], Verdict], defects: Mapping[str, Any]
) -> dict[str, View]:
    views = {}
    for name, claim in claims.load().items():
        arms = sorted(ARMS, key=lambda arm: arm != claim.arm)
        found = tuple(verdicts[name, arm] for arm in arms if (name, arm) in verdicts)
        deciding = [verdict.preset for verdict in found[:1] if verdict.outcome != OUTCOMES[3]]
        bearing = [notebook for notebook in notebooks if any(name in cell.claims for cell in notebook.cells)]
        source = max(bearing, key=lambda one: (one.preset in deciding, _rank(one.preset)), default=None)
        views[name] = View(
            claim,
            found,
            tuple(number for number, defect in defects.items() if name in defect["claims"]),
            source,
            tuple(_exhibit(cell, source) for cell in source.cells if name in cell.claims) if source else (),
        )
    return views


def _exhibit(cell: Cell, source: Notebook) -> Cell:
    """Return a cell fit for a claim's page: without headings, its local links leading back to the notebook."""
    body = re.sub(r"<h(\d).*?</h\1>\s*", "", cell.body, flags=re.DOTALL)
    body = re.sub(r' id="[^"]*"', "", body).replace('href="#', f'href="{source.name}.html#')
    return replace(cell, body=body)


def _unknown_claims(notebooks: Iterable[Notebook], views: Mapping[str, View]) -> list[str]:
    tags = dict.fromkeys((book.name, name) for book in notebooks for cell in book.cells for name in cell.claims)
    return [f"{book}: a cell is tagged claim:{name}, which is no claim" for book, name in tags if name not in views]


def _defects(reference: Path) -> dict[str, Any]:
    path = reference / "defects.yml"
    return dict(_yaml(path)) if path.is_file() else {}


def _yaml(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _pages(
    notebooks: list[Notebook], views: Mapping[str, View], defects: Mapping[str, Any], origins: list[lineage.Origin]
) -> dict[str, bytes]:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    templates.filters |= {"number": number, "plain": plain, "clock": clock, "words": words, "sentence": sentence}
    templates.filters |= {"sign": SIGNS.__getitem__, "classname": lambda outcome: outcome.replace(" ", "-")}
    templates.filters["lookup"] = lambda name, table: table.get(name)
    templates.globals["found"] = FOUND
    papers = _papers(notebooks, views, defects)
    menu = [("index.html", "Claims"), *((paper["address"], paper["short"]) for paper in papers)]
    menu += [("notebooks.html", "Notebooks"), ("defects.html", "Defects"), ("provenance.html", "Provenance")]
    files: dict[str, bytes] = {}

    def page(address: str, template: str, **content: Any) -> None:
        listed = any(address == one for one, _ in menu)
        here = {"here": address, "current": "page"} if listed else {"here": "notebooks.html", "current": "true"}
        text = templates.get_template(template).render(menu=menu, papers=papers, **here, **content)
        files[address] = impersonal(text).encode()

    everything = list(views.values())
    left = sum(view.verdict.open for view in everything)
    page("index.html", "index.html", views=everything, counts=_tally(everything), open=left, notebooks=notebooks)
    for paper in papers:
        page(paper["address"], "paper.html", paper=paper)
    for one in notebooks:
        siblings = [other for other in notebooks if other.slug == one.slug and other is not one]
        contents = [(anchor, text) for level, anchor, text in one.headings if level == 2]
        page(f"{one.name}.html", "notebook.html", notebook=one, siblings=siblings, contents=contents, views=views)
    slugs = dict.fromkeys(one.slug for one in notebooks)
    page("notebooks.html", "notebooks.html", groups=[[one for one in notebooks if one.slug == slug] for slug in slugs])
    page("defects.html", "defects.html", views=views)
    made = [(one, lineage.executed(one)) for one in notebooks]
    sets = lineage.numbered([*(origin for _, origin in made), *origins])
    total = sum(one.seconds or 0 for one in origins)
    page("provenance.html", "provenance.html", made=made, runs=origins, sets=sets, total=total)
    return files


def _papers(notebooks: list[Notebook], views: Mapping[str, View], defects: Mapping[str, Any]) -> list[dict[str, Any]]:
    about = _yaml(_TEMPLATES / "papers.yml")
    papers = []
    for name, slug in zip(PAPERS, NOTEBOOKS, strict=True):
        own = [view for view in views.values() if view.claim.paper == name]
        papers.append(
            {
                "url": "",
                **about[name],
                "id": name,
                "slug": slug,
                "address": f"paper-{name}.html",
                "views": own,
                "counts": _tally(own),
                "open": sum(view.verdict.open for view in own),
                "notebooks": [one for one in notebooks if one.slug == slug],
                "defects": {number: one for number, one in defects.items() if one["paper"] == name},
            }
        )
    return papers


def _tally(views: Iterable[View]) -> dict[str, int]:
    outcomes = [view.outcome for view in views]
    return {outcome: outcomes.count(outcome) for outcome in OUTCOMES}


def _rank(preset: str) -> int:
    return PRESETS.index(preset) if preset in PRESETS else -1


def _order(name: str) -> tuple[str, int, str]:
    slug, _, preset = name.partition(".")
    return slug, _rank(preset), preset


def _check_own(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file: name a folder for the site")
    if output.is_dir() and any(output.iterdir()) and not (output / MADE).is_file():
        raise ValueError(f"{output} holds files that are not the site's: empty it, or name another folder")


def _write(output: Path, files: Mapping[str, bytes]) -> None:
    """Write what changed and remove what an earlier build wrote and this one did not."""
    output.mkdir(parents=True, exist_ok=True)
    known = output / MADE
    try:
        before = set(json.loads(known.read_text("utf-8"))) if known.is_file() else set()
    except ValueError:
        raise ValueError(f"{known} is damaged, so nobody knows which files are the site's: empty {output}") from None
    # The list is complete at every moment, so that a build after an interrupted one finds all there is to remove.
    write_atomically(known, json.dumps(sorted(before | set(files))))
    for address, content in files.items():
        path = output / address
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)
    for address in before - set(files):
        if ".." not in PurePosixPath(address).parts and not PurePosixPath(address).is_absolute():
            (output / address).unlink(missing_ok=True)
    figures = output / "figures"
    if figures.is_dir() and not any(figures.iterdir()):
        figures.rmdir()
    write_atomically(known, json.dumps(sorted(files)))
