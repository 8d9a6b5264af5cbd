"""The documentation site in a browser: it loads nothing from elsewhere, reports no error and fits on a phone."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support import REPOSITORY, browser


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(REPOSITORY / "docs", folder / "docs")
    shutil.copy(REPOSITORY / "mkdocs.yml", folder)
    subprocess.run(
        [sys.executable, "-m", "zensical", "build"], cwd=folder, check=True, capture_output=True, timeout=120
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder / "build/site")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Page]:
    with browser.opened() as page:
        yield page


@pytest.mark.parametrize("path", ["", "/tutorial/first-job/", "/reference/python/", "/explanation/life-of-a-job/"])
@pytest.mark.parametrize("width", [1280, 360])
def test_a_page_loads_nothing_from_elsewhere_and_fits(page: browser.Page, site: str, path: str, width: int) -> None:
    page.show(f"{site}{path}", width=width)

    assert [request for request in page.requests if not request.startswith((site, "data:"))] == []
    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    pictures = page.evaluate(
        "[...document.querySelectorAll('article img')].filter(image => !image.naturalWidth).length"
    )
    assert pictures == 0, "each picture is there"


def test_the_colours_are_those_of_the_system_at_each_visit(page: browser.Page, site: str) -> None:
    schemes = []
    for dark in (False, True, False):
        page.show(site, dark=dark)
        schemes.append(page.evaluate("document.body.dataset.mdColorScheme"))

    assert schemes == ["default", "slate", "default"]
