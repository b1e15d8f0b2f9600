"""Keeps the monitor's processes running beside the run: the page's, and the evaluator's. The run waits for none, and none can stop it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.log.storage import BUSY_TIMEOUT_S
from manta_swarm.aggregator.monitor.listen_address import MonitorSocket
from manta_swarm.aggregator.monitor.observers import whatever_happens
from manta_swarm.aggregator.monitor.settings import DIRECTORY, MonitorSection
from manta_swarm.runtime.child import TOLD, Program, keep, python
from manta_swarm.runtime.line import BEATS

_PROGRAM, _EVALUATOR = "manta_swarm.aggregator.monitor.program", "manta_swarm.aggregator.monitor.evaluator"
# Of what each other program has that wants the same core: the monitor a third, for it answers people and holds locks of the database; the
# evaluator a tenth, so that its first curve comes soon where all cores are busy. How much it takes in all is the operator's to say.
_NICENESS, _OF_EVALUATOR = 5, 10
# The monitor could hold a lock that SQLite wants for a moment, which the log's leader waits for.
_QUIET_S = 0.8 * BUSY_TIMEOUT_S
# The evaluator never opens the database. Where all cores are busy it may need long for its libraries, too, and can be waited for.
_EVALUATOR_START_S, _EVALUATOR_QUIET_S = 1800.0, 300.0


class MonitorBeside(Feature):
    """The processes of one aggregator's monitor."""

    def __init__(self, directory: Path, settings: MonitorSection, listen_address: MonitorSocket, data_root: Path | None) -> None:
        """Prepare them for the run in ``directory``; the page is at ``listen_address``, which is closed at the end of ``run``."""
        self._directory = directory
        self._settings = settings
        self._listen_address = listen_address
        self._data_root = data_root
        self.programs = self._programs()

    def status(self) -> Mapping[str, object]:
        """Return where the page is."""
        return {"monitor": self._listen_address.url}

    async def run(self, addresses: Sequence[str]) -> None:
        """See ``Feature``; what goes wrong is told, and nothing else."""
        try:
            await whatever_happens(*map(keep, self.programs))
        finally:
            self._listen_address.socket.close()

    def _programs(self) -> tuple[Program, ...]:
        directory, descriptor = str(self._directory.absolute()), self._listen_address.socket.fileno()
        where = json.dumps({"fd": descriptor, "is_loopback": self._listen_address.is_loopback})
        monitor = Program(
            "monitor",
            python("-m", _PROGRAM, directory, self._settings.model_dump_json(), where),
            self._directory / DIRECTORY / "monitor.log",
            messages=BEATS,
            pass_fds=(descriptor,),
            niceness=_NICENESS,
            steps=TOLD,
            start_s=120.0,
            quiet_s=_QUIET_S,
        )
        if not self._settings.evaluate_share:
            return (monitor,)
        root = () if self._data_root is None else (str(self._data_root.expanduser().absolute()),)
        evaluator = Program(
            "evaluator",
            python("-m", _EVALUATOR, directory, str(self._settings.evaluate_share), *root),
            self._directory / DIRECTORY / "evaluator.log",
            messages=BEATS,
            niceness=_OF_EVALUATOR,
            steps=TOLD,
            start_s=_EVALUATOR_START_S,
            quiet_s=_EVALUATOR_QUIET_S,
        )
        return monitor, evaluator
