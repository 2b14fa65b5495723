"""The fixtures of the commands that talk to a hub."""
from hub_cases import bench, repository

__all__ = ["bench", "repository"]
