from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflib import claims, equations, lineage, pages, prose, report, rules, wording
from cflib.__main__ import main
from cflib.provenance import PROJECT
from tests.crafted import REFERENCE, code, fails, picture, prints, shows, write, write_record, write_results, write_tour
from tests.crafted import prose as said

VOID = {"br", "col", "hr", "img", "input", "link", "meta"}


class Page(HTMLParser):
    """What a page links to, loads and holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        own = dict(attributes)
        self.tags.append(tag)
        self.attributes.append((tag, own))
        self.ids += [own["id"]] if own.get("id") else []
        if "href" in own:
            (self.links if tag == "a" else self.loads).append(own["href"] or "")
        self.loads += [own[name] or "" for name in ("src", "srcset", "data", "poster") if name in own]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


Build = Callable[[], report.Built]


def builder(folder: Path) -> Build:
    def built() -> report.Built:
        places = {name: folder / name for name in ("executed", "results", "records")}
        return report.build(folder / "site", **places, reference=REFERENCE)

    return built


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return builder(tmp_path)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bit of everything, and the site built from it."""
    folder = tmp_path_factory.mktemp("compendium")
    write_tour(folder / "executed")
    write_tour(folder / "executed", "01_louvain_cfl.smoke")
    write(folder / "executed", "00_start_here.quick", said("# Start"), code("1 / 0", fails("ZeroDivisionError", "0")))
    write_results(folder / "results")
    write_record(folder / "records")
    assert builder(folder)().complaints == ()
    return folder


@pytest.fixture(scope="module")
def full(inputs: Path) -> dict[str, Page]:
    return read_site(inputs / "site")


def read_site(folder: Path) -> dict[str, Page]:
    return {path.name: Page(path.read_text("utf-8")) for path in sorted(folder.glob("*.html"))}


def broken(folder: Path) -> list[str]:
    """Every link or file of a site that leads nowhere."""
    site = read_site(folder)
    faults = []
    for name, page in site.items():
        for target in (*page.links, *page.loads):
            parts = urlsplit(target)
            if parts.scheme in ("http", "https"):
                continue
            file = unquote(parts.path) or name
            if not (folder / file).is_file():
                faults.append(f"{name}: no file {target}")
            elif parts.fragment and unquote(parts.fragment) not in site[file].ids:
                faults.append(f"{name}: no place {target}")
    return faults


# The site as a whole


def test_no_link_leads_nowhere(inputs: Path, full: dict[str, Page]) -> None:
    assert broken(inputs / "site") == []
    assert sum(len(page.links) for page in full.values()) > 500


def test_nothing_is_loaded_from_elsewhere(inputs: Path, full: dict[str, Page]) -> None:
    for name, page in full.items():
        assert not [target for target in page.loads if urlsplit(target).scheme or target.startswith("//")], name
        assert not [own for tag, own in page.attributes if tag == "script" and "src" in own], name
        assert {"iframe", "object", "embed", "base"}.isdisjoint(page.tags), name
        assert "style" not in page.tags, name
    style = (inputs / "site" / "style.css").read_text("utf-8")
    assert "url(" not in style
    assert "@import" not in style


def test_every_page_says_its_language_title_and_width_and_no_id_twice(full: dict[str, Page]) -> None:
    for name, page in full.items():
        assert ("html", {"lang": "en"}) in page.attributes
        assert any(tag == "meta" and own.get("name") == "viewport" for tag, own in page.attributes)
        assert page.tags.count("title") == page.tags.count("h1") == 1, name
        assert len(page.ids) == len(set(page.ids)), name


def test_every_picture_has_words_for_those_who_cannot_see_it(full: dict[str, Page]) -> None:
    pictures = [own for page in full.values() for tag, own in page.attributes if tag == "img"]
    assert pictures
    assert all(own["alt"] for own in pictures)


def test_this_machine_does_not_show(tmp_path: Path, build: Build) -> None:
    said_paths = f"{sys.prefix}/lib {Path.home()}/x {PROJECT}/cflib/a.py ({PROJECT})"
    write(tmp_path / "executed", "00_start_here.quick", code("x", prints(said_paths)))
    build()
    text = (tmp_path / "site" / "00_start_here.quick.html").read_text("utf-8")
    assert "cflib/a.py" in text
    for path in (sys.prefix, str(Path.home()), str(PROJECT)):
        assert path not in text


def test_with_nothing_run_every_claim_is_listed_and_the_pages_say_so(tmp_path: Path, build: Build) -> None:
    built = build()
    site = read_site(tmp_path / "site")
    assert (built.claims, built.pages) == (len(claims.load()), len(site))
    assert broken(tmp_path / "site") == []
    assert "No notebook has been executed yet" in site["index.html"].text
    assert "No notebook has been executed yet" in site["notebooks.html"].text
    assert "No run is on record yet" in site["provenance.html"].text
    assert f"{len(claims.load())} not attempted" in site["index.html"].text


# What the pages say


def test_the_front_page_has_a_row_and_a_mark_for_every_claim(full: dict[str, Page]) -> None:
    front = full["index.html"]
    for claim in claims.load().values():
        assert front.links.count(f"paper-{claim.paper}.html#{claim.id}") >= 2
        assert claim.id in full[f"paper-{claim.paper}.html"].ids


def test_the_front_page_shows_value_interval_runs_arm_preset_and_verdict(inputs: Path, full: dict[str, Page]) -> None:
    text = (inputs / "site" / "index.html").read_text("utf-8")
    row = next(row for row in re.findall(r"<tr data-paper.*?</tr>", text, re.DOTALL) if "#L03" in row)
    assert 'data-outcome="reproduced"' in row
    assert "0.500" in row
    assert "[0.400, 0.600]" in row
    assert "n = 5, corrected, long" in row


def test_outcomes_differ_by_sign_as_well_as_by_colour(full: dict[str, Page]) -> None:
    assert sorted(report.SIGNS) == sorted(claims.OUTCOMES)
    assert len(set(report.SIGNS.values())) == len(claims.OUTCOMES)
    front = full["index.html"].text
    for outcome, sign in report.SIGNS.items():
        assert f"{sign} {outcome}" in front or f"{sign} 1 {outcome}" in front


def test_a_figure_stands_by_every_claim_its_cell_is_tagged_with(inputs: Path, full: dict[str, Page]) -> None:
    text = (inputs / "site" / "paper-000.html").read_text("utf-8")
    articles = {name: text.split(f'id="{name}"')[1].split("</article>")[0] for name in ("L03", "L04", "L05")}
    assert 'alt="Falls"' in articles["L03"]
    assert 'alt="Falls"' in articles["L05"]
    assert "<img" not in articles["L04"]
    assert "Accuracy falls with" in articles["L03"]
    assert "<h3" not in articles["L03"]


def test_the_preset_that_decided_gives_the_figure(tmp_path: Path, build: Build) -> None:
    for preset in ("quick", "long", "paper"):
        write_tour(tmp_path / "executed", f"01_louvain_cfl.{preset}")
    write_results(tmp_path / "results", preset="long")
    build()
    text = (tmp_path / "site" / "paper-000.html").read_text("utf-8")
    assert claims.collect(tmp_path / "results")["L03", "corrected"].outcome == "reproduced"
    assert 'src="figures/01_louvain_cfl.long' in text.split('id="L03"')[1].split("</article>")[0]


def test_the_largest_preset_gives_the_figure_of_a_claim_not_decided(tmp_path: Path, build: Build) -> None:
    for preset in ("quick", "paper", "smoke"):
        write_tour(tmp_path / "executed", f"01_louvain_cfl.{preset}")
    build()
    shown = read_site(tmp_path / "site")["paper-000.html"].loads
    assert [name for name in shown if name.startswith("figures/")]
    assert all("paper" in name for name in shown if name.startswith("figures/"))


@pytest.mark.parametrize("against", [True, False])
def test_what_is_left_open_looks_other_than_what_is_contradicted(tmp_path: Path, build: Build, against: bool) -> None:
    claim = claims.load()["L12"]
    found = {label: rules.Finding(False, 0.5, (0.4, 0.6), 5, against=against) for label in claim.conditions}
    verdict = claims.Verdict("L12", "not reproduced", "corrected", "long", found, "", claim.digest)
    claims.save("01_louvain_cfl", "long", [verdict], {}, tmp_path / "results")
    build()
    for name in ("index.html", "paper-000.html"):
        text = (tmp_path / "site" / name).read_text("utf-8")
        assert ("1</b> of them left open" in text) is not against
        assert ('class="not-reproduced left-open"' in text) is not against
        assert ("L12, not reproduced, left open" in text) is not against


def test_the_other_arm_is_shown_under_the_headline(full: dict[str, Page]) -> None:
    assert "corrected arm, preset long" in full["paper-000.html"].text
    assert "as published arm, preset long" in full["paper-000.html"].text


def test_a_claim_names_the_defects_that_touch_it_and_they_name_the_claim(full: dict[str, Page]) -> None:
    assert "defects.html#L-3" in full["paper-000.html"].links
    assert "paper-000.html#L08" in full["defects.html"].links
    assert "L-15" in full["defects.html"].ids


def test_a_notebook_page_links_back_to_the_claims_it_bears_on(full: dict[str, Page]) -> None:
    page = full["01_louvain_cfl.quick.html"]
    assert "paper-000.html#L03" in page.links
    assert "00_start_here.quick.html" in page.links
    assert "01_louvain_cfl.smoke.html" in page.links


def test_equations_become_mathml(full: dict[str, Page]) -> None:
    page = full["01_louvain_cfl.quick.html"]
    assert page.tags.count("math") == 5
    assert "mfrac" in page.tags
    assert "$" not in page.text


def test_provenance_lists_preset_seeds_data_versions_and_commit(full: dict[str, Page]) -> None:
    text = full["provenance.html"].text
    for fact in (
        "01_louvain_cfl",
        "quick",
        "0, 1, 2",
        "cifar10",
        "1 min 13 s",
        "abc123def456",
        "numpy 2.4.6",
        "lock 77",
    ):
        assert fact in text
    assert "a" * 20 in text
    assert "split ffffffffffff" in text


def test_a_tag_that_names_no_claim_is_reported(tmp_path: Path, build: Build) -> None:
    write(tmp_path / "executed", "00_start_here.quick", code("x", tags=("claim:Z99",)))
    assert build().complaints == ("00_start_here.quick: a cell is tagged claim:Z99, which is no claim",)


def test_what_cannot_be_read_is_reported_and_the_rest_is_shown(tmp_path: Path, build: Build) -> None:
    (tmp_path / "executed").mkdir()
    (tmp_path / "executed" / "00_broken.quick.ipynb").write_text("{")
    (tmp_path / "executed" / "00_old.quick.ipynb").write_text('{"nbformat": 3, "cells": []}')
    write(tmp_path / "executed", "01_louvain_cfl.quick", said("$\\frobnicate$"))
    write_record(tmp_path / "records")
    (tmp_path / "records" / "damaged.npz").write_bytes(b"PK")
    told = build().complaints
    assert [line.split(" ")[0] for line in told] == [
        "00_broken.quick.ipynb",
        "00_old.quick.ipynb",
        "01_louvain_cfl.quick:",
        "record",
    ]
    site = read_site(tmp_path / "site")
    assert "\\frobnicate" in site["01_louvain_cfl.quick.html"].text
    assert "a" * 20 in site["provenance.html"].text
    assert (tmp_path / "records" / "damaged.npz").is_file()


# The folder


def test_building_twice_changes_nothing(inputs: Path) -> None:
    def state() -> dict[str, tuple[bytes, int]]:
        files = (path for path in (inputs / "site").rglob("*") if path.is_file() and path.name != report.MADE)
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = state()
    builder(inputs)()
    assert state() == before


def test_pages_and_figures_of_a_notebook_that_is_gone_are_removed(tmp_path: Path, build: Build) -> None:
    path = write_tour(tmp_path / "executed")
    build()
    own = tmp_path / "site" / "notes.txt"
    own.write_text("mine")
    assert list((tmp_path / "site" / "figures").iterdir())
    path.unlink()
    build()
    assert not (tmp_path / "site" / "01_louvain_cfl.quick.html").exists()
    assert not (tmp_path / "site" / "figures").exists()
    assert own.read_text() == "mine"


def test_a_list_of_files_that_points_outside_removes_nothing_there(tmp_path: Path, build: Build) -> None:
    build()
    outside = tmp_path / "precious.txt"
    outside.write_text("stays")
    (tmp_path / "site" / report.MADE).write_text(json.dumps(["../precious.txt", str(outside)]))
    build()
    assert outside.is_file()


def test_a_damaged_list_of_files_is_named_with_its_remedy(tmp_path: Path, build: Build) -> None:
    build()
    (tmp_path / "site" / report.MADE).write_text('["index.ht')
    with pytest.raises(ValueError, match=r"is damaged, so nobody knows .*: empty"):
        build()


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path, build: Build) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="not the site's"):
        build()
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, build: Build) -> None:
    (tmp_path / "site").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        build()


def test_the_command_says_where_the_site_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "executed", "00_start_here.quick", code("x", tags=("claim:Z99",)))
    monkeypatch.setenv("CFLIB_NOTEBOOKS", str(tmp_path))
    monkeypatch.setenv("CFLIB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("CFLIB_RECORDS", str(tmp_path / "records"))
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--output", "here"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"here/index.html: {len(claims.load())} claims on 10 pages")
    assert "claim:Z99" in told.err
    assert main(["report", "--output", "executed"]) == 2
    assert "not the site's" in capsys.readouterr().err


# Notebooks


def outputs(tmp_path: Path, *shown: dict[str, object]) -> tuple[pages.Output, ...]:
    path = write(tmp_path, "00_x.quick", code("x", *shown))
    return pages.read(path).cells[0].outputs


def test_a_picture_becomes_a_file_with_its_size(tmp_path: Path) -> None:
    path = write(tmp_path, "00_x.quick", said("## Heading"), code("x", shows(png=picture(40, 30), text="<Figure>")))
    book = pages.read(path)
    (output,) = book.cells[1].outputs
    assert (output.kind, output.size, output.caption) == ("figure", (40, 30), "Heading")
    assert book.files[output.body].startswith(b"\x89PNG")


def test_a_drawing_becomes_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "00_x.quick", code("x", shows(svg=["<svg>", "</svg>"], text="<Figure>")))
    book = pages.read(path)
    (output,) = book.cells[0].outputs
    assert (output.kind, output.size, output.caption) == ("figure", None, "output of 00_x.quick")
    assert book.files[output.body] == b"<svg></svg>"


def test_a_damaged_picture_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, "00_x.quick", code("x", shows(png="abc")))
    with pytest.raises(ValueError, match=r"00_x\.quick: the picture 1-1 is damaged"):
        pages.read(path)


def test_a_caption_comes_from_the_cell_then_its_comment_then_the_heading(tmp_path: Path) -> None:
    figure = shows(png=picture(4, 3))
    cells = [said("# T"), code("x", figure, caption="own"), code("# Comment\nx", figure), code("x", figure)]
    book = pages.read(write(tmp_path, "00_x.quick", *cells))
    assert [cell.outputs[0].caption for cell in book.cells[1:]] == ["own", "Comment", "T"]


def test_tables_keep_their_cells_and_lose_what_styles_or_runs(tmp_path: Path) -> None:
    foreign = "<style>td {color: red}</style><script>alert(1)</script>"
    table = '<table onclick="x()"><tr><td style="a">1</td></tr></table>'
    (output,) = outputs(tmp_path, shows(html=foreign + table, text="1"))
    assert output == pages.Output("html", "<table><tbody><tr><td>1</td></tr></tbody></table>", "output of 00_x.quick")


def test_text_loses_colours_and_what_a_progress_line_overwrote(tmp_path: Path) -> None:
    (output,) = outputs(tmp_path, prints("round 1\rround 2\r\x1b[32mdone\x1b[0m\n"))
    assert output == pages.Output("text", "done")


def test_warnings_stand_aside_and_errors_stand_out(tmp_path: Path) -> None:
    aside, error = outputs(
        tmp_path, prints("careful", "stderr"), fails("ValueError", "client 3", "\x1b[31mline\x1b[0m")
    )
    assert aside == pages.Output("aside", "careful")
    assert error == pages.Output("error", "ValueError: client 3\n\nline")
    assert pages.read(tmp_path / "00_x.quick.ipynb").failed


def test_markdown_and_latex_outputs_are_set(tmp_path: Path) -> None:
    one, two = outputs(tmp_path, shows(markdown="**b**", text="b"), shows(latex=["$x$"]))
    assert one.body == "<p><strong>b</strong></p>\n"
    assert "<math" in two.body


def test_what_has_no_words_is_left_out(tmp_path: Path) -> None:
    assert (
        outputs(tmp_path, prints("\n"), shows(widget={"a": 1}), shows(html="<script>1</script>"), shows(text=" ")) == ()
    )
    path = write(tmp_path, "00_y.quick", code(""), said("  "), {"cell_type": "raw", "metadata": {}, "source": "raw"})
    assert pages.read(path).cells == ()


def test_an_attached_picture_is_shown_and_a_missing_one_named(tmp_path: Path) -> None:
    attached = {"attachments": {"a b.png": {"image/png": picture(4, 3)}}}
    text = "![seen](attachment:a%20b.png) ![unseen](lost.png) ![far](https://example.org/x.png)"
    book = pages.read(write(tmp_path, "00_x.quick", said(text, **attached)))
    assert '<img src="figures/00_x.quick-1-1.png" alt="seen">' in book.cells[0].body
    assert "unseen" in book.cells[0].body
    assert '<a href="https://example.org/x.png">far</a>' in book.cells[0].body


def test_links_within_a_notebook_are_kept_only_if_the_heading_exists(tmp_path: Path) -> None:
    path = write(
        tmp_path, "00_x.quick", said("[a](#Two-words) [b](#Nowhere) [c](README.md)"), said("## Two words\n## Two words")
    )
    book = pages.read(path)
    assert book.cells[0].body == '<p><a href="#Two-words">a</a> b c</p>\n'
    assert [anchor for _, anchor, _ in book.headings] == ["Two-words", "Two-words-2"]


def test_parameters_are_the_declared_ones_with_those_of_the_run_on_top(tmp_path: Path) -> None:
    declared = code('preset: str = "quick"  # p\nseed: int = 3  # s', tags=("parameters",))
    book = pages.read(write(tmp_path, "00_x.long", declared))
    assert book.parameters == {"preset": "long", "seed": 3}
    assert (book.slug, book.preset, book.title) == ("00_x", "long", "00 x.long")


def test_a_notebook_run_by_papermill_alone_is_shown_too(tmp_path: Path) -> None:
    path = tmp_path / "out.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 4, "cells": [code("x = 1")]}))
    book = pages.read(path)
    assert (book.cells[0].anchor, lineage.executed(book).versions) == ("cell-1", "unknown")


# Prose and equations


def test_a_link_to_a_notebook_leads_to_its_page() -> None:
    place = prose.Place(link=lambda target: "a.html" if "01_a" in target else None)
    assert prose.render("[x](01_a.ipynb)", place) == '<p><a href="a.html">x</a></p>\n'
    assert prose.render("`01_a` `01_b`", place) == '<p><a href="a.html"><code>01_a</code></a> <code>01_b</code></p>\n'


def test_code_in_prose_is_coloured_if_its_language_is_known() -> None:
    assert '<span class="kc">None</span>' in prose.render("```python\nNone\n```")
    assert "<code>a &lt; b</code>" in prose.render("```nolanguage\na < b\n```")
    assert "<code>x</code>" in prose.render("```\nx\n```")


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<script>alert(1)",
        '<img src=x onerror="alert(1)">',
        "[x](javascript:alert(1))",
        '<a href="javascript:alert(1)">x</a>',
        "<iframe src='https://example.org'></iframe>",
        '<img src="https://example.org/x.png">',
        "<svg onload=alert(1)>",
        "![x](data:text/html,alert)",
        '<link rel="stylesheet" href="https://example.org/x.css">',
        "\ue0000\ue001",
    ],
)
def test_raw_html_can_neither_run_nor_load(attack: str) -> None:
    for text in (prose.render(attack), prose.clean(attack)):
        page = Page(text)
        assert page.loads == []
        assert {"script", "iframe", "svg", "link", "img"}.isdisjoint(page.tags)
        assert not [own for _, own in page.attributes if any(name.startswith("on") for name in own)]
        assert not [target for target in page.links if target.startswith("javascript")]


@given(st.text(alphabet="ab$*_`[](){}<>#|\\^&!\n \"'=1", max_size=60))
@settings(max_examples=150)
def test_any_text_gives_a_well_formed_page(text: str) -> None:
    Page(prose.render(text))


@pytest.mark.parametrize(
    ("tex", "fault"),
    [
        (r"\frobnicate x", r"\\frobnicate is not known"),
        (r"\frac{a}", "a part of the frac is missing"),
        (r"\begin{tikz}a\end{tikz}", "the environment tikz is not known"),
        ("a & b", "a stray &"),
        ("a}", "its braces do not come in pairs"),
        ("{a", "its braces do not come in pairs"),
        ("{}", "there is nothing in it"),
        (r"\left( a", "missing right"),
    ],
)
def test_an_equation_that_cannot_be_set_is_refused_with_the_reason(tex: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault) if "\\\\" not in fault else fault):
        equations.to_mathml(tex)


def test_norms_do_not_stretch_and_limits_stand_below() -> None:
    root = ElementTree.fromstring(equations.to_mathml(r"\max_{i} \lVert x \rVert", display=True))
    assert root.get("display") == "block"
    assert [one.get("stretchy") for one in root.iterfind(".//mo[.='\u2016']")] == ["false", "false"]
    assert root.find(".//munder/mo[.='max']") is not None
    stretched = ElementTree.fromstring(equations.to_mathml(r"\left\lVert x \right\rVert"))
    assert stretched.find(".//mo[@stretchy='true']") is not None


def test_cases_and_matrices_are_tables() -> None:
    for environment in ("cases", "pmatrix", "aligned"):
        tex = rf"\begin{{{environment}}} a & b \\ c & d \end{{{environment}}}"
        root = ElementTree.fromstring(equations.to_mathml(tex))
        assert len(root.findall(".//mtd")) == 4


def test_upright_words_are_one_word() -> None:
    assert '<mi mathvariant="normal">sim</mi>' in equations.to_mathml(r"\mathrm{sim}(i)")


def test_the_words_of_an_equation_go_along_for_those_who_hear_it() -> None:
    assert ElementTree.fromstring(equations.to_mathml("a < b")).get("alttext") == "a < b"


def test_dollars_that_are_money_stay_money() -> None:
    assert prose.render(r"from \$5 to \$10") == "<p>from $5 to $10</p>\n"


# Words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "\u2013"),
        (None, "\u2013"),
        (-0.5, "\u22120.500"),
        (0.00004, "4e-05"),
        (1234.5, "1,234"),
        (float("inf"), "\u221e"),
        (40.0, "40"),
        (1.0, "1"),
    ],
)
def test_numbers_read_well(value: float | None, text: str) -> None:
    assert wording.number(value) == text


def test_durations_read_well() -> None:
    assert [wording.clock(seconds) for seconds in (0.04, 59.94, 60, 3600, 86399)] == [
        "0.0 s",
        "59.9 s",
        "1 min",
        "1 h",
        "23 h 59 min",
    ]


def test_what_a_paper_reports_is_shown_as_written() -> None:
    assert wording.plain({"a": [1, 0.5], "b": True, "c": -1}) == "a 1, 0.5, b True, c \u22121"


def test_a_run_is_named_by_its_choices_unless_it_has_a_name(tmp_path: Path) -> None:
    chosen = {"is": "Method", "cluster": {"function": "cflib.choices.louvain", "with": {"resolution": 1}}}
    write_record(tmp_path, "b" * 20, method=chosen, seed=7)
    write_record(tmp_path, "c" * 20)
    (one, two), complaints = lineage.runs(tmp_path)
    assert complaints == []
    assert (one.name, one.method, one.seeds) == ("c" * 20, "FedAvg's choices", "0")
    assert (two.method, two.seeds, two.seconds) == ("louvain", "7", 3.2)


def test_a_probe_and_a_table_about_a_run_are_named_as_such() -> None:
    data = {"federation": {"checksum": "ab" * 32}, "rounds": 5, "seed": 3}
    table = lineage._run("t", {"readings": {**data, "method": {"compare": {"function": "x.trusted"}}}}, {})
    probe = lineage._run("p", {"probe": data}, {})
    assert (table.method, table.data, table.seeds, table.rounds) == (
        "readings of trusted",
        "split abababababab",
        "3",
        "5",
    )
    assert probe.method == "probe"
