"""Put trained weights into the package: a card that says where they come from and what they reach, and the
results they reached, under the hash of the file that has the card.

    python -m research.package georoutenet --weights runs/georoutenet/best.safetensors \\
        --results evaluated/georoutenet --description "..." --training-data "..." --selection "..."

``--results`` holds what ``georoutenet evaluate --out`` wrote; packed, it replaces ``results/NAME.npz``.
Stages of training that are on the card of the weights packaged before stay on it, unless ``--from-scratch``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from georoutenet.errors import InputError
from georoutenet.evaluate.packed import write_packed
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.settings import settings_of
from georoutenet.io.packaged import PACKAGED
from georoutenet.policy.weights import digest, load_policy, read_card, save_weights
from research.pack import read_folder

RESULTS = Path(__file__).parent.parent / "results"


def read_evaluated(folder: Path, sha256: str) -> dict[str, Results]:
    """The results in a folder, all of one file of weights, by name."""
    found = read_folder(folder)
    for name, each in found.items():
        if each.header["sha256"] != sha256:
            raise InputError(f"{name} in {folder} is of other weights")
    return found


def metrics(results: dict[str, Results]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean length and gap by set and decoder."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for each in results.values():
        table.setdefault(each.header["set"], {})[settings_of(each.header).label] = {
            "mean_length": round(float(each.lengths.mean()), 6),
            "gap_percent": round(float(each.gaps.mean()), 4),
            "instances": len(each),
        }
    return table


def stages_of(card: dict[str, Any]) -> list[dict[str, Any]]:
    if "stages" in card:
        return list(card["stages"])
    seconds = card.get("training_seconds", 60 * card.get("training_minutes", 0))
    return [
        {
            "instances": card["instances"],
            "seconds": round(seconds, 1),
            "budget_seconds": card["recipe"]["budget_seconds"],
            "commit": card["commit"],
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--from-scratch", action="store_true")
    parser.add_argument("--commit", help="of the training, where its card does not know better")
    for text in ("description", "training-data", "selection"):
        parser.add_argument(f"--{text}", required=True)
    options = parser.parse_args()

    try:
        package(options)
    except InputError as error:
        raise SystemExit(f"error: {error}") from None


def package(options: argparse.Namespace) -> None:
    """Nothing is written before everything was read."""
    evaluated, target = digest(options.weights), PACKAGED / f"{options.name}.safetensors"
    results = read_evaluated(options.results, evaluated)
    card = read_card(options.weights)[1]
    card["commit"] = options.commit or card["commit"]
    before = [] if options.from_scratch or not target.exists() else stages_of(read_card(target)[1])
    stages = [*before, *stages_of(card)]
    texts = {key: getattr(options, key) for key in ("description", "training_data", "selection")}
    kept = ("recipe", "device", "seed", "commit", "date", "versions")
    totals = {
        "stages": stages,
        "instances": sum(stage["instances"] for stage in stages),
        "training_minutes": round(sum(stage["seconds"] for stage in stages) / 60, 1),
    }
    from_training = {key: card[key] for key in kept if key in card}
    policy = load_policy(options.weights)
    save_weights(target, policy, {**texts, **totals, **from_training, "metrics": metrics(results)})

    changes = {
        "weights": options.name,
        "sha256": digest(target),
        "training_instances": str(totals["instances"]),
        "note": f"evaluated from a file with sha256 {evaluated}: the same tensors, with another card",
    }
    renamed = {name: Results({**each.header, **changes}, each.rows) for name, each in results.items()}
    write_packed(RESULTS / f"{options.name}.npz", renamed, share_tables=True)
    print(f"{target}: {totals['instances']:,} instances in {totals['training_minutes']} minutes")


if __name__ == "__main__":
    main()
