"""The site and a notebook as a reader meets them: in a real Chromium, and in a real JupyterLab."""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api as playwright

from cflib import notebooks, places, report
from tests.crafted import REFERENCE, write_record, write_results, write_tour

pytestmark = pytest.mark.slow

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)
NOTEBOOK = "01_louvain_cfl.quick.html"
LAB_SECONDS = 300
PROJECT = Path(__file__).resolve().parent.parent

# The ratio of luminances of every piece of text to what lies behind it, as the accessibility guidelines define it.
CONTRASTS = """() => {
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const linear = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("script, .unseen")) continue;
    const pair = [luminance(rgba(getComputedStyle(element).color)), luminance(behind(element))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) low.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(low)];
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("Chromium is missing: install it (apt-get install --no-install-recommends chromium)")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield started
        started.close()


@pytest.fixture(scope="module", params=["crafted", "project"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site made of crafted notebooks and results, and the one that the project would build now."""
    folder = tmp_path_factory.mktemp("compendium")
    inputs = {name: folder / name for name in ("executed", "results", "records")}
    if request.param == "crafted":
        write_tour(inputs["executed"])
        write_tour(inputs["executed"], "01_louvain_cfl.smoke")
        write_results(inputs["results"])
        write_record(inputs["records"])
    else:
        inputs = {name: places.folder(name, f"CFLIB_{name.upper()}") for name in ("results", "records")}
        inputs["executed"] = notebooks.folder() / "executed"
    return report.build(folder / "site", **inputs, reference=REFERENCE).front.parent


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page(browser: playwright.Browser) -> Iterator[playwright.Page]:
    """A page that must raise no error, miss no file and fetch nothing from elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    troubles: list[str] = []
    opened.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("response", lambda got: troubles.append(f"{got.status}: {got.url}") if got.status >= 400 else None)
    opened.on("request", lambda request: None if _near(request.url) else troubles.append(f"far: {request.url}"))
    yield opened
    context.close()
    assert troubles == []


def _near(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:"))


def _pages(site: Path) -> list[str]:
    return sorted(path.name for path in site.glob("*.html"))


def test_the_front_page_shows_every_claim_and_filters_them(page: playwright.Page, address: str) -> None:
    page.goto(address)
    rows = page.locator("table.claims tbody tr")
    everything = rows.count()
    assert everything > 100
    assert page.locator(".strip a").count() == everything
    page.fill("#words", "Louvain resolution")
    assert 0 < page.locator("table.claims tbody tr:visible").count() < 10
    page.fill("#words", "")
    page.select_option("#paper", "003")
    assert page.locator("table.claims tbody tr:visible th").first.inner_text().startswith("F")
    page.select_option("#outcome", "reproduced")
    shown = page.locator("table.claims tbody tr:visible").count()
    assert page.locator("#shown").inner_text() == f"{shown} of {everything}"


def test_the_front_page_is_complete_without_javascript(browser: playwright.Browser, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    assert page.locator("table.claims tbody tr:visible").count() > 100
    assert page.locator("form.filter").is_hidden()
    context.close()


def test_the_site_works_straight_from_disk(page: playwright.Page, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    page.click(".card h2 a")
    assert page.locator("article.claim").count() > 10
    assert page.evaluate("getComputedStyle(document.querySelector('.bar')).position") == "sticky"


def test_every_link_of_every_page_leads_somewhere(page: playwright.Page, address: str, site: Path) -> None:
    waiting, seen, anchors = ["index.html"], set(), {}
    wanted = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        response = page.goto(f"{address}{name}")
        assert response is not None
        assert response.status == 200, name
        anchors[name] = set(page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)"))
        for url in page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)"):
            if url.startswith(address):
                file, _, fragment = url.removeprefix(address).partition("#")
                wanted.add((name, file or "index.html", urllib.request.unquote(fragment)))
                waiting.append(file or "index.html")
        page.evaluate("document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
        page.wait_for_function("[...document.images].every(image => image.complete)")
        assert page.evaluate("[...document.images].filter(image => !image.naturalWidth).map(i => i.src)") == [], name
    assert seen == set(_pages(site))
    assert [one for one in sorted(wanted) if one[2] and one[2] not in anchors[one[1]]] == []


def test_equations_are_drawn(page: playwright.Page, address: str, site: Path) -> None:
    drawn = 0
    for name in _pages(site):
        page.goto(f"{address}{name}")
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        boxes = page.evaluate(
            "[...document.querySelectorAll('math')].map(e => { const b = e.getBoundingClientRect();"
            " return [b.width, b.height, e.getAttribute('alttext')]; })"
        )
        assert [box for box in boxes if box[0] < 3 or box[1] < 3] == []
        drawn += len(boxes)
        fractions = page.evaluate(
            "[...document.querySelectorAll('mfrac')].map(e => [e.firstChild, e.lastChild]"
            ".map(part => part.getBoundingClientRect()).map(box => [box.top, box.height]))"
        )
        assert all(above[0] < below[0] and above[1] > 0 for above, below in fractions), name
    if NOTEBOOK in _pages(site):
        assert drawn >= 5


def test_a_notebook_page_shows_code_figures_and_tables(page: playwright.Page, address: str, site: Path) -> None:
    names = [name for name in _pages(site) if re.match(r"\d\d_", name)]
    assert names, "no executed notebook is on the site: run python -m cflib run --preset quick"
    page.goto(f"{address}{NOTEBOOK if NOTEBOOK in names else names[0]}")
    assert page.locator("pre.code").count() > 0
    assert page.locator("figure img").count() > 0
    hidden = page.locator("details.source pre").first
    if hidden.count():
        assert not hidden.is_visible()
        page.locator("details.source summary").first.click()
        assert hidden.is_visible()


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 375, "light")]
)
def test_pages_fit_and_can_be_read(
    browser: playwright.Browser, address: str, site: Path, tmp_path: Path, name: str, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    for file in _pages(site):
        page.goto(f"{address}{file}")
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, file
        assert page.evaluate(CONTRASTS) == [], file
        page.screenshot(path=tmp_path / f"{file}.{name}.png")
    context.close()
    assert len(list(tmp_path.glob("*.png"))) == len(_pages(site))


def test_pages_are_dark_in_the_dark(browser: playwright.Browser, address: str) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(address)
    channels = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert max(map(int, channels)) < 64
    context.close()


def test_pages_load_in_less_than_a_second(page: playwright.Page, address: str, site: Path) -> None:
    for name in _pages(site):
        seconds = []
        for _ in range(3):
            page.goto(f"{address}{name}", wait_until="load")
            seconds.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"))
        assert 0 < min(seconds) < 1, name


# JupyterLab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A JupyterLab on a copy of the notebooks that neither reads nor writes the user's own settings and records."""
    unneeded = shutil.ignore_patterns("executed", "sweeps", "failed", ".ipynb_checkpoints")
    notebook = shutil.copytree(PROJECT / "notebooks", tmp_path / "notebooks", ignore=unneeded) / "00_start_here.ipynb"
    settings = tmp_path / "jupyter" / "labconfig"
    settings.mkdir(parents=True)
    # Asks over the network for news and shows a question that would lie over the notebook.
    quiet = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (settings / "page_config.json").write_text(json.dumps(quiet))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    own = {
        name: str(tmp_path / name.lower())
        for name in ("CFLIB_RECORDS", "CFLIB_CHECKPOINTS", "CFLIB_RESULTS", "IPYTHONDIR")
    }
    own |= {f"JUPYTER_{name}_DIR": str(tmp_path / "jupyter") for name in ("CONFIG", "DATA", "RUNTIME")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "JPY_", "PYTHON"))}
    with (tmp_path / "lab.log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"),
                *(f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"),
                f"--ServerApp.root_dir={notebook.parent}",
            ],
            stdout=log,
            stderr=log,
            env={**kept, **own, "PYTHONPATH": str(PROJECT)},
            cwd=tmp_path,
            start_new_session=True,
        )
    try:
        base = f"http://127.0.0.1:{port}"
        _wait_until_up(f"{base}/api/status?token={token}", server, tmp_path / "lab.log")
        yield f"{base}/lab/tree/{notebook.name}?token={token}&reset", notebook
    finally:
        # Asked to end, a server ends its kernels as well; only if it does not, it is killed.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if server.poll() is None:
                server.send_signal(number)
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    continue


def _wait_until_up(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        assert server.poll() is None, log.read_text("utf-8", "replace")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"JupyterLab did not come up:\n{log.read_text('utf-8', 'replace')}")


def test_run_all_in_jupyterlab_reaches_the_end_without_an_error(
    browser: playwright.Browser, lab: tuple[str, Path], tmp_path: Path
) -> None:
    url, notebook = lab
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
    # The notebook appears before its kernel does; run without one, JupyterLab would ask which to take.
    page.wait_for_selector("#jp-main-statusbar >> text=Python 3 (ipykernel) | Idle", timeout=120_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    deadline = time.monotonic() + LAB_SECONDS
    cells = _code_cells(notebook)
    faults: list[object] = []
    # Cells out of sight are not in the document, but all of them are in the file that is saved.
    while not faults and not all(cell["execution_count"] for cell in cells) and time.monotonic() < deadline:
        page.wait_for_timeout(2000)
        page.keyboard.press("Control+s")
        page.wait_for_timeout(500)
        cells = _code_cells(notebook)
        faults = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    page.screenshot(path=tmp_path / "lab.png")
    assert faults == []
    assert all(cell["execution_count"] for cell in cells), f"not done after {LAB_SECONDS} s"
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=60_000)
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
    context.close()


def _code_cells(notebook: Path) -> list[dict[str, Any]]:
    content = json.loads(notebook.read_text("utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
