"""Runs ``MODULE ARGUMENTS`` where nothing is installed that a light contributor does not need: whoever imports this finds it missing.

Where the environment says ``IGNORED``, SIGINT is ignored at first, as of what a script starts with ``&``.
"""

import importlib
import os
import signal
import sys

BLOCKED = ("hivemind", "multiaddr", "starlette", "uvicorn", "torchvision", "sklearn", "skimage", "matplotlib", "PIL", "scipy")


class Missing:
    """A finder of modules that does not find these."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise, as where a package is not installed."""
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())  # type: ignore[arg-type]


def main() -> None:
    """Run the program."""
    if os.environ.get("IGNORED"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    light = importlib.import_module("manta_swarm.peer.features.light.light")
    light._PAUSE_S = (0.05, 0.1)
    sys.argv = sys.argv[1:]
    importlib.import_module(sys.argv[0]).main()


if __name__ == "__main__":
    main()
