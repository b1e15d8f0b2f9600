from pathlib import Path
from typing import Any

import pytest

from manta_swarm.peer.config import PeerConfig, load_config
from manta_swarm.peer.limits.limits import Limits, keep_limits
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import Identity, peer_name

PAYOUTS = [peer_name(Identity(bytes([seed]) * 32).public_key) for seed in (1, 2, 3)]
SETTINGS: list[tuple[str, str, Any, str, Any, Any, Any]] = [
    # name, TOML, what it means, variable, what it means, flag, default
    ("initial_peers", '["/a", "/b"]', ("/a", "/b"), "/c,/d /e", ("/c", "/d", "/e"), ("/f",), ()),
    ("run", f'"{"1" * 64}"', "1" * 64, "2" * 64, "2" * 64, "3" * 64, None),
    ("invitation", '"file.txt"', "file.txt", "variable.txt", "variable.txt", "manta-invitation-text", None),
    ("payout", f'"{PAYOUTS[0]}"', PAYOUTS[0], PAYOUTS[1], PAYOUTS[1], PAYOUTS[2], None),
    ("cohort", '"file"', "file", "variable", "variable", "flag", None),
    ("listen", '["/ip4/1.1.1.1/tcp/1"]', ("/ip4/1.1.1.1/tcp/1",), "/x", ("/x",), ("/y", "/z"), ("/ip4/0.0.0.0/tcp/0",)),
    ("gpus", "1", "1", "0, 2", "0,2", "all", "all"),
    ("workers", "2", 2, "3", 3, 4, None),
    ("data_root", '"/file"', Path("/file"), "/variable", Path("/variable"), Path("/flag"), None),
    ("data_limit", '"30GB"', 30_000_000_000, "800MB", 800_000_000, None, 20_000_000_000),
    ("private_data", '"/file"', Path("/file"), "/variable", Path("/variable"), Path("/flag"), None),
    ("private_noise", "1.5", 1.5, "2", 2.0, 3.0, None),
    ("private_clip", "1.5", 1.5, "2", 2.0, 3.0, None),
    ("private_epsilon", "1.5", 1.5, "2", 2.0, 3.0, None),
    ("private_delta", "0.5", 0.5, "1e-6", 1e-6, 0.1, 1e-5),
    ("tell_accuracy", "false", False, "yes", True, False, None),
    ("view", '"left"', "left", "right", "right", "left", None),
    ("latency_table", '"/file"', Path("/file"), "/variable", Path("/variable"), Path("/flag"), None),
    ("alone", "true", True, "no", False, True, False),
    ("cuda_graphs", "true", True, "no", False, True, False),
    ("size", "1", 1, "2", 2, 3, None),
    ("cpu_threads", "1", 1, "2", 2, 3, None),
    ("duty", "50", 50, "60%", 60, 70, 100),
    ("gpu_memory", '"4GB"', 4 * 10**9, "800MB", 8 * 10**8, 2**30, None),
    ("max_temperature", "80", 80, "81C", 81, 82, None),
    ("max_upload", '"1MB"', 10**6, "10Mbit", 1_250_000, 2 * 10**6, None),
    ("max_download", '"1MB"', 10**6, "10Mbit", 1_250_000, 2 * 10**6, None),
    ("when_idle", '"5min"', 300, "90s", 90, 3600, None),
    ("schedule", '"22:00-07:00"', ((1320, 420),), "1:00-2:00", ((60, 120),), ((0, 0),), None),
    ("on_ac", "true", True, "no", False, True, False),
    ("audit", "50", 50, "20%", 20, 30, 0),
    ("evaluation", "0", 0, "20%", 20, 30, 10),
    ("light", "true", True, "no", False, True, False),
    ("gateway", '["http://a/", "http://b/"]', ("http://a/", "http://b/"), "http://c/,http://d/", ("http://c/", "http://d/"), ("e:1",), ()),
    ("gateway_cert", '"/file"', Path("/file"), "/variable", Path("/variable"), Path("/flag"), None),
    ("lease_only", "true", True, "no", False, True, False),
    ("audit_only", "true", True, "no", False, True, False),
    ("gateway_key", '"/file"', Path("/file"), "/variable", Path("/variable"), Path("/flag"), None),
]


@pytest.mark.parametrize(("name", "toml", "from_file", "variable", "from_variable", "flag", "default"), SETTINGS)
def test_a_flag_beats_a_variable_which_beats_the_file_which_beats_the_default(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    toml: str,
    from_file: Any,
    variable: str,
    from_variable: Any,
    flag: Any,
    default: Any,
) -> None:
    assert getattr(load_config({"dir": tmp_path}), name) == default
    (tmp_path / "peer.toml").write_text(f"{name} = {toml}\n")
    assert getattr(load_config({"dir": tmp_path}), name) == from_file
    monkeypatch.setenv(f"MANTA_{name.upper()}", variable)
    assert getattr(load_config({"dir": tmp_path}), name) == from_variable
    assert getattr(load_config({"dir": tmp_path, name: flag}), name) == flag


def test_every_setting_is_in_the_table_above() -> None:
    assert {name for name, *_ in SETTINGS} == set(PeerConfig.model_fields) - {"dir"}


def test_the_directory_with_its_settings_comes_from_the_flag_or_the_variable_or_is_the_users_own(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert environment in load_config({}).dir.parents
    (tmp_path / "peer.toml").write_text("cpu_threads = 7")
    monkeypatch.setenv("MANTA_DIR", str(tmp_path))
    assert (load_config({}).dir, load_config({}).cpu_threads) == (tmp_path, 7)
    assert load_config({"dir": tmp_path / "flag"}).dir == tmp_path / "flag"


def test_a_tilde_is_the_home_directory(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANTA_DIR", "~/mine")
    config = load_config({"data_root": Path("~/data")})
    assert (config.dir, config.data_root) == (environment / "mine", environment / "data")


def test_a_peer_that_listens_nowhere_only_dials_out(tmp_path: Path) -> None:
    assert load_config({"dir": tmp_path}).listen_addresses == ("/ip4/0.0.0.0/tcp/0",)
    assert load_config({"dir": tmp_path, "listen": ("none",)}).listen_addresses == ()
    with pytest.raises(UserError, match=r"--listen: takes addresses, or none, not both"):
        load_config({"dir": tmp_path, "listen": ("none", "/ip4/0.0.0.0/tcp/0")})


def test_a_file_that_sets_some_keys_leaves_the_others_to_the_variables_and_an_empty_one_is_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peer.toml").write_text('cohort = "attic"\ncpu_threads = 2')
    for name, value in (("CPU_THREADS", "5"), ("PAYOUT", ""), ("INITIAL_PEERS", "")):
        monkeypatch.setenv(f"MANTA_{name}", value)
    config = load_config({"dir": tmp_path, "gpus": "none"})
    assert (config.cohort, config.cpu_threads, config.gpus, config.payout, config.initial_peers) == ("attic", 5, "none", None, ())


@pytest.mark.parametrize("key", ["treads", "dir", "peer.threads", '"two\\nlines"'])
def test_an_unknown_key_is_named_with_the_ones_that_exist(tmp_path: Path, key: str) -> None:
    (tmp_path / "peer.toml").write_text(f"{key} = 1\n")
    with pytest.raises(UserError) as caught:
        load_config({"dir": tmp_path})
    message = str(caught.value)
    assert str(tmp_path / "peer.toml") in message
    assert key.split(".")[0].strip('"') in message
    assert all(name in message for name in ("initial_peers", "run", "cohort", "listen", "gpus", "threads"))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("cpu_threads", "0"),
        ("cpu_threads", "1025"),
        ("duty", "0%"),
        ("max_upload", "10"),
        ("gpus", "two"),
        ("gpus", "0,"),
        ("gpus", "0,2,00"),
        ("workers", "257"),
        ("run", "abc"),
        ("run", "A" * 64),
        ("run", "1" * 63 + "\n"),
        ("cohort", "My House"),
        ("payout", "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeS"),
    ],
)
def test_a_bad_value_is_refused_and_named_where_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bad: str
) -> None:
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')}|cohort 'My House'") as by_flag:
        load_config({"dir": tmp_path, name: bad})
    assert "\n" not in str(by_flag.value)
    with monkeypatch.context() as patched:
        patched.setenv(f"MANTA_{name.upper()}", bad)
        with pytest.raises(UserError, match=f"MANTA_{name.upper()}|cohort 'My House'"):
            load_config({"dir": tmp_path})
    escaped = bad.replace("\n", "\\n")
    (tmp_path / "peer.toml").write_text(f'{name} = "{escaped}"')
    with pytest.raises(UserError, match=rf"peer\.toml: {name}|cohort 'My House'"):
        load_config({"dir": tmp_path})


def test_what_was_said_of_limits_is_stronger_than_the_file_and_weaker_than_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peer.toml").write_text('duty = 30\nmax_upload = "1MB"\non_ac = true')
    keep_limits(tmp_path, {"duty": "60%", "max_upload": "none"})
    keep_limits(tmp_path, {"duty": "50%", "on_ac": "none"})
    config = load_config({"dir": tmp_path})
    assert (config.duty, config.max_upload, config.on_ac) == (50, None, False)
    monkeypatch.setenv("MANTA_DUTY", "40%")
    assert load_config({"dir": tmp_path}).limits == Limits(duty=40)


def test_a_limit_that_cannot_be_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--max-upload: takes a rate"):
        keep_limits(tmp_path / "new", {"max_upload": "fast"})
    assert not (tmp_path / "new").exists()
    (tmp_path / "limits.toml").write_text("cohort = 'x'")
    with pytest.raises(UserError, match=r"limits\.toml: 'cohort' is no limit"):
        load_config({"dir": tmp_path})


def test_limits_are_kept_as_they_were_said_whatever_space_is_around_them(tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text("on_ac = true\nmax_temperature = 80\n")  # as a person may write it
    keep_limits(tmp_path, {"duty": "60%\n", "max_upload": "10\tMbit"})
    assert load_config({"dir": tmp_path}).limits.words() == {
        "duty": "60%",
        "max_temperature": "80C",
        "max_upload": "1.25MB",
        "on_ac": "true",
    }


def test_a_list_that_should_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "peer.toml").write_text('initial_peers = "/ip4/1.2.3.4/tcp/1"')
    with pytest.raises(UserError, match=r"peer\.toml: initial_peers"):
        load_config({"dir": tmp_path})


@pytest.mark.parametrize("data", [b"threads = \n", b"= 1", b'cohort = "\xff"', b"\x00", b" " * ((1 << 20) + 1)])
def test_a_file_that_is_not_toml_is_refused_and_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "peer.toml").write_bytes(data)
    with pytest.raises(UserError, match=r"cannot read .*peer\.toml") as caught:
        load_config({"dir": tmp_path})
    assert "\n" not in str(caught.value)


def test_a_directory_that_does_not_exist_yet_has_no_settings_and_is_not_made(tmp_path: Path) -> None:
    config = load_config({"dir": tmp_path / "new"})
    assert config.cpu_threads is None
    assert not (tmp_path / "new").exists()


def test_settings_do_not_change_once_they_are_read(tmp_path: Path) -> None:
    config = load_config({"dir": tmp_path})
    with pytest.raises(ValueError, match="frozen"):
        config.gpus = "none"  # type: ignore[misc]
