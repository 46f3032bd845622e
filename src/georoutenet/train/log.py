"""What a run says: ``metrics.csv``, lines or a progress bar, and TensorBoard where asked for."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from georoutenet.errors import MissingDependencyError
from georoutenet.io.atomic import atomic_write


class Reporter(Protocol):
    """Where a trainer tells what it does."""

    def line(self, text: str) -> None:
        """Something worth a line of its own."""

    def progress(self, step: int, share: float, text: str) -> None:
        """How far the run is, in steps and as a share of the whole, and its latest numbers."""

    def close(self) -> None: ...


class Silent:
    """Says nothing."""

    def line(self, text: str) -> None:
        pass

    def progress(self, step: int, share: float, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class PlainLines:
    """One line for everything, for files and pipes."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream or sys.stderr

    def line(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()

    def progress(self, step: int, share: float, text: str) -> None:
        self.line(f"step {step:,}  {text}")

    def close(self) -> None:
        pass


class ProgressBar:
    """A live bar with the latest numbers, for a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        console = Console(stderr=True)
        self.bar = Progress(
            BarColumn(20), TaskProgressColumn(), TextColumn("{task.description}"), console=console
        )
        self.task = self.bar.add_task("", total=1.0)
        self.bar.start()

    def line(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)

    def progress(self, step: int, share: float, text: str) -> None:
        self.bar.update(self.task, completed=share, description=f"step {step:,}  {text}")

    def close(self) -> None:
        self.bar.stop()


class Named:
    """Another reporter's lines with a name before each: one of several runs."""

    def __init__(self, reporter: Reporter, name: str) -> None:
        self.reporter, self.name = reporter, name

    def line(self, text: str) -> None:
        self.reporter.line(f"{self.name}: {text}")

    def progress(self, step: int, share: float, text: str) -> None:
        self.reporter.line(f"{self.name}: step {step:,}  {text}")

    def close(self) -> None:
        self.reporter.close()


class MetricsFile:
    """``metrics.csv``: one row per log, appended; on resuming, rows later than the checkpoint are cut.

    A damaged file does not stop a run: rows that can be read are kept, and ``complaint`` says what was not.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, after_step: int = 0) -> None:
        self.path, self.columns, self.complaint = path, list(columns), ""
        rows = self._rows_up_to(after_step) if after_step and path.exists() else []
        validated = [row["validation"] for row in rows if row.get("validation")]
        self.last_validation = float(validated[-1]) if validated else math.inf
        with atomic_write(path, "w") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def _rows_up_to(self, step: int) -> list[dict[str, str]]:
        """Earlier rows that belong to this run; a row cut short by a crash is dropped."""
        first, *lines = self.path.read_bytes().split(b"\n")
        header = self._fields(first) or []
        if header != self.columns and sum(map(str.__ne__, header, self.columns)) != 1:
            kept = self.path.with_name(f"{self.path.name}.old")
            self.path.replace(kept)
            self.complaint = f"{self.path} has other columns than this run: kept as {kept.name}, begun anew"
            return []
        rows, damaged = [], []
        for number, line in enumerate(lines, 2):
            fields = self._fields(line)
            if fields is not None and self._are_numbers(fields):
                row = dict(zip(self.columns, fields, strict=True))
                if int(row["step"]) <= step:
                    rows.append(row)
            elif line:
                damaged.append(number)
        if damaged:
            some = ", ".join(map(str, damaged[:5])) + (" ..." if len(damaged) > 5 else "")
            self.complaint = f"{self.path}: damaged lines were removed: {some}"
        return rows

    def _fields(self, line: bytes) -> list[str] | None:
        try:
            fields = next(csv.reader([line.decode(errors="replace").rstrip("\r")]), [])
        except csv.Error:
            return None
        return fields if len(fields) == len(self.columns) else None

    def _are_numbers(self, fields: list[str]) -> bool:
        """Whether the fields are a row: a step, and numbers or nothing."""
        step = fields[self.columns.index("step")]
        try:
            for field in filter(None, fields):
                float(field)
        except ValueError:
            return False
        return step.isascii() and step.isdigit() and len(step) < 19

    def append(self, values: Mapping[str, Any]) -> None:
        line = io.StringIO()
        csv.DictWriter(line, self.columns, lineterminator="\n").writerow(values)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(line.getvalue())


class TensorBoard:
    """The same rows as scalars for TensorBoard."""

    def __init__(self, folder: Path, *, after_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependencyError("TensorBoard is not installed: pip install tensorboard") from None
        self.writer = SummaryWriter(str(folder), purge_step=after_step + 1)

    def append(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name != "step" and value != "":
                self.writer.add_scalar(name, value, values["step"])
        self.writer.flush()


def duration(seconds: float) -> str:
    """``93 s``, ``12 min``, ``3.4 h`` or ``2.1 days``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
