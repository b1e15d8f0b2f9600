"""Exported networks: a subnet with everything that a stranger needs to run it, and to see where it comes from."""

from manta_swarm.automl.export.folder import load_folder

__all__ = ["load_folder"]
