"""A whole number on a command line that click reads."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _Whole = click.ParamType[int]
else:
    _Whole = click.ParamType  # which takes no argument before click 8.4


class WholeNumber(_Whole):
    """An integer of at least `least`, and at most `most` if given; the error says that in plain words."""

    name = "number"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if number < self._least:
            self.fail(f"{number} is less than {self._least}", param, ctx)
        if self._most is not None and number > self._most:
            self.fail(f"{number} is more than {self._most}", param, ctx)
        return number
