"""The site in a real Chromium: what a reader sees, at two widths, light and dark."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.test_site import RECIPE, built, execute, write_recipe

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on the path"),
]

PAGES = ["", f"recipes/{RECIPE}/", "run/", "architecture/", "command/"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line on stderr for each."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name of the class it replaces
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the site of a recipe that a real kernel ran is served."""
    folder = tmp_path_factory.mktemp("browser")
    recipe = write_recipe(folder / "recipes")
    execute(recipe, folder / "runs")
    with served(built(folder / "site", recipe, folder / "runs")) as base:
        yield base


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as library:
        chromium = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def opened(browser: Any, url: str, *, width: int = 1280, scheme: str = "light") -> Iterator[tuple[Any, list[str]]]:
    """A page once the network is quiet, and every address that it asked for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(url)
        page.wait_for_load_state("networkidle")
        yield page, asked
        assert not errors
    finally:
        context.close()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_asks_no_other_host_for_anything(browser: Any, address: str, path: str) -> None:
    with opened(browser, address + path) as (_, asked):
        assert len(asked) > 3
        assert [url for url in asked if not url.startswith((address, "data:"))] == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", PAGES)
def test_no_page_scrolls_sideways(browser: Any, address: str, path: str, width: int) -> None:
    with opened(browser, address + path, width=width) as (page, _):
        beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert beyond == 0


def test_wide_and_long_outputs_scroll_inside_themselves(browser: Any, address: str) -> None:
    with opened(browser, f"{address}recipes/{RECIPE}/", width=390) as (page, _):
        long = page.locator("pre", has_text="line 119")
        inside = "e => [e.scrollHeight > e.clientHeight, e.clientHeight < 1000, e.scrollWidth > e.clientWidth]"
        assert long.evaluate(inside) == [True, True, True]
        last = page.locator("table.dataframe td")
        last.scroll_into_view_if_needed()
        parent = "e => { const p = e.closest('[class*=utput]'); return p.scrollWidth > p.clientWidth }"
        assert last.evaluate(parent)


def test_status_and_outputs_are_in_sight(browser: Any, address: str, scheme: str) -> None:
    with opened(browser, f"{address}recipes/{RECIPE}/", scheme=scheme) as (page, _):
        assert page.get_by_text("no number on this page is a number of the hardware").bounding_box()["y"] < 900
        assert page.locator(".ansi-green-fg", has_text="green").is_visible()
        assert page.get_by_text("a long reason").first.is_visible()
        assert page.get_by_role("link", name="evidence.json").is_visible()


def test_it_follows_the_colours_of_the_system(browser: Any, address: str, scheme: str) -> None:
    with opened(browser, f"{address}recipes/{RECIPE}/", scheme=scheme) as (page, _):
        assert (
            page.locator("body").get_attribute("data-md-color-scheme") == {"light": "default", "dark": "slate"}[scheme]
        )


CONTRAST = """e => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = text => rgb(text).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let ground = e;
  while (ground && (rgb(getComputedStyle(ground).backgroundColor)[3] ?? 1) < 1) ground = ground.parentElement;
  const [a, b] = [light(getComputedStyle(e).color), ground ? light(getComputedStyle(ground).backgroundColor) : 1];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


@pytest.mark.parametrize("selector", [".ansi-green-fg", "article p", "pre >> text=line 119", "table.dataframe td"])
def test_text_can_be_read(browser: Any, address: str, scheme: str, selector: str) -> None:
    """4.5 to 1 is what WCAG 2 asks of text at level AA."""
    with opened(browser, f"{address}recipes/{RECIPE}/", scheme=scheme) as (page, _):
        assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5


def test_search_finds_a_word_of_a_notebook(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, asked):
        page.get_by_placeholder("Search").first.click()
        page.keyboard.type("quizzaciously")
        hit = page.locator(".md-search-result__item a", has_text="A sample recipe").first
        hit.wait_for()
        hit.click()
        page.wait_for_url(f"**/recipes/{RECIPE}/**")
        assert [url for url in asked if not url.startswith((address, "data:"))] == []


def test_code_can_be_copied(browser: Any, address: str) -> None:
    with opened(browser, f"{address}recipes/{RECIPE}/") as (page, _):
        code = page.locator("pre:has(code)", has_text="port: int = 8000").first
        code.hover()
        assert page.locator(".md-clipboard, .md-code__button[title='Copy to clipboard']").first.is_visible()


def test_each_download_is_there(browser: Any, address: str) -> None:
    with opened(browser, f"{address}recipes/{RECIPE}/") as (page, _):
        links = page.locator("a[download]")
        addresses = links.evaluate_all("all => all.map(e => e.href)")
        assert len(addresses) == 3
        assert {page.request.get(url).status for url in addresses} == {200}
