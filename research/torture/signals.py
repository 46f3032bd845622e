"""Ctrl-C at any moment: a status or a tour, never a traceback, and the next call works."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from georoutenet.bulk import read_shard
from research.torture import Outcome, tally

KIND = "signals"


def attack_commands(source: random.Random, folder: Path) -> Outcome:
    """Ctrl-C during a command: it ends with status 130, or 0 if it was done, and its files are whole."""
    cities, out = folder / "attack.csv", folder / "out.json"
    cities.write_text("\n".join(f"{source.random()},{source.random()}" for _ in range(30)))
    out.unlink(missing_ok=True)
    table, lines = folder / "table.csv", [f"{k // 8},{k * k % 97},{k * k % 89}" for k in range(800)]
    table.write_text("\n".join(["id,x,y", *lines]))
    shutil.rmtree(folder / "bulk", ignore_errors=True)
    recipe = folder / "recipe.toml"
    recipe.write_text('name = "x"\nsteps = 100000\nn = 10\nbatch = 4\nvalidation_size = 16\n')
    commands = {
        "solve": ["solve", str(cities), "--max-seconds", "0.3", "--output", str(out)],
        "network": ["solve", str(cities), "--first", "network", "--max-seconds", "3"],
        "demo": ["demo", "--out", str(folder / "demo"), "--seconds", "0.2"],
        "evaluate": ["evaluate", "georoutenet-50", "--set", "test20", "--limit", "3", "--fresh",
                     "--out", str(folder / "r.csv")],
        "bulk": ["bulk", str(table), str(folder / "bulk"), "--format", "npz", "--shard-rows", "10"],
        "train": ["train", str(recipe), "--out", str(folder / "run"), "--fresh", "--device", "cpu"],
    }  # fmt: skip
    name = source.choice(["solve", "solve", "solve", *commands])
    command = [sys.executable, "-m", "georoutenet", *commands[name]]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    time.sleep(source.uniform(0.05, 0.8 if name == "solve" else 4.0))  # earlier, Python itself is not ready
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)  # all processes of the command, as a terminal does
    tally["signals"] += 1
    _, errors = process.communicate(timeout=120)
    if "Traceback" in errors and "/georoutenet/" not in errors:
        return "Python itself was starting"
    assert "Traceback" not in errors, errors
    assert process.returncode in (130, 0, -signal.SIGINT), (name, process.returncode, errors)
    assert not list(folder.glob("bulk/*.tmp"))
    for part in folder.glob("bulk/part-*"):
        assert len(read_shard(part)["tour"]) == 10
    if out.exists():
        assert len(json.loads(out.read_text())["tour"]) == 30
    return f"status {process.returncode}"


FIRST_CALLS = """
import random, signal, sys, traceback
seed, n, first = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
source = random.Random(seed)
cities = [[source.random(), source.random()] for _ in range(n)]
def attempt():
    import georoutenet as grn
    return grn.solve(cities, first=first, stop=grn.MaxIterations(200))
print("go", flush=True)
done, returned, raised = None, 0, 0
while done is None:
    try:
        result = attempt()
        assert sorted(result.tour.tolist()) == list(range(n))
        returned += result.interrupted
        done = None if result.interrupted else result
    except KeyboardInterrupt as error:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert "finish" not in names and "first_tours" not in names, "the tour is lost"
        raised += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(returned, raised, done.length.hex(), flush=True)
"""


def attack_first_calls(source: random.Random, folder: Path) -> Outcome:
    """Ctrl-C, once to three times, while a new process imports, loads or compiles, and solves.

    Whoever has cities gets a tour, later calls work, and in the end the tour is that of a quiet process.
    """
    n, first = source.choice([30, 120]), source.choice(["auto", "auto", "network"])
    arguments = [sys.executable, "-c", FIRST_CALLS, "1", str(n), first]
    quiet = folder / f"quiet-{n}-{first}"
    if not quiet.exists():
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        quiet.write_text(done.stdout.split()[-1])
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(source.randint(1, 3)):
        time.sleep(source.uniform(0.0, 0.6 if first == "auto" else 2.5))
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            tally["signals"] += 1
    out, errors = process.communicate(timeout=300)
    assert process.returncode in (0, -signal.SIGINT), errors
    assert not errors or process.returncode, errors
    if not out:  # it had come to its end before the signal did
        return "after the end"
    returned, raised, length = out.split()
    assert length == quiet.read_text()
    return (
        "a tour each time"
        if int(returned) and not int(raised)
        else "a tour at the next call"
        if int(raised)
        else "too late"
    )
