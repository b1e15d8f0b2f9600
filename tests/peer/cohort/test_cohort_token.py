"""The token of a person's cohorts: made once, for that person only, or given in the environment."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from manta_swarm.peer.cohort.token import VARIABLE, load_token
from manta_swarm.protocol.errors import UserError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MANTA_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "state"


def test_the_first_peer_makes_it_all_that_start_at_once_have_the_same_and_nobody_else_can_read_it(state: Path) -> None:
    old = os.umask(0)
    try:
        with ThreadPoolExecutor(16) as threads:
            (token,) = set(threads.map(lambda _: load_token(), range(64)))
    finally:
        os.umask(old)
    assert len(token) == 32
    assert load_token() == token
    assert [path.name for path in state.iterdir()] == ["cohort-token"]
    assert (state / "cohort-token").read_text() == token.hex() + "\n"
    assert stat.S_IMODE((state / "cohort-token").stat().st_mode) == 0o600


def test_two_persons_tokens_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = load_token()
    monkeypatch.setenv("MANTA_STATE_DIR", str(tmp_path / "other"))
    assert load_token() != first


def test_the_environment_comes_first(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "Ab" * 32)
    assert load_token() == b"\xab" * 32
    assert not state.exists()


@pytest.mark.parametrize("text", ["secret", "ab" * 31, "ab" * 33, "xy" * 32])
def test_what_is_no_token_is_the_person_s_error(text: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UserError, match=f"{VARIABLE} is no cohort's token: it has 64 hex digits") as raised:
        load_token()
    assert text not in str(raised.value)  # it may be somebody's password
    monkeypatch.delenv(VARIABLE)
    state.mkdir()
    (state / "cohort-token").write_text(text)
    (state / "cohort-token").chmod(0o600)
    with pytest.raises(UserError, match="cohort-token is no cohort's token"):
        load_token()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_token_that_others_can_read_is_refused_with_the_way_to_mend_it(mode: int, state: Path) -> None:
    load_token()
    (state / "cohort-token").chmod(mode)
    with pytest.raises(UserError, match="chmod 600") as raised:
        load_token()
    assert "\n" not in str(raised.value)


def test_a_link_or_a_folder_is_no_token(state: Path, tmp_path: Path) -> None:
    state.mkdir()
    (tmp_path / "elsewhere").write_text("ab" * 32)
    (state / "cohort-token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cohort-token"):
        load_token()
    (state / "cohort-token").unlink()
    (state / "cohort-token").mkdir()
    with pytest.raises(UserError, match="cohort-token"):
        load_token()
