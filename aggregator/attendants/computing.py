"""What the programs beside an aggregator that compute have alike: one thread, a share of the time, the run's manifest and its data."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from aggregator.attendants.attendants import CANNOT, attend, keep_beating
from aggregator.log.storage import read_manifest
from automl.data.catalog import load_dataset
from automl.data.dataset import Dataset
from protocol.errors import StorageError, UserError
from protocol.manifest import Manifest


def be(name: str, work: Callable[[Manifest, Dataset, Path, float], None]) -> None:
    """Be the program ``name``, which is called with ``DIR SHARE [DATA_ROOT]``.

    Args:
        name: for what it says of itself.
        work: is given the manifest of the run in DIR, its data, DIR and SHARE; it never returns.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    attend(lambda: os._exit(0))
    keep_beating()
    torch.set_num_threads(1)
    directory, share = Path(sys.argv[1]), float(sys.argv[2])
    try:
        manifest = read_manifest(directory).open()
        dataset = load_dataset(manifest.dataset, Path(sys.argv[3]) if len(sys.argv) > 3 else None)
        work(manifest, dataset, directory, share)
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(CANNOT)
    except StorageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
