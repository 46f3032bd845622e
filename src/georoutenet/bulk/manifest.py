"""The manifest of a run: what it is made of, so that only the same is added, and how its parts came about."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from georoutenet import __version__
from georoutenet.bulk.inputs import Input
from georoutenet.bulk.settings import code_hash, weights_hash
from georoutenet.bulk.shards import Job, Report
from georoutenet.errors import InputError
from georoutenet.io.atomic import atomic_write
from georoutenet.io.strict_json import parse_json
from georoutenet.io.unpack import read_file

NAME = "_manifest.json"
"""Readers of folders of Parquet files leave out what begins with an underscore."""
LONGEST = 15
"""Digits of numbers in it."""
FORMAT = 2
"""Raised when shards or fingerprints are made otherwise."""


def made_of(
    input: Input, options: dict[str, Any], *, format: str, shard_rows: int, lower_bound: bool
) -> dict[str, Any]:
    """Everything that the output depends on. Where the input lies and who solves it is not among it."""
    return {
        "format": FORMAT,
        "version": __version__,
        "code": code_hash(),
        "weights": weights_hash(options),
        "input": input.sha256,
        "id column": input.columns.id,
        "options": options,
        "shard format": format,
        "rows per shard": shard_rows,
        "lower bound": lower_bound,
    }


def fingerprint(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass
class Manifest:
    """The file ``_manifest.json`` of a run's folder. Only the process that holds the folder writes it."""

    job: Job
    parts: dict[str, Any]
    about: dict[str, Any]
    """For readers: counts, schema, whether shards repeat."""
    runs: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each start of the command."""
    shards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Seconds and counts of each shard, as far as the process that waited for it has lived to write them."""

    @property
    def path(self) -> Path:
        return Path(self.job.out, NAME)

    def open(self) -> None:
        """Take up what the folder has: nothing, or a run made of the same; all else is refused."""
        folder = Path(self.job.out)
        if not self.path.exists():
            strangers = sorted(path.name for path in folder.glob("part-*"))
            if strangers:
                raise InputError(
                    f"{folder}: has {strangers[0]} but no {NAME}; shards go into a folder of their own"
                )
            return
        found = read_manifest(folder)
        if found["fingerprint"] != self.job.fingerprint:
            raise InputError(
                f"{folder} holds another run: {_difference(found['made_of'], self.parts)}. "
                "Use another folder, or repeat the command it was made by"
            )
        self.runs, self.shards = found["runs"], found["shards"]

    def add(self, report: Report) -> None:
        entry = {"rows": report.rows, "errors": report.errors, "seconds": round(report.seconds, 3)}
        if report.by_clock:
            entry["ended by the clock"] = report.by_clock
        self.shards[str(report.shard)] = entry

    def write(self) -> None:
        by_clock = sum(entry.get("ended by the clock", 0) for entry in self.shards.values())
        about = dict(self.about)
        if by_clock and about["repeats"]:
            about["repeats"] = False
            about["why not"] = f"the clock ended the search of {by_clock} instances, which had no limit given"
        content = {
            "fingerprint": self.job.fingerprint,
            **about,
            "made_of": self.parts,
            "runs": self.runs,
            "shards": dict(sorted(self.shards.items(), key=lambda entry: int(entry[0]))),
        }
        with atomic_write(self.path) as file:
            file.write(json.dumps(content, indent=1) + "\n")


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What the manifest of a folder says; an error where it is none."""
    path = Path(folder, NAME)
    try:
        content = parse_json(read_file(path))
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    kinds = {"fingerprint": str, "made_of": dict, "runs": list, "shards": dict}
    whole = isinstance(content, dict) and all(
        isinstance(content.get(name), kind) for name, kind in kinds.items()
    )
    if not whole or not all(map(_is_entry, content["shards"].items())):
        raise InputError(f"{path}: not the manifest of a bulk run")
    return content


def _is_entry(shard: tuple[str, Any]) -> bool:
    """Whether a shard is a number, and what is said of it fit to be written again."""
    name, entry = shard
    good = name.isascii() and name.isdecimal() and len(name) <= LONGEST and isinstance(entry, dict)
    by_clock = entry.get("ended by the clock", 0) if good else None
    return isinstance(by_clock, int) and abs(by_clock) < 10**LONGEST


def _difference(before: Any, now: dict[str, Any]) -> str:
    """The first thing in which two runs differ, in words."""
    if not isinstance(before, dict):
        return "its manifest does not say of what"
    for name, value in now.items():
        old = before.get(name)
        if old == value:
            continue
        if name == "options" and isinstance(old, dict):
            for option in value:
                if old.get(option) != value[option]:
                    return f"the option {option} was {old.get(option)!r}, now it is {value[option]!r}"
        if name in ("input", "weights", "code"):
            what = {"input": "the input has", "weights": "the weights have", "code": "the package's code has"}
            return f"{what[name]} changed since"
        return f"{name} was {old!r}, now it is {value!r}"
    return "its manifest was changed"
