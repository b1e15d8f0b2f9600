"""Which architecture a person means: by a name, by its text, by a file that holds it, or by the id that a search gave it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from manta_swarm.automl.files import read_bounded
from manta_swarm.automl.spaces.space import MAX_TEXT, Architecture, SearchSpace
from manta_swarm.protocol.errors import UserError

_MAX_FILE_BYTES = 64 << 20
_TEXT = re.compile(r"r[0-9]+( .*)?")
_ID, _SHORT_ID = re.compile(r"[0-9a-f]{8,64}"), re.compile(r"[0-9a-f]{1,7}")
_RESULT = "result.json"
_HELP = "give largest, smallest, an architecture's text, a file that holds one, or an id with --search DIR"
_IDS = "give the first 8 or more of the 64 hexadecimal digits of an id in it"


def chosen(text: str, space: SearchSpace, search: Path | None = None) -> Architecture:
    """Return the architecture of ``space`` that ``text`` stands for.

    Args:
        text: "largest", "smallest", a canonical text, the name of a file with an architecture's JSON, or the first 8 or more digits of
            an id.
        space: what it has to be in.
        search: the folder of a search, in whose result ids are looked up.

    Raises:
        UserError: it stands for nothing, or for several.
    """
    if text in ("largest", "smallest"):
        return space.largest() if text == "largest" else space.smallest()
    if _TEXT.fullmatch(text):
        try:
            return Architecture.parse(text, space)
        except ValueError as error:
            raise UserError(f"--arch {text!r} is no architecture of {space.name}: {error}") from error
    if (_ID.fullmatch(text) or (search is not None and _SHORT_ID.fullmatch(text))) and not Path(text).exists():
        return _by_id(text, space, search)
    return _in_file(Path(text), space, search)


def _by_id(prefix: str, space: SearchSpace, search: Path | None) -> Architecture:
    if search is None:
        raise UserError(f"--arch {prefix} looks like an id; say with --search DIR in which search's folder it is to be found")
    path = search / _RESULT
    found = [architecture for architecture in _architectures(path, space) if architecture.id.startswith(prefix)]
    if len(found) != 1 or _SHORT_ID.fullmatch(prefix):
        how_many = {0: "no architecture", 1: "an architecture"}.get(len(found), f"{len(found)} architectures")
        raise UserError(f"{path} has {how_many} of {space.name} with an id that begins with {prefix}; {_IDS}")
    return found[0]


def _in_file(path: Path, space: SearchSpace, search: Path | None) -> Architecture:
    if not path.is_file() and search is not None:
        raise UserError(f"--arch {str(path)[:MAX_TEXT]!r} is neither a file nor an id of {search}; {_IDS}")
    if not path.is_file():
        raise UserError(f"--arch {str(path)[:MAX_TEXT]!r} is neither a file nor anything else that names an architecture; {_HELP}")
    found = _architectures(path, space)
    if len(found) != 1:
        raise UserError(f"{path} holds {len(found) or 'no'} architectures of {space.name}, not one; {_HELP}")
    return found[0]


def _architectures(path: Path, space: SearchSpace) -> list[Architecture]:
    """Return the architectures of ``space`` that a JSON file holds anywhere in it, each once: as texts, or as their own JSON."""
    try:
        value = json.loads(read_bounded(path, _MAX_FILE_BYTES))
        return list(dict.fromkeys(_inside(value, space)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}; {_HELP}") from error


def _inside(value: object, space: SearchSpace) -> Iterator[Architecture]:
    if isinstance(value, str) and _TEXT.fullmatch(value):
        yield from _parsed(value, space)
    elif isinstance(value, list):
        for part in value:
            yield from _inside(part, space)
    elif isinstance(value, dict):
        if "units" in value:
            yield from _read(value, space)
        for part in value.values():
            yield from _inside(part, space)


def _parsed(text: str, space: SearchSpace) -> Iterator[Architecture]:
    try:
        yield Architecture.parse(text, space)
    except ValueError:
        return  # of another space, or no architecture at all


def _read(value: dict[str, object], space: SearchSpace) -> Iterator[Architecture]:
    try:
        yield Architecture.from_json(json.dumps(value), space)
    except ValueError:
        return
