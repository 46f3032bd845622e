"""The trainer: runs a recipe's steps, validates, logs, and can be stopped and resumed at any moment."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from georoutenet import __version__
from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.io.folder_lock import FolderLock
from georoutenet.io.provenance import commit, device_name
from georoutenet.policy import Policy
from georoutenet.policy.weights import read_card, save_weights
from georoutenet.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    check_groups,
    load_checkpoint,
    random_states,
    remove_checkpoints,
    restore_random_states,
    save_checkpoint,
    sweep_checkpoints,
)
from georoutenet.train.distributed import Processes
from georoutenet.train.log import MetricsFile, Reporter, Silent, TensorBoard, duration
from georoutenet.train.prepare import check_seed, make_policy, make_steps, seeds_before
from georoutenet.train.recipe import Recipe
from georoutenet.train.schedule import batch_kind, entropy_weight, learning_rate
from georoutenet.train.step import State, diagnostics
from georoutenet.train.validation import freeze_statistics, mean_length, validation_set

ANNOUNCE_AFTER = 2.0  # seconds of training before speed and time left are worth saying


class DivergedError(GeoRouteNetError):
    """The loss is no longer a number."""


@dataclass(frozen=True)
class Outcome:
    """How a training session ended."""

    step: int
    seconds: float
    best: float
    """Lowest mean length on the validation set so far, by the decoder of the validation."""
    last: float
    finished: bool
    """Whether the recipe is complete; otherwise the same command goes on."""
    signal: int | None = None


class Trainer:
    """One training session of a recipe in the folder ``out``; it goes on from the newest checkpoint there."""

    def __init__(
        self,
        recipe: Recipe,
        out: str | Path,
        *,
        device: torch.device | str = "cpu",
        fresh: bool = False,
        reporter: Reporter | None = None,
        tensorboard: bool = False,
        processes: Processes | None = None,
        validation: Callable[[Policy], float] | None = None,
    ) -> None:
        self.began = time.monotonic()
        self.recipe, self.out, self.device = recipe, Path(out), torch.device(device)
        if self.device.type == "cuda" and self.device.index is not None:
            torch.cuda.set_device(self.device)  # where kernels run and graphs are recorded
        self.processes = processes or Processes()
        self.reporter = reporter or Silent()
        if recipe.schedule_by == "seconds" and self.processes.count > 1:
            raise InputError('schedule_by = "seconds" works with one process; use "steps" with several')
        self.cities = recipe.batches()[0].n
        if validation is None:
            coords = validation_set(recipe)
            self.cities = coords.shape[1]
            validation = partial(
                mean_length,
                coords=coords,
                decoder=recipe.validation_decoder,
                batch=recipe.validation_batch,
                sparse=recipe.sparse,
            )
        self.validate = validation
        self.lock = FolderLock(self.out)
        with ExitStack() as undo:
            if self.processes.is_first:
                self.lock.acquire()
                undo.callback(self.lock.release)
            self._prepare(fresh, tensorboard)
            undo.pop_all()

    def _prepare(self, fresh: bool, tensorboard: bool) -> None:
        """The state, new or from the newest checkpoint, the steps, and the logs."""
        recipe = self.recipe
        stored = None if fresh else load_checkpoint(self.out)
        if stored is not None and (differences := recipe.differences(stored.recipe)):
            raise InputError(
                f"{self.out} holds a checkpoint of another recipe ({'; '.join(differences)}). "
                "Use another --out, the same settings, or --fresh to start again"
            )
        if stored is None:
            check_seed(recipe)
        self.seeds = [*seeds_before(recipe), recipe.seed]
        self.state = State(make_policy(recipe), recipe, self.device)
        self.step, self.instances, self.seconds_before = 0, 0, 0.0
        self.best = self.last = math.inf
        if stored is not None:
            try:
                check_groups(stored.groups, self.state.groups())
                restore_random_states(stored.random_states)
            except CheckpointError as error:
                raise CheckpointError(f"{self.out}: {error}") from None
            self.step, self.instances, self.seconds_before = stored.step, stored.instances, stored.seconds
            self.state.load(stored.groups, stored.step)
            self.best = self._validated("best")
        self.steps = make_steps(self.state, recipe, self.device, self.processes, self.reporter.line)
        self.names = diagnostics(recipe)
        self.logs: list[MetricsFile | TensorBoard] = []
        if self.processes.is_first:
            sweep_checkpoints(self.out)
            if fresh:
                remove_checkpoints(self.out)
            columns = ["step", "instances", "seconds", "learning_rate", "entropy_weight", *self.names]
            metrics = MetricsFile(self.out / "metrics.csv", [*columns, "validation"], after_step=self.step)
            if metrics.complaint:
                self.reporter.line(metrics.complaint)
            self.last = metrics.last_validation
            if stored is not None and not math.isfinite(self.last):
                self.last = self._validated("last")
            self.logs.append(metrics)
            if tensorboard:
                self.logs.append(TensorBoard(self.out / "tensorboard", after_step=self.step))

    def run(self, *, max_seconds: float = math.inf) -> Outcome:
        """Train until the recipe is complete, a signal comes, or ``max_seconds`` since the trainer was made.

        Whatever the reason, the state is in a checkpoint afterwards.
        """
        (outcome,) = run_together([self], max_seconds=max_seconds)
        return outcome

    def session(self, caught: list[int], max_seconds: float) -> Generator[None, None, Outcome]:
        """`run` one step at a time; it ends early when ``caught`` is no longer empty."""
        if self.processes.is_first:
            self.lock.acquire()  # for a second run of the same trainer
        self.clock = self.warm = time.monotonic()
        self.session_start = self.logged_at = self.step
        self.announced = False
        try:
            complete = yield from self._train(caught, max_seconds)
        except OSError as error:
            raise CheckpointError(
                f"cannot write into {self.out}: {error.strerror or error}; "
                "the same command goes on from the newest checkpoint there"
            ) from error
        finally:
            self.lock.release()
        signal_number = caught[0] if caught else None
        return Outcome(self.step, self.seconds, self.best, self.last, complete, signal_number)

    def _train(self, caught: list[int], max_seconds: float) -> Generator[None, None, bool]:
        """The loop; says whether the recipe is complete."""
        recipe, complete = self.recipe, self._complete()
        self._renew_last()
        while not complete and not self._must_stop(caught, max_seconds):
            self._one_step()
            self._announce(max_seconds)
            complete = self._complete()
            validating = complete or self._due(recipe.validation_every)
            checkpointing = complete or self._due(recipe.checkpoint_every)
            if validating or checkpointing or self.step % recipe.log_every == 0:
                self._log(validating)
            if checkpointing:
                self._checkpoint()
            yield
        if self.step > self.session_start and not complete:
            self._log(False)
            self._checkpoint()
        elif not self.step and self.processes.is_first:
            self._save_weights("last")  # untrained, so that whoever reads them after any run finds some
        return complete

    @property
    def seconds(self) -> float:
        """Seconds of training so far, over all sessions."""
        return self.seconds_before + time.monotonic() - self.clock

    def _complete(self) -> bool:
        if self.step >= self.recipe.steps:
            return True
        if not self.recipe.budget_seconds or (self.processes.count > 1 and self.step % self.recipe.log_every):
            return False
        return self.processes.any(self.seconds >= self.recipe.budget_seconds, self.device)

    def _must_stop(self, caught: list[int], max_seconds: float) -> bool:
        if self.processes.count > 1 and self.step % self.recipe.log_every:
            return False  # processes agree only now and then
        stop = bool(caught) or time.monotonic() - self.began >= max_seconds
        return self.processes.any(stop, self.device)

    def _due(self, every: int) -> bool:
        return self.step % (every or self.recipe.epoch_steps) == 0

    def _one_step(self) -> None:
        kind = batch_kind(self.recipe, self.step)
        self.rate = learning_rate(self.recipe, self.step, self.seconds)
        self.entropy_weight = entropy_weight(self.recipe, self.step, self.seconds)
        self.state.rate.fill_(self.rate)
        self.state.entropy_weight.fill_(self.entropy_weight)
        try:
            self.steps[kind]()
        except InputError:  # a decoder refuses scores that are not numbers before the next log would tell
            weights = torch.stack([p.detach().isfinite().all() for p in self.state.parameters.values()])
            if not bool(weights.all()):
                self._diverged({"weights": math.nan})
            raise
        self.step += 1
        self.instances += self.recipe.batches()[kind].batch

    def _announce(self, max_seconds: float) -> None:
        """The first line: what runs where, how fast, and how long it will take."""
        taken = self.step - self.session_start
        if taken == 1:  # it loads and compiles, and says little about the next ones
            self.warm = time.monotonic()
        passed = time.monotonic() - self.warm
        if self.announced or not (passed > ANNOUNCE_AFTER or self.step % self.recipe.log_every == 0):
            return
        self.announced = True
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            name = f"{self.device} ({torch.cuda.get_device_name(self.device)})"
        else:
            name = f"cpu ({torch.get_num_threads()} threads)"
        if taken > 1:
            rate = (taken - 1) / max(time.monotonic() - self.warm, 1e-9)
        else:
            rate = 1 / max(time.monotonic() - self.clock, 1e-9)
        per_step = sum(k.batch * k.weight for k in self.recipe.batches())
        per_step /= sum(k.weight for k in self.recipe.batches())
        left = (self.recipe.steps - self.step) / rate
        if self.recipe.budget_seconds:
            left = min(left, self.recipe.budget_seconds - self.seconds)
        left = min(left, max_seconds - (time.monotonic() - self.began))
        self.reporter.line(
            f"{name} | {self.recipe.precision} | {self._parameter_count():,} parameters | "
            f"{rate:,.1f} steps/s | {rate * per_step:,.0f} instances/s | {duration(left)} left"
        )

    def _parameter_count(self) -> int:
        return sum(p.numel() for p in self.state.parameters.values())

    def _log(self, validating: bool) -> None:
        """Read the diagnostics since the last log, validate if asked, and write a row."""
        steps = self.step - self.logged_at
        if not steps:
            return
        means = [value / steps for value in self.state.totals.tolist()]
        if not all(map(math.isfinite, means)):
            self._diverged(dict(zip(self.names, means, strict=True)))
        self.state.totals.zero_()
        self.logged_at = self.step
        if not self.processes.is_first:
            return
        row: dict[str, Any] = {
            "step": self.step,
            "instances": self.instances,
            "seconds": round(self.seconds, 3),
            "learning_rate": self.rate,
            "entropy_weight": self.entropy_weight,
            **dict(zip(self.names, means, strict=True)),
            "validation": "",
        }
        text = f"loss {row['loss']:.4f}  cost {row['cost']:.4f}  greedy {row['greedy_cost']:.4f}"
        if validating:
            row["validation"] = self._validate()
            text += f"  validation {self.last:.5f} (best {self.best:.5f})"
        for log in self.logs:
            log.append(row)
        share = self.step / self.recipe.steps
        if self.recipe.budget_seconds:
            share = max(share, self.seconds / self.recipe.budget_seconds)
        self.reporter.progress(self.step, share, f"{text}  {duration(self.seconds)}")

    def _validate(self) -> float:
        """Measure the policy to keep; write it down as the best where it is."""
        policy = self.state.evaluated()
        assert isinstance(policy, Policy)
        self.last = self.validate(policy)
        if self.last < self.best:
            self.best = self.last
            self._save_weights("best")
        return self.last

    def _save_weights(self, name: str) -> None:
        policy = self.state.evaluated()
        assert isinstance(policy, Policy)
        freeze_statistics(policy, self.cities)
        card = {
            "recipe": self.recipe.to_dict(),
            "seeds": self.seeds,
            "step": self.step,
            "instances": self.instances,
            "training_seconds": round(self.seconds, 1),
            "validation_set": self.recipe.validation,
            "validation_length": self.last if math.isfinite(self.last) else None,
            "device": device_name(self.device),
            "commit": commit(),
            "versions": {"georoutenet": __version__, "torch": torch.__version__},
        }
        save_weights(self.out / f"{name}.safetensors", policy, card)

    def _renew_last(self) -> None:
        """Write ``last`` where it is not of the checkpoint: a session may have ended between the two."""
        if not self.step or not self.processes.is_first:
            return
        card = self._card("last")
        if card is None or card.get("step") != self.step:
            self._save_weights("last")

    def _card(self, name: str) -> dict[str, Any] | None:
        """The card of ``best`` or ``last``, if the file is whole and of this recipe."""
        path = self.out / f"{name}.safetensors"
        if not path.exists():
            return None
        try:
            card = read_card(path)[1]
        except InputError as error:
            self.reporter.line(f"not used: {error}")
            return None
        recipe = card.get("recipe")
        return card if isinstance(recipe, dict) and not self.recipe.differences(recipe) else None

    def _validated(self, name: str) -> float:
        """The validation length in the card of ``best`` or ``last``; infinite where there is none."""
        length = (self._card(name) or {}).get("validation_length")
        return float(length) if isinstance(length, int | float) and 0 <= length < 1e300 else math.inf

    def _checkpoint(self) -> None:
        if not self.processes.is_first:
            return
        save_checkpoint(
            self.out,
            Checkpoint(
                self.step,
                self.seconds,
                self.instances,
                self.recipe.to_dict(),
                self.state.groups(),
                random_states(),
            ),
        )
        self._save_weights("last")

    def _diverged(self, means: dict[str, float]) -> NoReturn:
        wrong = ", ".join(f"{name} = {value}" for name, value in means.items() if not math.isfinite(value))
        raise DivergedError(
            f"training diverged between steps {self.logged_at} and {self.step}: {wrong} "
            f"(learning rate {self.rate:.3g}, batch {self.recipe.batch}). Checkpoints and kept weights are "
            "from before; a lower learning_rate, warmup or clip may help"
        )


def run_together(trainers: Sequence[Trainer], *, max_seconds: float = math.inf) -> list[Outcome]:
    """Train several recipes in turns, a step each: the same runs as one after the other.

    On CUDA each has a stream of its own, so that steps too small to fill the GPU overlap. When one fails, the
    others stop with a checkpoint before its error is raised.
    """
    for trainer in trainers:
        trainer.began = min(each.began for each in trainers)
    outcomes: list[Outcome | None] = [None] * len(trainers)
    failure: BaseException | None = None
    streams: list[torch.cuda.Stream | None] = [None] * len(trainers)
    if len(trainers) > 1 and all(trainer.device.type == "cuda" for trainer in trainers):
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream(trainer.device) for trainer in trainers]
    with _caught_signals() as caught:
        running = {k: trainer.session(caught, max_seconds) for k, trainer in enumerate(trainers)}
        while running:
            for k, session in list(running.items()):
                try:
                    with torch.cuda.stream(streams[k]):  # a stream that is None changes nothing
                        next(session)
                except StopIteration as end:
                    outcomes[k] = end.value
                    del running[k]
                except Exception as error:
                    failure = failure or error
                    caught.append(0)
                    del running[k]
    if failure is not None:
        raise failure
    return [outcome for outcome in outcomes if outcome is not None]


@contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """Collect the first SIGINT or SIGTERM instead of dying from it; a second one acts as usual."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def remember(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, remember)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
