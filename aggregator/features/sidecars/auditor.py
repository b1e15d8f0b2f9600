"""An operator's auditor beside the log: a sidecar (``manta-peer join --audit-only``) whose key, in DIR/auditor, the manifest names.

Its verdicts count as every named auditor's. It talks to the operator beside it first, and trains nothing. Whoever is admitted to a run,
its named auditors are.
"""

from collections.abc import Callable
from pathlib import Path

from manta_swarm.aggregator.features.sidecars.sidecar import Met, Sidecar
from manta_swarm.aggregator.log.contents import AUDITOR
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.verdicts import AuditRules
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory


async def audit_beside(directory: Path, met: Met, share: float, *, data_root: Path | None, say: Callable[[str], None]) -> None:
    """Keep an operator's auditor running until the run is settled; see ``Sidecar.run``. The log goes on where its settings cannot be used.

    Args:
        directory: the aggregator's.
        met: the run.
        share: of one core's time that audits take at most.
        data_root: folder of data sets that come with no library.
        say: prints a line for the person.

    Raises:
        StorageError: its folder cannot be written to.
    """
    sidecar = Sidecar(AUDITOR, directory, auditor_options(share, data_root), say)
    try:
        await sidecar.run(met)
    except UserError as error:
        say(f"{error}; this operator audits nothing until it is started again")
    finally:
        await sidecar.end()


def auditor_options(share: float, data_root: Path | None) -> list[str]:
    """Return the options of ``manta-peer join`` of one that audits for so much of a core's time."""
    data = () if data_root is None else ("--data-root", str(data_root))
    limits = ("--audit", f"{max(1, round(100 * share))}%", "--evaluation", "0%", "--threads", "1", "--gpus", "none")
    return ["--audit-only", *limits, *data]


def auditor_key(directory: Path) -> PublicKey:
    """Return the key of the auditor beside the log in ``directory``; it is made if it is not there.

    Raises:
        UserError: the folder cannot be used.
        StorageError: the disk refuses, or the key's file is damaged.
    """
    folder = directory / AUDITOR
    make_directory(folder)
    return PublicKey(load_identity(folder / IDENTITY).public_key)


def is_named(directory: Path, rules: AuditRules | None) -> bool:
    """Return whether a run's rules name the auditor beside the log in ``directory``. None is made.

    Raises:
        StorageError: its key's file is damaged.
    """
    path = directory / AUDITOR / IDENTITY
    return rules is not None and path.exists() and load_identity(path).public_key in rules.named
