"""The page of `ddpjob report` in a browser: complete, silent and readable on a screen, on a phone and on paper."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import browser
from support.report_of_a_job import report

#: Text that the page's background hides: elements whose colour has less contrast than WCAG asks of small text, 4.5.
UNREADABLE = """
(() => {
  const channel = value => (value /= 255, value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = colour => {
    const [red, green, blue] = colour.match(/[0-9.]+/g).map(Number).map(channel);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const background = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("h1, h2, td, th, p, pre, span, text")].filter(element => {
    const style = getComputedStyle(element);
    const pair = [light(element.localName == "text" ? style.fill : style.color), light(background(element))];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05) < 4.5;
  }).map(element => element.outerHTML.slice(0, 80));
})()
"""


#: What can be seen only by scrolling inside an element, which paper does not allow and nobody expects on a phone.
CUT_OFF = """
[...document.querySelectorAll("pre, .wide")].filter(element => element.scrollWidth > element.clientWidth)
  .map(element => element.textContent.slice(0, 80))
"""


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Page]:
    with browser.opened() as page:
        yield page


@pytest.fixture
def address(tmp_path: Path) -> str:
    file = tmp_path / "report.html"
    file.write_text(report(), encoding="utf-8")
    return file.as_uri()


def test_tables_and_curves_are_there_and_nothing_is_requested(page: browser.Page, address: str) -> None:
    page.show(address)

    assert page.requests == [address]
    assert page.complaints == []
    assert page.evaluate("document.title") == "team-a/net: Failed"
    assert page.evaluate("document.querySelectorAll('table').length") == 4
    assert page.evaluate("[...document.querySelectorAll('tbody')].every(body => body.rows.length > 0)")
    curves = page.evaluate(
        "[...document.querySelectorAll('polyline')].map(line => line.getBoundingClientRect().height)"
    )
    assert len(curves) == 2
    assert min(curves) > 50


@pytest.mark.parametrize(
    ("width", "dark", "paper"),
    [(1000, False, False), (1000, True, False), (360, False, False), (360, True, False), (700, True, True)],
    ids=["light", "dark", "phone", "dark phone", "paper"],
)
def test_all_text_can_be_read_without_scrolling_to_the_side(
    page: browser.Page, address: str, width: int, dark: bool, paper: bool
) -> None:
    page.show(address, width=width, dark=dark, paper=paper)

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(UNREADABLE) == []
    labels = page.evaluate(
        "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().toJSON())"
    )
    assert all(label["height"] >= 9 and label["left"] >= 0 and label["right"] <= width for label in labels), labels
    assert page.evaluate(CUT_OFF) == []


def test_the_report_can_be_printed(page: browser.Page, address: str) -> None:
    page.show(address)

    assert page.print().startswith(b"%PDF")
