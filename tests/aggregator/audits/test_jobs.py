"""Questions and answers as files: whatever one side does meanwhile, the other reads whole ones or none."""

from pathlib import Path

from aggregator.audits.jobs import FOLDER, Found, Job, JobFolder
from protocol.audits import HOLDS, LOT
from tests.claimed import made


def job_of(lot: int = 1, round: int = 3) -> Job:
    signed, _ = made(5, round=round)
    return Job(signed, LOT, lot, round + 1, bytes(32), -17, bytes(32), 0, 0, 1)


FOUND = Found(HOLDS, b"p" * 32, "0.01 of the norm apart", 12, 1)


def test_questions_wait_in_the_order_of_their_bases_until_they_are_answered(tmp_path: Path) -> None:
    asking, answering = JobFolder(tmp_path), JobFolder(tmp_path)
    assert answering.open() == []
    later, first = job_of(round=12), job_of(round=9)
    for job in (later, first):
        asking.ask(job)
    assert answering.open() == [first.name, later.name]
    assert answering.job(first.name) == first
    assert asking.found(first.name) is None
    answering.answer(first.name, FOUND)
    assert answering.open() == [later.name]
    assert asking.found(first.name) == FOUND
    asking.forget(first.name)
    assert (asking.found(first.name), answering.job(first.name)) == (None, None)


def test_what_an_earlier_start_left_is_cleared_but_for_the_log_of_the_process(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.clear()  # there is none yet
    folder.ask(job_of())
    folder.answer(job_of().name, FOUND)
    (tmp_path / FOLDER / "auditor.log").write_text("...")
    folder.clear()
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["auditor.log"]


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.ask(job_of())
    (tmp_path / FOLDER / f"{job_of().name}.found").write_bytes(b"\x81")
    (tmp_path / FOLDER / f"{job_of().name}.job").write_bytes(b"")
    assert (folder.job(job_of().name), folder.found(job_of().name)) == (None, None)
