"""A short slice of what ``python -m research.abuse`` does for minutes."""

from __future__ import annotations

import asyncio
import random

from live import live

from georoutenet.web.limits import Limits
from research.abuse import ATTACKS, abuse, fuzzed, malformed, oversized
from research.serving import Client


def test_no_attack_keeps_a_good_request_from_its_answer() -> None:
    with live(Limits(body_seconds=1.0, searches=2)) as server:
        found = asyncio.run(abuse(Client("127.0.0.1", server.port), scale=0.01))
        admission = server.service.searches._admission
        assert not admission._running.taken
        assert not admission._waiting.taken
    assert not found.wrong
    assert found.solved
    assert sum(found.statuses.values()) == sum(max(1, count // 100) for _, count, _ in ATTACKS.values())
    refused = {status.rpartition(" ")[2] for status in found.statuses}
    assert {"400", "413", "408"} & refused


def test_a_seed_repeats_its_request() -> None:
    for make in (fuzzed, malformed, oversized):
        assert make(random.Random("7")) == make(random.Random("7"))
        assert make(random.Random("7")) != make(random.Random("8"))
