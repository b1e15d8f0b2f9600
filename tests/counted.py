"""A program as its entry point runs it, which writes what it had imported by its end: ``python -m tests.counted FILE MODULE ARGUMENTS``."""

import atexit
import importlib
import json
import sys
from pathlib import Path


def _count(out: Path) -> None:
    out.write_text(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))


def main() -> None:
    """Run the program; however it ends, its top-level modules are in the file."""
    atexit.register(_count, Path(sys.argv[1]).resolve())
    sys.argv = sys.argv[2:]
    importlib.import_module(sys.argv[0]).main()


if __name__ == "__main__":
    main()
