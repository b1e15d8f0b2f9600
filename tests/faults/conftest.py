"""Imports hivemind by the only door, which silences what hivemind's own code warns of: in tests every warning is an error."""

import manta_swarm.network.node  # noqa: F401
