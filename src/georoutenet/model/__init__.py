"""The policy: two encoders and their heads, from coordinates to `Scores`."""

from georoutenet.model.config import PolicyConfig
from georoutenet.model.policy import Policy
from georoutenet.model.scores import Scores

__all__ = ["Policy", "PolicyConfig", "Scores"]
