"""Run by ``torchrun`` from a test: the gradients of one step for both objectives, then a short run."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny import tiny_recipe
from torch import Tensor

from georoutenet.train import step as module
from georoutenet.train.distributed import Processes, join_processes, leave_processes
from georoutenet.train.prepare import make_policy, make_steps
from georoutenet.train.recipe import Recipe
from georoutenet.train.step import State, Step
from georoutenet.train.trainer import Trainer

CPU = torch.device("cpu")
OBJECTIVES = {"mcs": [], "pg": ["objective=pg", "candidates=1"]}


def gradients(recipe: Recipe, processes: Processes) -> dict[str, Tensor]:
    """Gradients of the first step, with tours that do not depend on the number of processes."""

    def tours_of_share(start: Tensor, logits: Tensor, *, samples: int, seed: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        noise = torch.rand(recipe.batch, samples + 1, recipe.n, generator=generator)
        share = processes.share(recipe.batch)
        return noise.argsort(2)[processes.rank * share : (processes.rank + 1) * share]

    original, module.rollout = module.rollout, tours_of_share  # type: ignore[assignment]
    try:
        state = State(make_policy(recipe), recipe, CPU)
        (step,) = make_steps(state, recipe, CPU, processes)
        assert isinstance(step, Step)
        state.entropy_weight.fill_(0.0125)
        step.gradients()
        return {name: p.grad for name, p in state.parameters.items() if p.grad is not None}
    finally:
        module.rollout = original


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    processes, _ = join_processes("cpu")
    for objective, overrides in OBJECTIVES.items():
        found = gradients(tiny_recipe(overrides), processes)
        if processes.is_first:
            save_file(found, out / f"{objective}.safetensors")
    outcome = Trainer(tiny_recipe(["steps=4"]), out / "run", processes=processes).run()
    assert outcome.finished
    leave_processes()


if __name__ == "__main__":
    main()
