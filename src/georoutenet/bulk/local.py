"""The local engine: worker processes on this machine, each solving one shard at a time."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import georoutenet
from georoutenet.bulk.engine import ONE_THREAD, Advance, Failed, Step, told
from georoutenet.bulk.shards import Job
from georoutenet.errors import GeoRouteNetError
from georoutenet.solver.api import available_cores

ATTEMPTS = 3
"""Workers that may die over one shard before it is given up."""
PROCESSES_PER_GPU = 3
"""One searches while others read and write."""


def count_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def gpus_named(device: str) -> list[str]:
    """``cuda:1`` names one GPU, ``cuda`` and ``auto`` all of them."""
    return [device] if ":" in device else [f"cuda:{k}" for k in range(count_gpus())]


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits, also for a process that is started meanwhile, until that lets it through.

    A terminal sends it to all processes, and one that still imports would end in a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """One process, and a thread that listens to it."""

    def __init__(
        self, job: str, number: int, messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]]
    ) -> None:
        self.number, self.ready, self.solved = number, False, 0
        self.shard: int | None = None
        root = str(Path(georoutenet.__file__).parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with _interrupts_held():
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "georoutenet.bulk.worker"],  # -P: no modules of this folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                text=True,
                encoding="utf-8",
            )
        self.messages = messages
        threading.Thread(target=self._listen, daemon=True).start()
        self.tell(job)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers, suppress(ValueError):  # what is no answer ends the worker
            for line in answers:
                if line.endswith("\n"):
                    self.messages.put((self, json.loads(line)))
        self.messages.put((self, None))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died, which the listener will say
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def start(self, shard: int) -> None:
        self.shard, self.solved = shard, 0
        self.tell(str(shard))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(OSError):  # what was written may be left in its buffer
            self.process.stdin.close()


def run_local(
    job: Job, shards: Iterable[int], workers: int, gpus: Sequence[str] = ()
) -> Generator[Step, None, None]:
    """Solve shards; steps come as they happen. A worker that dies is replaced, its shard done again."""
    left = deque(shards)
    deaths: Counter[int] = Counter()
    messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()
    pool: set[_Worker] = set()
    content = job.to_json()

    def hire(number: int) -> None:
        device = gpus[number % len(gpus)] if gpus else "cpu"
        threads = max(1, available_cores() // workers) if gpus else 1
        start = json.dumps({"job": content, "device": device, "threads": threads})
        pool.add(_Worker(start, number, messages))

    try:
        for number in range(min(workers, len(left))):
            hire(number)
        while pool:
            worker, message = messages.get()
            if worker not in pool:
                continue
            if message is None:
                pool.remove(worker)
                worker.end()
                died = worker.process.returncode
                if not worker.ready:
                    raise GeoRouteNetError(f"a worker could not start: it ended with status {died}")
                if worker.shard is not None:
                    deaths[worker.shard] += 1
                    yield Advance(-worker.solved)
                    if deaths[worker.shard] < ATTEMPTS:
                        left.appendleft(worker.shard)
                    else:
                        text = f"{ATTEMPTS} workers died over it, the last with status {died}"
                        yield Failed(worker.shard, text)
                if left:
                    hire(worker.number)
                continue
            if "rows" in message:
                worker.solved += message["rows"]
                yield Advance(message["rows"])
                continue
            worker.ready, worker.shard = True, None
            if "ready" not in message:
                step = told(message)
                if isinstance(step, Failed):
                    yield Advance(-worker.solved)
                yield step
            if left:
                worker.start(left.popleft())
            else:
                pool.remove(worker)
                worker.end()
    finally:
        for worker in pool:
            worker.end()
