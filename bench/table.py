"""One measurement as a value, and all of them as a table or as JSON.

A row compares its figure, a ratio or a plain number, with its target.
"""

import operator
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

HEADER = ("", "measured", "baseline", "figure", "target", "")


@dataclass(frozen=True)
class Row:
    name: str
    value: float
    unit: str
    baseline: float | None = None
    target: float | None = None
    sense: str = "<="
    """How the figure must compare with the target: `<=`, `<` or `>=`."""

    @property
    def figure(self) -> float:
        return self.value if self.baseline is None else self.value / self.baseline

    @property
    def ok(self) -> bool | None:
        compare = {"<=": operator.le, "<": operator.lt, ">=": operator.ge}[self.sense]
        return None if self.target is None else compare(self.figure, self.target)

    def cells(self) -> tuple[str, ...]:
        unit = f" {self.unit}" if self.baseline is None else "x"
        return (
            self.name,
            f"{amount(self.value)} {self.unit}",
            "" if self.baseline is None else f"{amount(self.baseline)} {self.unit}",
            f"{self.figure:.2f}x" if self.baseline is not None else "",
            "" if self.target is None else f"{self.sense} {self.target:g}{unit}",
            {True: "ok", False: "SHORT", None: ""}[self.ok],
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"figure": self.figure, "ok": self.ok}


def amount(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def p50(seconds: Sequence[float], scale: float = 1e6) -> float:
    return median(seconds) * scale


def machine() -> str:
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def load() -> float:
    """Programs that wanted a core over the last minute; the bench itself adds about one."""
    return round(os.getloadavg()[0], 1)


def show(rows: Sequence[Row]) -> str:
    table = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEADER))]
    lines = []
    for cells in table:
        first, *rest = (
            cell.ljust(w) if i in (0, 5) else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  ".join((first, *rest)).rstrip())
    return "\n".join(lines)
