"""An operator's auditor beside the log: a sidecar (``manta-peer join --audit-only``) whose key, in DIR/auditor, the manifest names.

Its verdicts count as every named auditor's. It talks to the operator beside it first, and trains nothing. Whoever is admitted to a run,
its named auditors are.
"""

from collections.abc import Callable
from pathlib import Path

from aggregator.attendants.sidecar import Met, Sidecar
from aggregator.log.contents import AUDITOR
from protocol.errors import UserError
from protocol.signing import PublicKey
from protocol.verdicts import AuditRules
from runtime.disk import IDENTITY, load_identity, make_directory


class Auditor:
    """One operator's auditor."""

    def __init__(self, directory: Path, share: float, *, data_root: Path | None, say: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            directory: the aggregator's.
            share: of one core's time that audits take at most.
            data_root: folder of data sets that come with no library.
            say: prints a line for the person.
        """
        data = () if data_root is None else ("--data-root", str(data_root))
        limits = ("--audit", f"{max(1, round(100 * share))}%", "--evaluation", "0%", "--threads", "1", "--gpus", "none")
        self._sidecar = Sidecar(AUDITOR, directory, ["--audit-only", *limits, *data], say)
        self._say = say

    async def run(self, met: Met) -> None:
        """Keep it running until the run is settled; see ``Sidecar.run``. The log goes on without it if its settings cannot be used.

        Raises:
            StorageError: its folder cannot be written to.
        """
        try:
            await self._sidecar.run(met)
        except UserError as error:
            self._say(f"{error}; this operator audits nothing until it is started again")
        finally:
            await self._sidecar.end()


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
