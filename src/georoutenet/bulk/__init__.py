"""Many instances from files to files: shards, a manifest, and engines that solve them."""

from __future__ import annotations

from georoutenet.bulk.api import BulkResult, solve_bulk
from georoutenet.bulk.shards import read_shard
from georoutenet.bulk.solver import BulkSolver

__all__ = ["BulkResult", "BulkSolver", "read_shard", "solve_bulk"]
