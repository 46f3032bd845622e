"""One process or several (started by ``torchrun``): who am I, and how do we agree on a mean."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from georoutenet.device import choose_device
from georoutenet.errors import InputError


@dataclass(frozen=True)
class Processes:
    """This process among those of a run. Each works on an equal part of every batch."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, batch: int) -> int:
        """Instances of a batch that this process works on."""
        if batch % self.count:
            raise InputError(f"batch = {batch} cannot be split equally over {self.count} processes")
        return batch // self.count

    def average(self, value: Tensor) -> Tensor:
        """Mean of a tensor over the processes, without gradients."""
        if self.count == 1:
            return value
        total = value.detach().clone()
        torch.distributed.all_reduce(total)
        return total / self.count

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by its mean over the processes, in one message."""
        if self.count == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        joined = torch.cat([g.flatten() for g in gradients])
        torch.distributed.all_reduce(joined)
        joined /= self.count
        pieces = joined.split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any process says yes; every process must ask."""
        if self.count == 1:
            return flag
        votes = torch.tensor(float(flag), device=device)
        torch.distributed.all_reduce(votes)
        return bool(votes.item() > 0)


def join_processes(device: str) -> tuple[Processes, torch.device]:
    """Join the other processes of a ``torchrun``, if there are any; the device this process works on."""
    place = choose_device(device)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Processes(), place
    rank = int(os.environ["RANK"])
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if place.type == "cuda" else "gloo")
    return Processes(rank, count), place


_kept: list[Any] = []
"""Handles of messages that no other thread may be the last to let go of: gloo's threads outlive the group,
and one that releases a tensor while Python ends aborts the process."""


def leave_processes() -> None:
    """Part from the other processes once all have finished; leaving early can take a slower one down."""
    if torch.distributed.is_initialized():
        handle = torch.distributed.barrier(async_op=True)
        handle.wait()
        _kept.append(handle)
        torch.distributed.destroy_process_group()
