"""Train and evaluate the runs of studies for some seconds, and pack what others need of them."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.evaluate.evaluation import default_file, evaluate, weights_name
from georoutenet.io.atomic import atomic_write
from georoutenet.policy.weights import load_policy, read_card
from georoutenet.train.recipe import Recipe
from research.studies import home, session
from research.studies.plan import Run, Study, as_toml

RESERVE = 15.0
"""Seconds for packing, and for the last checkpoint."""
LAST = 5.0
"""Seconds for the last checkpoint of a process that is stopped."""
LEAST = 20.0
"""Seconds that are too few to begin training."""
GIVEN = "given"
"""In the folder of runs: given weights that had to be named otherwise."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Piece:
    """A piece of time spent on studies, in the folder ``work``."""

    studies: Sequence[Study]
    work: Path
    device: str
    seconds: float
    reserve: float = RESERVE
    least: float = LEAST

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds - self.reserve
        self.alone: set[str] = set()
        """Studies whose runs train one by one, since they failed side by side."""
        self.stopped = False
        """By a signal: training ended early."""

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def go(self) -> None:
        """Train and evaluate in the order of the lists until all is done or time is up."""
        try:
            for study in self.studies:
                self._evaluate(study)
                while not self.stopped and self.left > self.least and (group := self._next(study)):
                    self._train(study, group)
                    self._evaluate(study)
        except KeyboardInterrupt:
            if self.left > 0:  # a signal's, not the clock's
                raise
            say("time is up")

    def state(self, run: Run) -> str:
        folder = self.work / run.folder
        note = home.read_note(folder)
        if note.get("evaluated"):
            return "done"
        if (folder / home.FAILED).exists():
            return "failed"
        if note:
            return "trained"
        if run.given is not None:
            return "given"
        return "begun" if home.checkpoints(folder) else "to do"

    def _next(self, study: Study) -> list[Run]:
        """The runs to train now. What would end within a call, but not within this one any more, waits for
        the next: a state is large, and what was never begun has none."""
        in_time = not self.left < study.seconds <= self.seconds - self.reserve
        states = ("begun", "to do") if in_time else ("begun",)
        waiting = [run for run in study.runs if self.state(run) in states]
        return waiting[: 1 if study.name in self.alone else study.together]

    def _train(self, study: Study, group: list[Run]) -> None:
        """Train runs side by side, and note which are finished."""
        files = []
        for run in group:
            files.append(self.work / run.name / "recipe.toml")
            with atomic_write(files[-1]) as file:
                file.write(as_toml(run.settings))
        say(f"{study.name}: {', '.join(run.name for run in group)}, {self.left:.0f} s left")
        try:
            # The trainer looks at the clock between steps; what hangs within one must not cost all the rest.
            with alarm(self.left + self.reserve / 2):
                if study.sources:
                    _elsewhere(files, study.sources, self.left, self.device)
                else:
                    session.train(files, seconds=self.left, device=self.device)
        except (GeoRouteNetError, RuntimeError, subprocess.CalledProcessError) as error:
            session.forget(self.device)
            say(f"{study.name}: {type(error).__name__}: {error}")
            if len(group) == 1:
                self._failed(group[0], [f"{type(error).__name__}: {error}"])
            self.alone.add(study.name)
            return
        for run in group:
            self._note(run, study.sources)
        done = any(home.read_note(self.work / run.name) for run in group)
        self.stopped = not done and self.left > self.least

    def _note(self, run: Run, sources: str) -> None:
        """Write down that a run is finished, if it is."""
        folder, newest = self.work / run.name, home.checkpoints(self.work / run.name)[-1:]
        if not newest:
            return
        header = json.loads((newest[0] / "header.json").read_text(encoding="utf-8"))
        if not is_complete(run.recipe(), header["step"], header["seconds"]):
            return
        best, last = (read_card(folder / f"{name}.safetensors")[1] for name in ("best", "last"))
        note = {
            "step": header["step"],
            "instances": header["instances"],
            "training_seconds": round(header["seconds"], 1),
            "best_step": best["step"],
            "best_length": best["validation_length"],
            "last_length": last["validation_length"],
            "device": best["device"],
            "commit": best["commit"],
            "sources": sources,
        }
        home.write_note(folder, note)

    def _evaluate(self, study: Study) -> None:
        """Evaluate what is trained or given, a set and decoder at a time while there is time."""
        for run in () if self.stopped else study.runs:
            if self.state(run) not in ("trained", "given"):
                continue
            weights = self._weights(run)
            if not weights.exists():
                say(f"{run.name}: not evaluated, there is no {weights}")
                continue
            with alarm(self.left):
                wrong = self._evaluate_run(study, run, weights)
            if wrong:
                self._failed(run, wrong)
                continue
            note = home.read_note(self.work / run.folder) or {"given": str(run.given)}
            home.write_note(self.work / run.folder, {**note, "evaluated": True})

    def _weights(self, run: Run) -> Path:
        """The file to evaluate, under the name of the run, which the results bear."""
        if run.given is None:
            return self.work / run.folder / "best.safetensors"
        if weights_name(run.given) == run.name:
            return run.given
        named = self.work / GIVEN / f"{run.name}.safetensors"
        named.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.given, named)
        return named

    def _evaluate_run(self, study: Study, run: Run, weights: Path) -> list[str]:
        """What went wrong; one thing keeps none of the others from being measured."""
        wrong: list[str] = []
        try:
            policy = load_policy(weights, torch.device(self.device))
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
        for set_name, settings in study.tasks(policy.config.encoder):
            path = default_file(weights, set_name, settings, self.work / home.RESULTS / run.folder)
            if path.exists():
                continue
            try:
                found = evaluate(weights, set_name, path, settings, device=self.device, policy=policy)
            except Exception as error:
                wrong.append(f"{set_name} {settings.label}: {type(error).__name__}: {error}")
                session.forget(self.device)
                continue
            say(f"{run.name}: {set_name} {settings.label} {found.gaps.mean():.4f} %")
        return wrong

    def _failed(self, run: Run, wrong: Sequence[str]) -> None:
        """Write it down; the run is left alone until that file is removed."""
        for line in wrong:
            say(f"{run.name}: {line}")
        with atomic_write(self.work / run.folder / home.FAILED) as file:
            file.writelines(f"{line}\n" for line in wrong)


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """What takes longer ends as Ctrl-C ends it: with `KeyboardInterrupt`, and nothing half written."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_complete(recipe: Recipe, step: int, seconds: float) -> bool:
    return step >= recipe.steps or seconds >= (recipe.budget_seconds or math.inf)


def _elsewhere(files: Sequence[Path], sources: str, seconds: float, device: str) -> None:
    """`session.train` in a process of its own, with the package in the folder ``sources``."""
    if not (Path(sources) / "georoutenet").is_dir():
        raise InputError(f"{sources} holds no package georoutenet; docs/training.md says how it gets there")
    paths = os.pathsep.join([str(Path(sources).resolve()), str(ROOT)])
    command = [sys.executable, "-m", "research.studies.session", *map(str, files)]
    command += ["--until", f"{time.time() + seconds:.1f}", "--device", device]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as process:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.terminate()  # its trainer writes a checkpoint
            with suppress(subprocess.TimeoutExpired):
                process.wait(LAST)
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)
