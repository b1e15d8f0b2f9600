"""Volunteers' computers train one once-for-all supernet together; every peer ends a round with the same bits.

For researchers: ``manta_swarm.open_snapshot(...)`` and the other names of ``automl.api``, loaded when one of them is first used. Importing
this package loads nothing.

The packages stand at the top of the repository, and are imported by this one name: here are links to them.
"""

TYPE_CHECKING = False  # which tools take for true: ``typing`` need not be loaded
if TYPE_CHECKING:
    from manta_swarm.automl.api import (
        Architecture,
        Dataset,
        Effort,
        Evaluator,
        ExportedNetwork,
        Found,
        LatencyTable,
        MantaError,
        Measured,
        Quality,
        SearchSpace,
        Snapshot,
        Subnet,
        UserError,
        Written,
        cut,
        evaluate,
        evaluate_exported,
        export,
        load_dataset,
        macs,
        num_weights,
        open_exported,
        open_snapshot,
        search,
        space_named,
    )

__all__ = [
    "Architecture",
    "Dataset",
    "Effort",
    "Evaluator",
    "ExportedNetwork",
    "Found",
    "LatencyTable",
    "MantaError",
    "Measured",
    "Quality",
    "SearchSpace",
    "Snapshot",
    "Subnet",
    "UserError",
    "Written",
    "cut",
    "evaluate",
    "evaluate_exported",
    "export",
    "load_dataset",
    "macs",
    "num_weights",
    "open_exported",
    "open_snapshot",
    "search",
    "space_named",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return a name of ``automl.api``, which is loaded now."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value: object = getattr(importlib.import_module(f"{__name__}.automl.api"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return what is here, loaded or not."""
    return sorted({*globals(), *__all__})
