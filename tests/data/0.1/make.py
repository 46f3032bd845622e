"""Makes the files beside it with the code of 0.1: weights, results, public names and commands.

Once, from a checkout of 0.1 (commit 933c35f) in ``CHECKOUT``:

    PYTHONPATH=CHECKOUT/src python tests/data/0.1/make.py
"""

# ruff: noqa: I001  (the modules of 0.1 lie elsewhere today)
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from typer.main import get_command
from typer.testing import CliRunner

import georoutenet as grn
from georoutenet.cli import app
from georoutenet.model.config import PolicyConfig
from georoutenet.model.policy import Policy
from georoutenet.model.weights import save_weights

FOLDER = Path(__file__).parent


def weights(encoder: str) -> Path:
    torch.manual_seed(1)
    policy = Policy(PolicyConfig(encoder=encoder, hidden=16, heads=2, layers=1, neighbors=4, rbf=4)).eval()
    if encoder == "nar4tsp":
        policy.collect_statistics(torch.rand(8, 10, 2))
    path = FOLDER / f"{encoder}.safetensors"
    card = {"recipe": {"objective": "mcs"}, "instances": 1_000, "commit": "", "seed": 1}
    save_weights(path, policy, card)
    return path


def scores(path: Path) -> dict[str, list]:
    """Of eight cities."""
    cities = np.random.default_rng(8).random((1, 8, 2), dtype=np.float32)
    with torch.no_grad():
        found = grn.load_policy(path)(torch.from_numpy(cities))
    return {
        "cities": cities[0].tolist(),
        "start": found.start[0].double().numpy().round(6).tolist(),
        "logits": found.logits[0].double().numpy().round(6).tolist(),
    }


def commands(command: object, name: str = "") -> dict[str, list[str]]:
    """The options of each command, as in ``{"data list": ["--help"]}``."""
    found = {name: sorted(text for each in command.params for text in (*each.opts, *each.secondary_opts))}
    for sub, child in getattr(command, "commands", {}).items():
        found |= commands(child, f"{name} {sub}".strip())
    return found


def main() -> None:
    paths = [weights("georoutenet"), weights("nar4tsp")]
    for decoder, ending in (("greedy", "csv"), ("beam-16", "csv.gz")):
        out = FOLDER / f"test20-{decoder}.{ending}"
        options = f"--set test20 --decoder {decoder} --limit 5 --device cpu --out {out}"
        done = CliRunner().invoke(app, ["evaluate", str(paths[0]), *options.split(), "--fresh"])
        assert done.exit_code == 0, done.output
    contract = {
        "names": grn.__all__,
        "commands": commands(get_command(app)),
        "scores": {path.name: scores(path) for path in paths},
    }
    (FOLDER / "contract.json").write_text(json.dumps(contract) + "\n")


if __name__ == "__main__":
    main()
