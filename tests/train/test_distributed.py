from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_recipe
from two_processes import OBJECTIVES, gradients

from georoutenet.errors import InputError
from georoutenet.train.distributed import Processes, join_processes
from georoutenet.train.trainer import Trainer


def test_two_processes_have_the_gradients_of_the_joint_batch(tmp_path: Path) -> None:
    """Under torchrun with gloo: the same instances in halves, standardized over both; then a whole run."""
    script = Path(__file__).with_name("two_processes.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    torch.set_num_threads(1)
    for objective, overrides in OBJECTIVES.items():
        expected = gradients(tiny_recipe(overrides), Processes())
        found = load_file(tmp_path / f"{objective}.safetensors")
        assert found.keys() == expected.keys()
        assert max(gradient.abs().max().item() for gradient in expected.values()) > 1e-3
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-6, msg=f"{objective} {name}")
    assert (tmp_path / "run" / "checkpoint-000000004").is_dir()


def test_a_single_process_changes_nothing() -> None:
    alone = Processes()
    value = torch.tensor([1.0, 2.0])
    assert alone.average(value) is value
    assert alone.any(True, value.device)
    assert not alone.any(False, value.device)
    assert join_processes("cpu") == (alone, torch.device("cpu"))


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="batch = 5 cannot be split equally over 2"):
        Processes(0, 2).share(5)
    with pytest.raises(InputError, match="one process"):
        Trainer(tiny_recipe(["schedule_by=seconds", "budget_seconds=5"]), tmp_path, processes=Processes(0, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_said() -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        join_processes("cuda")
