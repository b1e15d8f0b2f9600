"""What the dashboard says, at the widths that terminals have."""

from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.network.peer_status import SEEKING, FaultSeen, PeerStatus
from manta_swarm.peer.dashboard import text
from manta_swarm.protocol.rounds import PeerStage

AT_WORK = PeerStatus(
    peer="12D3KooWabcdefgh",
    key="aa",
    pid=7,
    stage="working",
    run="3f0c" * 16,
    name="digits",
    cohort="here",
    device="cpu",
    num_rounds=40,
    round=10,
    left_ms=3000,
    open_ms=12_000,
    members=8,
    cohort_peers=1,
    loss=1.0271,
    samples_trained=640,
    samples_counted=1536,
    rounds_counted=9,
    last_round=9,
    last_samples=128,
    last_of=2048,
    sent_bytes=1_500_000,
    received_bytes=999,
    workers=2,
    limits={"duty": "60 %"},
)


PANELS = [24, 31, 64]  # letters in the narrowest panel of 80, 100 and 200 columns
HEIGHT = 9  # lines in it


def full(rows: text.Rows) -> dict[str, str]:
    """Return the figures by their labels, as where there is room."""
    return {label: figure for label, figure, *_ in rows}


def changed(**fields: Any) -> PeerStatus:
    return replace(AT_WORK, **fields)


def test_a_state_is_a_word_and_a_reason() -> None:
    assert text.headline(AT_WORK) == ("TRAINING", "")
    assert text.headline(changed(stage="signed"))[0] == text.headline(changed(stage="promised"))[0] == "AVERAGING"
    assert text.headline(changed(stage="behind"))[0] == "CATCHING UP"
    assert text.headline(changed(stage=SEEKING))[0] == "LOOKING FOR THE RUN"
    assert text.headline(changed(paused=True, pauses={"you": "by you", "on_ac": "on battery"})) == ("PAUSED", "by you; on battery")
    assert text.headline(changed(stage="signed", waiting_for="the log")) == ("WAITING", "waiting for the log")
    assert text.headline(changed(waiting_for="the log")) == ("TRAINING", "waiting for the log")
    assert text.headline(changed(stage="finished", paused=True, finished=True))[0] == "FINISHED"


@pytest.mark.parametrize("stage", [*(stage.value for stage in PeerStage), SEEKING, "starting", "a stage of a newer version"])
def test_every_stage_has_a_word(stage: str) -> None:
    assert text.headline(changed(stage=stage))[0].isupper()


def test_the_bars_can_be_read_without_colours() -> None:
    assert text.bar(0.5, 10) == "█████░░░░░"
    assert (text.bar(-1, 3), text.bar(2, 3), text.bar(0, 0)) == ("░░░", "███", "")


@pytest.mark.parametrize("width", [60, 78, 198])
def test_progress_of_the_run_and_the_round_fits_the_width(width: int) -> None:
    run, round_ = text.progress(AT_WORK, width)
    assert "round 10 of 40, 25%" in run
    assert "about 6 min left" in run  # 30 rounds of 12 s
    assert "round 11, of 12 s" in round_
    assert "3.0 s left" in round_
    assert max(len(run), len(round_)) <= width + 4 * (width < 70)
    assert run.count("█") * 3 - run.count("░") in (-2, -1, 0, 1, 2)
    assert abs(round_.count("█") - 3 * round_.count("░")) <= 3


def test_a_round_that_nobody_has_begun_and_a_run_that_is_over() -> None:
    assert "not open yet" in text.progress(changed(left_ms=None), 78)[1]
    assert "closing" in text.progress(changed(left_ms=0.0), 78)[1]
    assert "over" in text.progress(changed(round=40, left_ms=None), 78)[1]
    assert "100%" in text.progress(changed(round=40, left_ms=None), 78)[0]
    assert text.progress(PeerStatus("12D3KooWpeer", "aa", stage=SEEKING), 78) == ["", ""]


def test_figures_of_this_peer_the_run_and_the_computer() -> None:
    own = full(text.own_rows(AT_WORK, text.MinuteRates(12.34, 0, 0)))
    assert (own["samples/s"], own["counted"], own["newest"], own["loss"]) == ("12.3", "1,536 samples", "128 of 2,048", "1.027")
    assert full(text.own_rows(changed(round=12), None))["newest"] == "128 of 2,048 in round 9"  # rounds went by without this peer
    run = full(text.swarm_rows(AT_WORK, text.MinuteRates(0, 1000, 20)))
    assert (run["out"], run["in"], run["peers"]) == ("1.5 MB, 1.0 kB/s", "999 B, 20 B/s", "about 8")
    assert full(text.machine_rows(AT_WORK, text.Machine()))["heat"] == "not told"
    assert full(text.machine_rows(AT_WORK, text.Machine()))["power"] == "not told"
    assert full(text.machine_rows(AT_WORK, text.Machine(processor_watts=35.4, whole_watts=60.5)))["power"] == "35 W (CPU), 60 W (battery)"
    hot = full(text.machine_rows(AT_WORK, text.Machine(71.4, 250.2)))
    assert (hot["heat"], hot["power"], hot["limits"]) == ("71 °C", "250 W (GPUs)", "duty 60 %")
    assert "audits" not in hot
    assert full(text.machine_rows(changed(audits=12, audits_against=1), text.Machine()))["audits"] == "12, 1 false"
    assert (own["credit"], own["checked"], own["paid"]) == ("not told yet", "-", "-")
    earned = {"credit": 1_581, "earned": 527, "earned_round": 3}
    for told, checked, paid in (
        ({"credit_checked": 1_581}, "all of it", "+527"),
        ({"credit_checked": 1_580}, "99% of it", "+527"),
        ({"credit_checked": 1_581, "credit_fault": "the log lies"}, "in doubt!", "+527"),
        ({"credit_checked": 1_581, "is_private": True}, "private", "+527"),
        ({"earned_round": 0}, "0% of it", "-"),
    ):
        rows = full(text.own_rows(changed(**{**earned, **told}), None))
        assert (rows["credit"], rows["checked"], rows["paid"]) == ("1,581", checked, paid)
    nothing = full(text.own_rows(PeerStatus("12D3KooWpeer", "aa", stage=SEEKING), None))
    assert (nothing["samples/s"], nothing["newest"], nothing["loss"]) == ("-", "none yet", "-")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"credit_until": 35}, "1,234 to round 35"),
        ({"credit_until": 0}, "1,234 to the run's end"),
        ({"credit_faults": (FaultSeen(3, "withheld", "ab"),)}, "1,234, withheld!"),
        ({"credit_faults": (FaultSeen(3, "withheld", "ab"), FaultSeen(4, "false", "cd"))}, "1,234, 2 faults!"),
    ],
)
def test_of_pending_credit_it_says_until_when_and_what_audits_found(told: dict[str, Any], words: str) -> None:
    assert full(text.own_rows(changed(credit=5_000, credit_pending=1_234, **told), None))["pending"] == words


def test_a_key_that_is_not_proven_sees_how_far_it_is() -> None:
    rows = full(text.own_rows(changed(credit=0, credit_pending=10, is_proven=False, good=3, proven_after=20), None))
    assert rows["proven"] == "no, 3 of 20 good"
    assert "pending" not in rows


def test_no_line_is_longer_than_its_panel() -> None:
    rows = text.own_rows(changed(samples_counted=10**12, last_samples=10**9, last_of=10**12), text.MinuteRates(1e9, 0, 0))
    assert all(len(line) <= 23 for line in text.lines_of(rows, 23, 9).splitlines())
    assert (text.short("abcdef", 6), text.short("abcdef", 4), text.short("abc", 0)) == ("abcdef", "abc…", "…")


@pytest.mark.parametrize("width", PANELS)
def test_every_figure_is_whole_at_the_sizes_that_terminals_have(width: int) -> None:
    much = {"samples_counted": 87_654_321, "samples_lost": 7_654_321, "credit": 9_876_543_210, "credit_checked": 1, "earned": 1_000_000}
    for picture in (
        AT_WORK,
        changed(**much, earned_round=9, sent_bytes=123_400_000_000, received_bytes=12_300_000_000, members=1000, cohort_peers=31),
        changed(round=10_000, last_round=9_000, last_samples=65_536, last_of=1_048_576, credit=2**60, earned=2**48, earned_round=9),
        changed(limits={"schedule": "22:00-07:00"}, audits=1_234_567, audits_against=321),
    ):
        machine, rates = text.Machine(71.4, 250.2, 35.4, 60.5), text.MinuteRates(1234.5, 12_300_000, 999_000)
        for rows in (text.own_rows(picture, rates), text.swarm_rows(picture, rates), text.machine_rows(picture, machine)):
            shown = text.lines_of(rows, width, HEIGHT)
            assert "…" not in shown
            assert len(shown.splitlines()) <= HEIGHT
            assert max(map(len, shown.splitlines())) <= width


def test_what_does_not_fit_goes_on_below_where_there_is_room_and_is_cut_where_there_is_none() -> None:
    rows = text.machine_rows(AT_WORK, text.Machine(71.4, 250.2, 35.4, 60.5))
    wide = text.lines_of(rows, 64, HEIGHT).splitlines()
    assert wide[3] == "power   250 W (GPUs), 35 W (CPU), 60 W (battery)"
    narrow = text.lines_of(rows, 24, HEIGHT).splitlines()
    assert narrow[3:] == ["power   250 W (GPUs),", "        35 W (CPU),", "        60 W (battery)", "limits  duty 60 %"]
    limited = text.machine_rows(changed(limits={"duty": "60%", "schedule": "22:00-07:00"}), text.Machine())
    assert text.lines_of(limited, 24, HEIGHT).splitlines()[4:] == ["limits  duty 60%,", "        schedule", "        22:00-07:00"]
    assert text.lines_of(rows, 24, 5).splitlines()[3] == "power   250 W (GPUs), 3…"


def test_figures_are_shortened_before_they_are_cut() -> None:
    late = changed(round=12, samples_counted=87_654_321)
    assert text.lines_of(text.own_rows(late, None), 40, HEIGHT).splitlines()[1] == "counted   87,654,321 samples"
    narrow = text.lines_of(text.own_rows(late, None), 24, HEIGHT).splitlines()
    assert (narrow[1], narrow[6]) == ("counted   87,654,321", "newest    128 in round 9")
    assert (text.count(9_999_999_999), text.count(10**12), text.count(2**60)) == ("9,999,999,999", "1,000.0 bn", "1.2e+18")


def test_rates_are_of_the_last_minute_and_of_one_process() -> None:
    window = text.StatusWindow()
    assert window.add(100.0, changed(samples_trained=0)) is None
    rates = window.add(110.0, changed(samples_trained=50, sent_bytes=2_500_000))
    assert rates == text.MinuteRates(5.0, 100_000.0, 0.0)
    rates = window.add(165.0, changed(samples_trained=50))
    assert rates is not None
    assert rates.samples == 0.0  # the microbatches before are more than a minute old
    assert window.add(166.0, changed(pid=8, samples_trained=1)) is None


def test_times_and_sizes_for_persons() -> None:
    assert [text.span(each) for each in (3.21, 42, 300, 7200 * 5, 86_400 * 9)] == ["3.2 s", "42 s", "5 min", "10 h", "9 days"]
    assert [text.size(each) for each in (0, 999, 1000, 123_456, 5e9, 7e15)] == ["0 B", "999 B", "1.0 kB", "123 kB", "5.0 GB", "7000 TB"]


def test_who_is_shown_stands_in_the_title() -> None:
    assert text.title(AT_WORK) == "manta-peer · run digits (3f0c3f0c) · peer abcdefgh"
    assert text.title(PeerStatus("12D3KooWpeer", "aa", stage=SEEKING)) == "manta-peer"
