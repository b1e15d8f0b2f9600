import json
import os
from pathlib import Path

import pytest

from peer.dashboard.picture import SEEKING, Picture, Sitter
from peer.status import PeerStatus, StatusBoard
from peer.store import PeerStore
from protocol.errors import RemoteFault
from swarm.voice import Form, Voice


def test_before_it_has_found_its_run_a_peer_shows_what_it_says() -> None:
    sitter = Sitter(Voice(Form.SILENT))
    sitter.voice.say("no answer from anybody")
    picture = Picture.of(sitter.picture())
    assert (picture.pid, picture.phase, picture.said) == (os.getpid(), SEEKING, ("no answer from anybody",))


def test_a_picture_has_the_status_of_its_moment(tmp_path: Path) -> None:
    sitter = Sitter(Voice(Form.SILENT))
    status = PeerStatus("12D3KooWpeer", "aa", "bb", "digits", "here", "cpu", num_rounds=9)
    board = StatusBoard(PeerStore(tmp_path / "peer"), status, sitter.voice)
    sitter.sits(lambda: {**board.fields(), "left_ms": None, "open_ms": 500, "sent_bytes": 7})
    with board:
        board.update(round=3, phase="working", loss=0.5)
        board.committed(round_=3, state=bytes(32), contributions=1, counted=True, lost=0)
        board.counted(3, 128)
        board.earned(3, 7, is_checked=True, samples=256)
        before = Picture.of(sitter.picture())
        board.update(round=4)
    assert (before.name, before.round, before.num_rounds, before.phase, before.loss) == ("digits", 3, 9, "working", 0.5)
    assert (before.last_round, before.last_samples, before.last_of, before.sent_bytes) == (3, 128, 256, 7)
    assert before.said[-1].startswith("round committed round=3")
    assert Picture.of(sitter.picture()).round == 4


def test_what_is_no_picture_is_refused_and_what_a_newer_peer_adds_is_not() -> None:
    for text in ("", "[]", "{}", '{"pid": "x", "phase": "working"}', json.dumps({"pid": 1, "phase": "working", "round": []})):
        with pytest.raises(RemoteFault, match="no picture"):
            Picture.of(text)
    assert Picture.of('{"pid": 1, "phase": "working", "mood": "good"}').pid == 1
