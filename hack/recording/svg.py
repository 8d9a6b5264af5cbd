"""An animated SVG of what a terminal showed. Pure.

Each line is drawn once for each span of time in which it does not change. It needs no script, so a README can show it; where a
reader prefers no motion, the last screen stays.
"""

import html
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from support.screen import Cell, Style

_CELL_WIDTH, _LINE_HEIGHT, _MARGIN, _BAR = 8, 17, 14, 30
_COLOURS = {
    "black": "#64748b",
    "red": "#f87171",
    "green": "#4ade80",
    "yellow": "#facc15",
    "blue": "#60a5fa",
    "magenta": "#c084fc",
    "cyan": "#22d3ee",
    "white": "#f1f5f9",
}
_STYLE = """
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #e2e8f0; white-space: pre; }
.bold { font-weight: bold; } .dim { fill-opacity: .6; }
"""

Screen = Sequence[Sequence[Cell]]
Line = tuple[int, tuple[Cell, ...]]


def svg(frames: Sequence[tuple[float, Screen]], seconds: float, title: str) -> str:
    """The picture.

    Args:
        frames: screens, each with the second from which it is shown; the first is shown from 0.
        seconds: when the recording starts again.
        title: of the window.
    """
    rows, columns = len(frames[0][1]), len(frames[0][1][0])
    width, height = columns * _CELL_WIDTH + 2 * _MARGIN, rows * _LINE_HEIGHT + _BAR + _MARGIN
    lines: defaultdict[tuple[float, float], list[Line]] = defaultdict(list)
    for (row, cells), span in spans(frames, seconds):
        lines[span].append((row, cells))
    groups, animations = [], []
    for number, ((start, end), drawn) in enumerate(sorted(lines.items())):
        parts = "".join(_text(row, cells) for row, cells in drawn)
        if (start, end) == (0, seconds):
            groups.append(f"<g>{parts}</g>")
            continue
        last = ' class="last"' if end == seconds else ""
        groups.append(f'<g{last} style="animation-name:a{number}">{parts}</g>')
        stops = [(0.0, start == 0), (start, True), *([(end, False)] if end < seconds else [])]
        frames_of = "".join(
            f"{100 * time / seconds:.2f}%{{visibility:{'visible' if shown else 'hidden'}}}"
            for time, shown in dict(stops).items()
        )
        animations.append(f"@keyframes a{number}{{{frames_of}}}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}"
        f"g[style] {{ visibility: hidden; animation: {seconds:.1f}s step-end infinite; }}\n"
        "@media (prefers-reduced-motion: reduce) { g[style] { animation: none; } g.last { visibility: visible; } }\n"
        + "\n".join(animations)
        + f'</style>\n<rect width="{width}" height="{height}" rx="8" fill="#0f172a"/>\n'
        + "".join(
            f'<circle cx="{16 + 16 * index}" cy="15" r="5" fill="{_COLOURS[colour]}"/>'
            for index, colour in enumerate(("red", "yellow", "green"))
        )
        + f'<text x="{width / 2}" y="19" text-anchor="middle" class="dim">{html.escape(title)}</text>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )


def spans(frames: Sequence[tuple[float, Screen]], seconds: float) -> Iterator[tuple[Line, tuple[float, float]]]:
    """Each line that is not empty, with the time from and until which it is shown."""
    times = [time for time, _ in frames]
    for row in range(len(frames[0][1])):
        content = [tuple(screen[row]) for _, screen in frames]
        index = 0
        for cells, same in groupby(content):
            start, index = index, index + len(list(same))
            if any(character != " " for character, _ in cells):
                yield (row, cells), (times[start], times[index] if index < len(times) else seconds)


def _text(row: int, cells: Sequence[Cell]) -> str:
    y = _BAR + _LINE_HEIGHT * row + 13
    parts, column = [], 0
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in run)
        begin = column + len(text) - len(text.lstrip())
        column += len(text)
        if text.strip():
            parts.append(_run(text.strip(), begin, y, style))
    return "".join(parts)


def _run(text: str, column: int, y: int, style: Style) -> str:
    names = " ".join(name for name in ("bold", "dim") if getattr(style, name))
    kind = f' class="{names}"' if names else ""
    fill = f' style="fill:{_COLOURS.get(style.colour, style.colour)}"' if style.colour else ""
    # textLength keeps columns aligned, whichever font the reader has.
    width = len(text) * _CELL_WIDTH
    return f'<text x="{_MARGIN + column * _CELL_WIDTH}" y="{y}" textLength="{width}"{kind}{fill}>{html.escape(text)}</text>'
