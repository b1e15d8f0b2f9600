"""manta-search as it is typed, as a module that tests can have forked (``tests.forked``)."""

from manta_swarm.programs import search


def main() -> None:
    """Be manta-search, which knows the network."""
    search()


if __name__ == "__main__":
    main()
