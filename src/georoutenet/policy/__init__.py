"""The policy and its weights: coordinates in, scores out."""

from georoutenet.policy.policy import Policy

__all__ = ["Policy"]
