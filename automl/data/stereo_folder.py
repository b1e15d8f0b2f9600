"""Stereo pairs of one's own: left/, right/ and disparity/ with equal file names, and settings in stereo.json if need be.

Where one site has the left views and the disparities, and another one the right views, each reads what it has.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manta_swarm.automl.data.pairs import PairFiles, pairs
from manta_swarm.automl.data.views import LEFT, RIGHT, Pair, StereoDataset
from manta_swarm.protocol.errors import UserError

_PARTS = (LEFT, RIGHT, "disparity")
_PARTS_OF = {None: _PARTS, LEFT: (LEFT, "disparity"), RIGHT: (RIGHT,)}
_SETTINGS = "stereo.json"
_MAX_SETTINGS_BYTES = 1 << 20
_MIN_HELD_OUT = 2  # one for each half


class StereoSettings(BaseModel):
    """What stereo.json may say; without the file everything is as it is without the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    scale: float | None = Field(default=None, gt=0, lt=1e6, description="levels of a disparity PNG that make a pixel")
    held_out: tuple[str, ...] | None = Field(default=None, description="names, without endings; otherwise a fixed fifth of them")


def stereo_folder(name: str, folder: Path, view: str | None = None) -> StereoDataset:
    """Return the data set called ``name`` of a folder's pairs; with a ``view`` only what the site of that one has is read.

    Raises:
        UserError: a folder or a partner is missing, files don't fit together or are broken, or stereo.json is; it is named.
    """
    settings = _settings(folder / _SETTINGS)
    parts = {part: _files_by_stem(folder / part, _PARTS_OF[view]) for part in _PARTS_OF[view]}
    stems = sorted(set().union(*parts.values()))
    for part, files in parts.items():
        missing = next((stem for stem in stems if stem not in files), None)
        if missing is not None:
            raise UserError(f"{folder / part} has no file {missing}.*: every pair needs one in {', '.join(parts)}")
    held_out = _held_out(stems, settings.held_out, folder)
    train = [stem for stem in stems if stem not in held_out]
    kept = [stem for stem in stems if stem in held_out]

    def pairs_of(chosen: list[str]) -> Sequence[Pair]:
        files = [[parts[part][stem] if part in parts else None for part in _PARTS] for stem in chosen]
        return pairs([PairFiles(left, right, disparity, settings.scale) for left, right, disparity in files])

    return StereoDataset(name, pairs_of(train), pairs_of(kept), scenes=(*train, *kept))


def _settings(path: Path) -> StereoSettings:
    if not path.exists():
        return StereoSettings()
    try:
        if path.stat().st_size > _MAX_SETTINGS_BYTES:
            raise UserError(f"{path} has more than {_MAX_SETTINGS_BYTES} bytes: keep scale and held_out only")
        return StereoSettings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f'{path}: {where}: {first["msg"]}; write it like {{"scale": 4, "held_out": ["name"]}}') from error


def _files_by_stem(folder: Path, parts: tuple[str, ...]) -> dict[str, Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: put the pairs into {', '.join(parts)}, with equal names")
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.stem in files:
            raise UserError(f"{files[path.stem]} and {path} have one name: remove one of them")
        files[path.stem] = path
    return files


def _held_out(stems: list[str], named: Iterable[str] | None, folder: Path) -> set[str]:
    """Return the names held out: those that are named, or the fifth whose SHA-256 is smallest."""
    if named is None:
        by_digest = sorted(stems, key=lambda stem: hashlib.sha256(stem.encode()).digest())
        chosen = set(by_digest[: max(_MIN_HELD_OUT, len(stems) // 5)])
    else:
        chosen = set(named)
        unknown = sorted(chosen - set(stems))
        if unknown:
            raise UserError(f"{folder / _SETTINGS} holds out {unknown[0]!r}, and there is no such pair: correct held_out")
    if len(chosen) < _MIN_HELD_OUT or len(stems) - len(chosen) < 1:
        raise UserError(f"{folder}: {len(stems)} pairs, {len(chosen)} of them held out: at least {_MIN_HELD_OUT}, and one to train with")
    return chosen
