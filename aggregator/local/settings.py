"""What a person asks of a local swarm, checked before anything is started."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from manta_swarm.aggregator.local import MAX_PEERS
from manta_swarm.aggregator.local.report import QualityLimits
from manta_swarm.aggregator.monitor.settings import MonitorSection, check_address
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.automl.data.names import BUNDLED, check_name
from manta_swarm.automl.spaces.space import fitted_name, space_named
from manta_swarm.automl.training.settings import usual
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.manifest import ALGORITHMS, SCHEDULES, TASKS
from manta_swarm.protocol.private import PRIVATE
from manta_swarm.runtime.commands import ending_at_ctrl_c
from manta_swarm.runtime.disk import make_directory

_PEERS, _COHORTS = 4, 2
_MAX_NAME = 63
_MINIMA = {"digits": (90.0, 80.0)}  # percent: largest, smallest; for the full schedule
_FIRST_OPEN_S = {"classification": 0.5, "stereo": 1.5}  # on one computer a round needs no more; it adapts by itself
_MIN_OPEN_S, _MAX_OPEN_S = 0.2, 120.0
_EVALUATE_SHARE = 0.1  # a local run is over in minutes: what is shown of it should not be of long ago


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``manta-swarm up`` as they were given; None: the default depends on others."""

    peers: int | None = None
    cohorts: int | None = None
    affinity: bool = False
    workers: int | None = None  # processes of a peer on the CPU
    rounds: int | None = None
    local_steps: int = 1
    codec: str = usual(TASKS[0]).codec
    task: str | None = None
    algorithm: str = ALGORITHMS[0]
    schedule: str = SCHEDULES[0]
    data: str | None = None
    data_root: Path | None = None
    private: Path | None = None  # its folders are the peers' own data
    supernet: str | None = None
    directory: Path | None = None
    seed: int = 0
    min_largest: float | None = None  # percent
    min_smallest: float | None = None
    max_epe: float | None = None  # pixels
    monitor: str | None = None  # HOST:PORT
    no_monitor: bool = False


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """The checked settings of a local swarm."""

    peers: int
    cohorts: int
    run: RunConfig
    data_root: Path | None
    directory: Path
    limits: QualityLimits
    private: tuple[Path, ...] = ()  # each peer's own data, where they are private
    by_affinity: bool = False  # peers have no labels and find each other
    workers: int | None = None  # processes of a peer on the CPU; None: its own
    monitor: tuple[str, ...] = ()  # what the aggregator is told of it

    def cohort(self, index: int) -> str | None:
        """Return the cohort of a peer: cohorts are about equally large, and of peers with adjacent numbers. None: affinity decides."""
        if self.by_affinity:
            return None
        return f"cohort-{index * self.cohorts // self.peers}"


def make_settings(options: Options) -> SwarmSettings:
    """Return the settings, the directory made.

    Raises:
        UserError: a value that cannot be, data that is not there, or a directory that holds something.
    """
    if options.affinity and options.cohorts is not None:
        raise UserError("--affinity goes without --cohorts: the peers find out themselves how many there are")
    private = _private_folders(options)
    peers = _number_of_peers(options, private)
    cohorts = _number_of_cohorts(options, peers)
    if options.affinity and private:
        raise UserError("--affinity goes without --private: in a cohort the others see what a peer's own data taught it")
    try:
        codec_named(options.codec)
    except ValueError as error:
        raise UserError(f"--codec: {error}") from error
    root = None if options.data_root is None else options.data_root.expanduser().absolute()
    _check_supernet(options.supernet)
    _check_directory(options.directory)
    task, dataset = _find_data(options, root)
    if private and task != "classification":
        raise UserError(f"--private is for labelled images: the task is classification, not {task}")
    supernet = options.supernet or usual(task).supernet
    if space_named(supernet).task != task:
        raise UserError(f"--supernet {supernet} is for {space_named(supernet).task}, not for {task}: choose another one")
    limits = _make_limits(options, task, dataset)
    run = _run_config(options, task, dataset, supernet, root)
    run.check()
    monitor = _of_monitor(options)
    directory = _make_directory(options.directory)
    return SwarmSettings(peers, cohorts, run, root, directory, limits, private, options.affinity, options.workers, monitor)


def _of_monitor(options: Options) -> tuple[str, ...]:
    """Return what the aggregator is told of its monitor."""
    if options.no_monitor and options.monitor is not None:
        raise UserError("--monitor and --no-monitor do not go together")
    if options.monitor is not None:
        check_address(options.monitor, MonitorSection())
        return ("--monitor", options.monitor)
    return ("--no-monitor",) if options.no_monitor else ()


def _private_folders(options: Options) -> tuple[Path, ...]:
    """Return the folders that are each peer's own data, in the order of their names."""
    if options.private is None:
        return ()
    folder = options.private.expanduser().absolute()
    try:
        found = tuple(sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))
    except OSError as error:
        raise UserError(f"--private: cannot read {folder}: {error.strerror}") from error
    if not found:
        raise UserError(f"--private: {folder} has no folders: make one for each peer, or let manta-search split make them")
    if len(found) > MAX_PEERS:
        raise UserError(f"--private: {folder} has {len(found)} folders, and there can be {MAX_PEERS} peers: take some away")
    return found


def _number_of_peers(options: Options, private: tuple[Path, ...]) -> int:
    if private and options.peers not in (None, len(private)):
        raise UserError(f"--peers is {options.peers}, and {options.private} has {len(private)} folders: leave --peers out")
    return len(private) or (_PEERS if options.peers is None else options.peers)


def _number_of_cohorts(options: Options, peers: int) -> int:
    """Return how many cohorts there are; a peer with data of its own is alone if nothing else is said."""
    cohorts = options.cohorts or (_COHORTS if options.private is None else peers)
    if cohorts > peers:
        raise UserError(f"--cohorts takes a number from 1 to that of the peers ({peers}), not {cohorts}")
    return cohorts


def _find_data(options: Options, root: Path | None) -> tuple[str, str]:
    """Return the task and its data set: either may follow from the other."""
    if options.data is None:
        task = options.task or TASKS[0]
        return task, usual(task).dataset
    check_name(options.data, root)
    said = BUNDLED.get(options.data)
    if said is None:
        with ending_at_ctrl_c():
            from manta_swarm.automl.data.catalog import load_dataset  # torch and more, for who has data of other libraries or of their own
        said = load_dataset(options.data, root).task
    if options.task not in (None, said):
        raise UserError(f"--data {options.data} is for {said}, not for {options.task}: leave --task out, or choose other data")
    return said, options.data


def _make_limits(options: Options, task: str, dataset: str) -> QualityLimits:
    for name, percent in (("largest", options.min_largest), ("smallest", options.min_smallest)):
        if percent is not None and not 0 <= percent <= 100:
            raise UserError(f"--min-{name} takes percent, from 0 to 100, not {percent:g}")
    if options.max_epe is not None and not options.max_epe >= 0:
        raise UserError(f"--max-epe takes pixels, from 0 on, not {options.max_epe:g}")
    is_full = options.rounds is None
    if task == "stereo":
        if options.min_largest is not None or options.min_smallest is not None:
            raise UserError("--min-largest and --min-smallest are accuracies, of classification; for stereo give --max-epe")
        return QualityLimits(max_epe=options.max_epe, beats_constant=is_full)
    if options.max_epe is not None:
        raise UserError("--max-epe is an error in pixels, of stereo; for classification give --min-largest and --min-smallest")
    minima = _MINIMA.get(dataset) if is_full and options.private is None else None
    largest, smallest = minima or (None, None)
    return QualityLimits(
        min_largest=largest if options.min_largest is None else options.min_largest,
        min_smallest=smallest if options.min_smallest is None else options.min_smallest,
    )


def _run_config(options: Options, task: str, dataset: str, supernet: str, root: Path | None) -> RunConfig:
    """Return the run file: the usual settings of the task, as many updates and samples in all, with what was asked for."""
    settings = replace(usual(task).with_local_steps(options.local_steps), codec=options.codec)
    values = RunConfig.of(settings).model_dump()
    name = f"{dataset}-{options.algorithm}"[:_MAX_NAME]
    values["run"] |= {"name": name, "algorithm": options.algorithm, "schedule": options.schedule, "seed": options.seed}
    values["run"]["cohorts"] = "token" if options.private is not None else "affinity"  # of who joins beside: its own peers have labels
    if options.rounds is not None:
        values["run"]["rounds"] = options.rounds
    if options.private is not None:
        values["run"]["data"] = PRIVATE
    values["data"] = {"dataset": dataset, "supernet": supernet}
    values["round"] |= {"first_open_s": _FIRST_OPEN_S[task], "min_open_s": _MIN_OPEN_S, "max_open_s": _MAX_OPEN_S}
    values["aggregator"]["data_root"] = "" if root is None else str(root)
    values["monitor"]["evaluate_share"] = _EVALUATE_SHARE
    return RunConfig.model_validate(values)


def _make_directory(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="manta-swarm-"))
    directory = directory.expanduser().absolute()
    make_directory(directory)
    _check_directory(directory)
    return directory


def _check_directory(directory: Path | None) -> None:
    """Refuse a directory that holds something; one that is not there yet will do."""
    directory = None if directory is None else directory.expanduser().absolute()
    if directory is not None and directory.is_dir() and any(directory.iterdir()):
        raise UserError(f"{directory} holds something already, which is left as it is; choose an empty or a new directory with --dir")


def _check_supernet(supernet: str | None) -> None:
    if supernet is not None:
        fitted_name(supernet, 1, 10)  # refuses all but families
