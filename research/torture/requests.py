"""Requests to the playground's service; ``research.abuse`` attacks a whole server."""

from __future__ import annotations

import json
import random
from pathlib import Path

from georoutenet.io.names import safe_name
from research.torture import Outcome

KIND = "inputs"


def attack_requests(source: random.Random, folder: Path) -> Outcome:
    """Bodies of requests to the playground's service."""
    from georoutenet.web import messages
    from georoutenet.web.limits import Limits
    from research.abuse import fuzzed_body

    body, limits = fuzzed_body(source), Limits(cities=50)
    kind = source.randrange(4)
    if kind == 0:
        work = messages.read_work(body, limits)
        assert work.instance.n <= limits.cities
        assert (work.options.max_seconds or 0.0) <= limits.seconds
    elif kind == 1:
        messages.read_scored(body, limits)
    elif kind == 2:
        _, name = messages.exported(body, source.choice([*messages.EXPORTS, "exe"]), limits)
        assert name.rpartition(".")[0] == safe_name(name.rpartition(".")[0])
    else:
        json.dumps(
            messages.read_file(body, source.choice([*messages.FORMATS, "npy"]), limits), allow_nan=False
        )
    return "accepted"
