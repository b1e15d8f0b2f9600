"""manta-swarm: a whole swarm on one computer."""

MAX_PEERS = 256  # that are started
