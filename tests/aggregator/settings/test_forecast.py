"""What a run file means: figures that follow from it, and advice where a swarm does not fit."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import manta_swarm.aggregator.commands.settings
from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.settings.base import line_of
from manta_swarm.aggregator.settings.config import RunConfig, load_run_file, template
from manta_swarm.aggregator.settings.forecast import forecast, lines, sizes_of
from manta_swarm.aggregator.settings.sections import ExchangeSection, TrustSection
from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.training.update import initial_state, state_digest, state_pieces
from manta_swarm.codec.coding import body_groups
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.footprint import ExpectedTable, Sizes, entry_bytes, round_traffic
from manta_swarm.protocol.records import entry_of
from tests.aggregator.real_run import CONFIG, DATASET, everybodys, opened


def typed(*arguments: object) -> Result:
    """Type a command, with nobody at a terminal."""
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_sizes_are_those_of_what_a_run_really_makes(tmp_path: Path) -> None:
    sizes = sizes_of(CONFIG, DATASET)
    run = opened(tmp_path / "run")
    with run.log as log:
        made = everybodys(log.ledger)[0]
        assert sizes.body == len(made.body) == sum(map(len, body_groups("int16", made.body, sizes.num_weights)))
        state = initial_state(CONFIG.plan(DATASET))
        assert sizes.num_weights == state.parameters.numel()
        assert abs(sizes.state - sum(map(len, state_pieces(state)))) < 100
        most = entry_bytes(CONFIG.exchange.local_steps)
        assert 0.8 * most < len(entry_of(made.header)) <= most
        assert state_digest(state)


def test_a_peer_gets_the_bodies_or_the_mean_whichever_is_less() -> None:
    sizes, one = Sizes(num_weights=1000, body=100, state=8000), 100 + entry_bytes(1)
    config = RunConfig(exchange=ExchangeSection(max_rows=64))
    few, many = forecast(config, sizes, 10, 50.0), forecast(config, sizes, 1000, 50.0)
    assert (few.rows, many.rows) == (10, 64)
    assert few.peer == round_traffic(config.exchange_settings(), None, sizes, ExpectedTable(10, few.open_s))
    assert (few.log_in, many.log_in) == (10 * one, 64 * one)
    assert few.log_out == (4 * 10 * 100, 10 * 900)
    assert many.log_out == (4 * 64 * 100, 1000 * 4000)
    assert few.bodies_disk == 32 * 10 * one
    assert few.states_disk == (3 + 3) * 8000


def test_rounds_adapt_within_their_bounds() -> None:
    sizes = sizes_of(CONFIG, DATASET)
    config = RunConfig.thin("classification")
    assert config.round.target_batch == 2560
    assert forecast(config, sizes, 10, 50.0).open_s == pytest.approx(5.12)
    assert forecast(config, sizes, 1000, 50.0).open_s == config.round.min_open_s
    assert forecast(config, sizes, 1, 0.1).open_s == config.round.max_open_s
    assert forecast(config, sizes, 10, 50.0).run_s == pytest.approx(5.12 * config.run.rounds)


def test_a_swarm_that_does_not_fit_is_told_what_to_do() -> None:
    config = RunConfig.thin("classification")
    said = "\n".join(lines(config, sizes_of(config, load_dataset("digits")), 50.0))
    assert "64 of 1000 contributions fit in a round" in said
    assert "cohorts of 16" in said
    assert "64 of 10 " not in said
    small = config.model_copy(update={"exchange": config.exchange.model_copy(update={"max_rows": 10})})
    assert "at most 32 members" in "\n".join(lines(small, sizes_of(small, load_dataset("digits")), 50.0))


def test_check_says_that_a_run_file_makes_a_run_and_what_it_means(tmp_path: Path) -> None:
    assert typed("init", tmp_path / "run.toml").exit_code == 0
    result = typed("check", tmp_path / "run.toml", "--samples-per-s", "80")
    assert result.exit_code == 0, result.output
    for words in (
        "classification on digits",
        "205,696 weights",
        "10 peers",
        "100 peers",
        "1000 peers",
        "80 samples a second",
        "(computed)",
    ):
        assert words in result.output


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("microbatch_samples = 32", "microbatch_samples = 1", "round.microbatch_samples: Input should be greater"),
        ("[rewards]", "[prizes]", "prizes: is not a key of a run file"),
    ],
)
def test_a_mistake_is_shown_by_its_line(tmp_path: Path, before: str, after: str, words: str) -> None:
    text = template(RunConfig.thin("classification"))
    assert before in text
    (tmp_path / "run.toml").write_text(text.replace(before, after))
    number = text[: text.index(before)].count("\n") + 1
    result = typed("check", tmp_path / "run.toml")
    assert result.exit_code == 2
    assert f"run.toml, line {number}: {words}" in result.output, result.output
    with pytest.raises(UserError, match=f"line {number}"):
        load_run_file(tmp_path / "run.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[data]\nsupernet = "stereo-tiny"\n', "is for stereo"),
        ("[data]\nshare_shards = true\n", "[data]: share_shards = true is for a data set in shards"),
        ('[monitor]\naddress = "foo"\n', "run.toml, line 2: monitor.address: 'foo' is no address: give HOST:PORT to listen on"),
    ],
)
def test_what_start_refuses_is_refused_by_check_too(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    for command in (("check", tmp_path / "run.toml"), ("start", tmp_path / "run.toml", "--dir", tmp_path / "run")):
        result = typed(*command)
        assert (result.exit_code, words in result.output) == (2, True), result.output
    assert not (tmp_path / "run").exists()


def test_check_says_nothing_of_the_monitors_port_which_a_running_aggregator_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "run.toml").write_text(f'[monitor]\naddress = "127.0.0.1:{taken.getsockname()[1]}"\n')
        assert typed("check", tmp_path / "run.toml").exit_code == 0


def test_a_place_is_found_in_files_that_people_write() -> None:
    text = 'x = 1\n\n [ run ]  # a run\nname="a"\n[round]\n# microbatch_samples = 3\n  microbatch_samples=4\nname = "b"\n'
    assert line_of(text, ("run", "name")) == 4
    assert line_of(text, ("round", "microbatch_samples")) == 7
    assert line_of(text, ("round", "missing")) == 5
    assert line_of(text, ("x",)) == 1
    assert line_of(text, ("nowhere", "name")) is None
    assert line_of(text, ()) is None


def test_init_takes_flags_and_refuses_what_cannot_be(tmp_path: Path) -> None:
    flags = ("--name", "mine", "--rounds", "7", "--supernet", "classifier-base", "--private")
    assert typed("init", tmp_path / "run.toml", *flags).exit_code == 0
    config = load_run_file(tmp_path / "run.toml")
    assert (config.run.name, config.run.rounds, config.run.data, config.data.supernet) == ("mine", 7, "private", "classifier-base")
    assert config.exchange == RunConfig.thin("classification").exchange
    for wrong in (("--supernet", "huge"), ("--dataset", "No Name"), ("--rounds", "0")):
        result = typed("init", tmp_path / "other.toml", *wrong)
        assert (result.exit_code, (tmp_path / "other.toml").exists()) == (2, False), result.output


def test_init_asks_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    class System:
        stdin, stdout = Terminal, Terminal

    monkeypatch.setattr(manta_swarm.aggregator.commands.settings, "sys", System)
    answers = "stereo\nn\n\n\nour-rocks\n12\n"
    result = CliRunner().invoke(main, ["init", str(tmp_path / "run.toml")], input=answers)
    assert result.exit_code == 0, result.output
    config = load_run_file(tmp_path / "run.toml")
    assert (config.run.name, config.run.rounds, config.data.dataset) == ("our-rocks", 12, RunConfig.usual("stereo").data.dataset)
    assert config.exchange == RunConfig.usual("stereo").exchange


def test_what_audits_cost_is_said_where_there_are_any() -> None:
    thin, dense = (
        config.model_copy(update={"trust": TrustSection(mode="audited")})
        for config in (RunConfig.thin("classification"), RunConfig.usual("classification"))
    )

    def said_of(config: RunConfig) -> str:
        return "\n".join(lines(config, sizes_of(config, load_dataset("digits")), 50.0))

    said = said_of(thin)
    # Five means and a residual of 0.8 MB each.
    assert "an audit of a contribution of one peer takes 4.9 MB (computed)" in said
    assert "1.12 times its training" in said
    assert "5 % of proven peers' contributions are audited" in said
    assert "auditors compute 16.8 % of the swarm's training at most" in said
    assert "light contributors are not offered" in said
    said = said_of(dense)
    assert "an audit of a contribution of one peer takes 822.8 kB (computed)" in said
    assert "light contributors" not in said
    assert "audit" not in said_of(RunConfig.thin("classification"))


def test_check_says_what_an_aggregator_of_an_audited_run_takes_on_its_disk(tmp_path: Path) -> None:
    """20 peers: of a contribution in 20 six vectors of 822,824 bytes each, for 120 rounds."""
    text = template(RunConfig.thin("classification").model_copy(update={"trust": TrustSection(mode="audited")}))
    (tmp_path / "run.toml").write_text(text)
    said = typed("check", tmp_path / "run.toml", "--peers", "20", "--peers", "1").output
    assert "for audits peers bring it 4.9 MB a round on average, once all are proven" in said
    assert "vectors for audits 592.4 MB once all peers are proven" in said
    assert ("\n  20 peers: " in said, "\n  1 peer: " in said, "10 peers" in said) == (True, True, False)
    assert "audit_disk_gb" not in said
    (tmp_path / "run.toml").write_text(text.replace("audit_disk_gb = 20.0", "audit_disk_gb = 0.1"))
    said = typed("check", tmp_path / "run.toml", "--peers", "20").output
    assert "vectors for audits 100.0 MB" in said
    assert "what has none is not audited; give them 1," in said
