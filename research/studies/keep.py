"""Results and metrics of finished runs into the repository, where the tables and pictures find them."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

from georoutenet.io.atomic import atomic_write
from research.pack import pack_folder
from research.studies.home import DONE, RESULTS
from research.studies.plan import Study


def keep(study: Study, kept: Path, to: Path) -> list[Path]:
    """Pack the results of all runs of the study that are done, and copy their metrics; what was written."""
    written = []
    for run in study.runs:
        if not (kept / run.folder / DONE).exists():
            continue
        packed = to / "results" / ("" if study.tables == "main" else "studies") / f"{run.name}.npz"
        packed.parent.mkdir(parents=True, exist_ok=True)
        pack_folder(packed, kept / RESULTS / run.folder)
        written.append(packed)
        metrics = kept / run.folder / "metrics.csv"
        if metrics.exists():
            written.append(to / "docs" / "runs" / f"{run.name}.csv.gz")
            data = io.BytesIO()
            with gzip.GzipFile(fileobj=data, mode="wb", mtime=0, filename="") as file:
                file.write(metrics.read_bytes())
            with atomic_write(written[-1], "wb") as out:
                out.write(data.getvalue())
        both = kept / run.folder / "validation.csv"  # of NAR4TSP, under both statistics
        if both.exists():
            written.append(to / "docs" / "runs" / "validation" / f"{run.name}.csv")
            with atomic_write(written[-1]) as file:
                file.write(both.read_text(encoding="utf-8"))
    return written
