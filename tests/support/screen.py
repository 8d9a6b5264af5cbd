"""What a terminal shows after the bytes that a program wrote: enough of ECMA-48 for rich, plotext and kubectl."""

import re
from dataclasses import dataclass, replace

_TOKEN = re.compile(
    r"\x1b\[([?>=]?)([\d;]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^\[\]]|[\x00-\x1f]|[^\x00-\x1f\x1b]+"
)
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


@dataclass(frozen=True, slots=True)
class Style:
    """How a character looks.

    Attributes:
        colour: a name, `#rrggbb`, or empty for the usual colour.
    """

    colour: str = ""
    bold: bool = False
    dim: bool = False


Cell = tuple[str, Style]
_BLANK: Cell = (" ", Style())


class Terminal:
    """A screen of a fixed size, and the lines that have left it at the top."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.num_rows = columns, rows
        self._style = Style()
        self._gone: list[list[Cell]] = []
        self.used_alternate = False
        self._clear()
        self._main = (self._gone, self.rows, self._row, self._column)

    @property
    def text(self) -> str:
        """What a person sees and can scroll back to."""
        return "\n".join(
            "".join(character for character, _ in row).rstrip() for row in (*self._gone, *self.rows)
        ).rstrip()

    def _clear(self) -> None:
        self.rows: list[list[Cell]] = [[_BLANK] * self.columns for _ in range(self.num_rows)]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        """Show what a program wrote; a sequence must not be cut in two."""
        for token in _TOKEN.finditer(text):
            private, numbers, final = token.groups()
            if final:
                if not private:
                    self._control(final, [int(number or 0) for number in numbers.split(";")])
                elif numbers == "1049":
                    self._switch(alternate=final == "h")
            elif (character := token[0]) in "\r\n\b":
                self._move(character)
            elif character >= " ":
                self._put(character)

    def snapshot(self) -> tuple[tuple[Cell, ...], ...]:
        """The screen as it is now."""
        return tuple(map(tuple, self.rows))

    def _move(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        else:
            self._new_line()

    def _new_line(self) -> None:
        self._row += 1
        if self._row == self.num_rows:
            self._row -= 1
            self._gone.append(self.rows[0])
            self.rows = [*self.rows[1:], [_BLANK] * self.columns]

    def _put(self, text: str) -> None:
        for character in text:
            if self._column == self.columns:
                self._column = 0
                self._new_line()
            self.rows[self._row][self._column] = (character, self._style)
            self._column += 1

    def _control(self, final: str, numbers: list[int]) -> None:
        count = numbers[0] or 1
        if final == "m":
            self._rendition(numbers)
        elif final == "J":
            self._erase_display(numbers[0])
        elif final == "K":
            self._erase_line(numbers[0])
        elif final == "H":
            self._row, self._column = count - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
        elif final == "G":
            self._column = min(self.columns, count) - 1
        elif final in "AB":
            row = self._row + (count if final == "B" else -count)
            self._row = min(self.num_rows - 1, max(0, row))
        elif final in "CD":
            column = self._column + (count if final == "C" else -count)
            self._column = min(self.columns - 1, max(0, column))

    def _switch(self, *, alternate: bool) -> None:
        self.used_alternate |= alternate
        if alternate:
            self._main = (self._gone, self.rows, self._row, self._column)
            self._gone = []
            self._clear()
        else:
            self._gone, self.rows, self._row, self._column = self._main

    def _erase_display(self, what: int) -> None:
        if what == 2:
            self._clear()
        else:
            self._erase_line(0)
            below = self.rows[self._row + 1 :]
            self.rows[self._row + 1 :] = [[_BLANK] * self.columns for _ in below]

    def _erase_line(self, what: int) -> None:
        first = 0 if what else self._column
        self.rows[self._row][first:] = [_BLANK] * (self.columns - first)

    def _rendition(self, numbers: list[int]) -> None:
        while numbers:
            number, *numbers = numbers
            if number == 38 and numbers[:1] == [5]:
                self._style, numbers = replace(self._style, colour=_of_palette(numbers[1])), numbers[2:]
            elif number == 38 and numbers[:1] == [2]:
                red, green, blue = numbers[1:4]
                self._style, numbers = replace(self._style, colour=f"#{red:02x}{green:02x}{blue:02x}"), numbers[4:]
            elif number == 48:
                numbers = numbers[2 if numbers[:1] == [5] else 4 :]
            else:
                self._style = _restyled(self._style, number)


def _restyled(style: Style, number: int) -> Style:
    if number == 0:
        return Style()
    if number in (1, 2, 22):
        return replace(style, bold=number == 1, dim=number == 2)
    if 30 <= number <= 37 or 90 <= number <= 97:
        return replace(style, colour=_NAMES[number % 10])
    return replace(style, colour="") if number == 39 else style


def _of_palette(number: int) -> str:
    """A colour of the palette of 256."""
    if number < 16:
        return _NAMES[number % 8]
    if number > 231:
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}"
    levels = (0, 95, 135, 175, 215, 255)
    number -= 16
    return "#" + "".join(f"{levels[part]:02x}" for part in (number // 36, number // 6 % 6, number % 6))
