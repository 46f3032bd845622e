"""A worker process of the local engine: reads which shards to solve from its input, one JSON line each."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from georoutenet.bulk.engine import attempt
from georoutenet.bulk.inputs import Rows
from georoutenet.bulk.shards import Job, make_solver


def main() -> None:
    """Lines in: the job, then numbers of shards. Lines out: ``ready``, ``rows``, ``done``, ``failed``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this process,
    if hasattr(signal, "pthread_sigmask"):  # who held back what came until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not be taken for an answer

    def answer(**content: Any) -> None:
        try:
            print(json.dumps(content), file=answers, flush=True)
        except BrokenPipeError:  # nobody waits any more
            os._exit(1)

    start = json.loads(sys.stdin.readline())
    job = Job.from_json(start["job"])
    rows, solver = Rows(job.input), make_solver(job, device=start["device"], threads=start["threads"])
    answer(ready=os.getpid())
    for line in sys.stdin:
        answer(**attempt(job, rows, solver, int(line), lambda count: answer(rows=count)))


if __name__ == "__main__":
    main()
