"""The fixtures of the commands that talk to a hub."""
from hub_cases import bench, repository, via

__all__ = ["bench", "repository", "via"]
