"""What an earlier search measured, for another one to start from: its best architectures and, of the same weights and data, all figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from manta_swarm.automl.data.dataset import SEARCH
from manta_swarm.automl.evaluation.held_out import score
from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.files import read_bounded
from manta_swarm.automl.search.constraints import Cost, Region
from manta_swarm.automl.search.evaluators import Evaluator
from manta_swarm.automl.search.front import Point, by_merit, front, spread
from manta_swarm.automl.search.journal import MAX_BYTES, Entry, Reader, Settings
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.protocol.errors import UserError

SAME = ("state", "data", "precision")  # settings of two searches whose figures are of the same thing

_ADVICE = "give --warm-start the folder of another search, or none"


class EarlierSearch:
    """The journal of a search, read only; that search may still be going on."""

    def __init__(self, path: Path, space: SearchSpace) -> None:
        """Read the journal ``path``; a last line without its end is left out.

        Raises:
            UserError: it is none, of another supernet, or damaged.
        """
        data = read_bounded(path, MAX_BYTES)
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        reader = Reader(path, space, _ADVICE)
        if not lines:
            raise reader.damaged("it is empty")
        self.settings = reader.settings(lines[0])
        if self.settings.get("supernet") != space.name:
            raise UserError(f"{path} is of a search of {self.settings.get('supernet')}, and this one is of {space.name}; {_ADVICE}")
        self._entries: dict[tuple[str, Architecture], Entry] = {}
        for number, line in enumerate(lines[1:], 2):
            entry = reader.entry(number, line)
            self._entries[entry.part, entry.architecture] = entry

    def is_of(self, settings: Settings) -> bool:
        """Return whether its figures are those of another search: of the same weights and the same data, computed in the same precision."""
        return all(self.settings.get(name) == settings.get(name) for name in SAME)

    def measured(self, part: str, architecture: Architecture) -> Measured | None:
        """Return what it measured; None where it did not, or without losses."""
        entry = self._entries.get((part, architecture))
        return None if entry is None else entry.measured

    def promising(self, region: Region, axes: Sequence[Cost], count: int) -> list[Architecture]:
        """Return at most ``count`` of its architectures that are of the region: half of them spread over their front, the others the best.

        They are ranked by loss, or, where it measured no losses, by accuracy or EPE.
        """
        entries = [entry for (part, architecture), entry in self._entries.items() if part == SEARCH and architecture in region]
        with_losses = [(entry, -entry.measured.loss) for entry in entries if entry.measured is not None]
        scored = with_losses or [(entry, score(entry.quality)) for entry in entries]
        points = [Point(entry.architecture, tuple(axis.of(entry.architecture) for axis in axes), value) for entry, value in scored]
        ranked = [*spread(front(points), max(1, count // 2)), *sorted(points, key=by_merit)]
        return list(dict.fromkeys(point.architecture for point in ranked))[:count]


class Recalling:
    """An Evaluator that asks another one only for what an earlier search of the same weights and data did not measure."""

    def __init__(self, evaluator: Evaluator, earlier: EarlierSearch) -> None:
        """Recall what ``earlier`` has; ask ``evaluator`` for all else."""
        self._evaluator = evaluator
        self._earlier = earlier

    def measure(self, architectures: Sequence[Architecture], part: str) -> Iterator[Measured]:
        """Yield how good each architecture is in the order asked for; see Evaluator."""
        unknown = [architecture for architecture in architectures if self._earlier.measured(part, architecture) is None]
        answers = iter(self._evaluator.measure(unknown, part)) if unknown else iter(())
        for architecture in architectures:
            yield self._earlier.measured(part, architecture) or next(answers)
