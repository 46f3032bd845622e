"""Time policies and classical solvers on the same instances, for the efficiency table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from georoutenet.errors import InputError, MissingDependencyError
from georoutenet.evaluate.batch_solver import (
    BatchSolver,
    Problems,
    batch_size,
    checked_length,
    consecutive,
    count_of,
)
from georoutenet.evaluate.evaluation import result_header
from georoutenet.evaluate.names import decoder_name, method_name
from georoutenet.evaluate.settings import Settings
from georoutenet.evaluate.statistics import bootstrap_mean
from georoutenet.io.datasets import dataset
from georoutenet.io.provenance import commit, device_name, today
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import load_policy
from georoutenet.problem.tour import gap
from research.references.solvers import make_solver
from research.report.efficiency import SOLVER_NAMES, Measurement, read_measurements, write_measurements

PROBES = 3
"""Repetitions of the latency probe, as in the paper."""


def measure_all(
    path: Path,
    weights: Sequence[str],
    sets: Sequence[str],
    decoders: Sequence[Settings],
    solvers: Sequence[str],
    *,
    device: torch.device,
    solver_limit: int | None = None,
    report: Callable[[Measurement], None] = lambda _: None,
) -> list[str]:
    """Measure every contender on every set and write the file after each; why some were left out.

    What the file holds already is not measured again. Solvers take the first ``solver_limit`` instances of a
    set, by default as many as the decoders do.
    """
    done = read_measurements(path) if path.exists() else []
    keys = {each.key for each in done}
    policies = {name: load_policy(name, device) for name in weights}
    left_out = []

    def keep(one: Measurement) -> None:
        done.append(one)
        write_measurements(path, done)
        report(one)

    limits = {each.limit for each in decoders}
    for set_name in sets:
        for name, policy in policies.items():
            for settings in decoders:
                header = result_header(name, dataset(set_name), settings, device)
                count = count_of(dataset(set_name), settings.limit)
                identity = (method_name(header), header["weights"], decoder_name(header))
                if (set_name, *identity, str(count)) not in keys:
                    keep(measure_policy(policy, name, set_name, settings, device))
        for text in solvers:
            limit = solver_limit or next(iter(limits), None)
            count = count_of(dataset(set_name), limit)
            name, words = solver_words(text)
            if (set_name, name, "", words, str(count)) in keys:
                continue
            try:
                keep(measure_solver(text, set_name, limit))
            except MissingDependencyError as error:
                if set_name == sets[0]:
                    left_out.append(f"{text}: {error}")
    return left_out


def measure_policy(
    policy: Policy, weights: str | Path, set_name: str, settings: Settings, device: torch.device
) -> Measurement:
    """Time a policy with a decoder: the probe, then the whole set in batches, both warm."""
    data = dataset(set_name)
    problems = Problems(data, settings.limit)
    batches = consecutive(problems.sizes, batch_size(data, settings))
    solver = BatchSolver(policy, settings, device)
    solver.warm_up(problems, batches)
    first = problems.take(0, 1)
    probe = mean_seconds(lambda: solver.solve(first))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    lengths: list[float] = []
    seconds = network = improve = cpu = 0.0
    for low, high in batches:
        instances = problems.take(low, high)
        began = time.process_time()
        solved = solver.solve(instances)
        cpu += time.process_time() - began
        seconds += solved.seconds
        network += solved.network_seconds
        improve += solved.improve_seconds
        lengths += [checked_length(*each) for each in zip(instances, solved.tours, strict=True)]
    header = result_header(weights, data, settings, device)
    return Measurement(
        set=set_name,
        method=method_name(header),
        weights=header["weights"],
        decoder=decoder_name(header),
        instances=problems.count,
        **_gaps(lengths, problems),
        probe_seconds=probe,
        seconds=seconds,
        network_seconds=network,
        decode_seconds=seconds - network - improve,
        improve_seconds=improve,
        cpu_seconds=cpu,
        batch=batch_size(data, settings),
        precision=settings.decoding.precision,
        parameters=policy.parameter_count(),
        peak_device_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else math.nan,
        **_here(device, torch.get_num_threads()),
    )


def solver_words(text: str) -> tuple[str, str]:
    """The name and the settings, in words, of a solver written ``concorde`` or ``or-tools:1``."""
    name, _, seconds = text.partition(":")
    return SOLVER_NAMES.get(name, name), f"at most {seconds} s" if seconds else ""


def measure_solver(text: str, set_name: str, limit: int | None) -> Measurement:
    """Time a classical solver in this process on one thread, one instance after the other.

    It is written ``concorde`` or, with its time limit, ``or-tools:1``. It sees Euclidean distances scaled to
    its own integers, on TSPLIB too; the length is measured by us.
    """
    name, _, seconds_allowed = text.partition(":")
    try:
        options = {"seconds": float(seconds_allowed)} if seconds_allowed else {}
    except ValueError:
        raise InputError(f"a solver's limit is a number of seconds, got {text!r}") from None
    solver = make_solver(name, **options)
    words = solver_words(text)[1]
    problems = Problems(dataset(set_name), limit)
    instances = problems.take(0, problems.count)
    probe = mean_seconds(lambda: solver.solve(instances[0].coordinates))
    lengths: list[float] = []
    seconds = cpu = 0.0
    for instance in instances:
        began = time.process_time()
        solution = solver.solve(instance.coordinates)
        cpu += time.process_time() - began
        seconds += solution.seconds
        lengths.append(checked_length(instance, solution.tour, solver.name))
    return Measurement(
        set=set_name,
        method=SOLVER_NAMES[name],
        weights="",
        decoder=words,
        instances=problems.count,
        **_gaps(lengths, problems),
        probe_seconds=probe,
        seconds=seconds,
        network_seconds=math.nan,
        decode_seconds=math.nan,
        improve_seconds=math.nan,
        cpu_seconds=cpu,
        batch=1,
        precision="",
        parameters=0,
        peak_device_bytes=math.nan,
        **_here(torch.device("cpu"), 1),
    )


def mean_seconds(work: Callable[[], object], repetitions: int = PROBES) -> float:
    """The mean time of some work that waits for its own device, after doing it once."""
    work()
    began = time.perf_counter()
    for _ in range(repetitions):
        work()
    return (time.perf_counter() - began) / repetitions


def _gaps(lengths: Sequence[float], problems: Problems) -> dict[str, Any]:
    gaps = np.atleast_1d(gap(lengths, problems.references[: len(lengths)]))
    if not np.isfinite(gaps).all():
        return {"gap": math.nan, "gap_low": math.nan, "gap_high": math.nan}
    if not problems.data.is_random:
        return {"gap": float(gaps.mean()), "gap_low": math.nan, "gap_high": math.nan}
    interval = bootstrap_mean(gaps)
    return {"gap": interval.mean, "gap_low": interval.low, "gap_high": interval.high}


def _here(device: torch.device, threads: int) -> dict[str, Any]:
    return {"device": device_name(device), "threads": threads, "commit": commit(), "date": today()}
