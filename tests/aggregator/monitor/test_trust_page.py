"""The page of a run whose claims are audited, in a real browser: a verdict, its findings, and their proofs checked by the page itself."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aggregator.monitor.settings import MonitorSection
from aggregator.monitor.sight import Sight
from tests.aggregator.monitor.asgi import live_of, write_live
from tests.aggregator.monitor.browser import browser, screens
from tests.aggregator.monitor.page_checks import contrast_faults, structure_faults
from tests.aggregator.monitor.test_trust import HONEST, LIAR, Run, audited_run, name
from tests.runs import FixedCourse
from tests.swarm.processes import DEADLINE_S

__all__ = ["browser", "screens"]

WAIT_MS = 1000 * DEADLINE_S


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with one verdict and one claim in doubt."""
    made = audited_run(tmp_path_factory.mktemp("trust") / "run")
    write_live(made.directory, live_of())
    return made


@pytest.fixture(scope="module")
def address(run: Run) -> Iterator[str]:
    """Where its page is served."""
    with served(run.directory) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)  # before the browser: while that is there, nothing here can run a loop of its own
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, str]]:
    """A run that is finished, and where its page is served."""
    made = audited_run(tmp_path_factory.mktemp("finished") / "run", num_rounds=9)
    while not made.ledger.finished:
        made.round()
    write_live(made.directory, live_of())
    with served(made.directory) as found:
        yield made, found


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve the page of a run's folder, as it is now."""
    uvicorn = pytest.importorskip("uvicorn", reason="the extra swarm is not installed")
    from aggregator.monitor.program import Monitor

    sight = Sight(directory, lambda _: FixedCourse())
    asyncio.run(sight.look())
    monitor = Monitor(sight, MonitorSection(), is_loopback=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(monitor.app, log_level="error", lifespan="off"))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            monitor.close()
            serving.join(DEADLINE_S)


def test_a_verdict_is_shown_with_its_findings_whose_proofs_the_browser_checks(run: Run, address: str, browser: Any, screens: Path) -> None:
    page, problems = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    page.locator("#trust").evaluate("(node) => node.scrollIntoView()")
    verdict = page.locator("#trust-verdicts tbody tr")
    verdict.wait_for(timeout=WAIT_MS)
    assert name(LIAR)[-6:] in verdict.text_content()
    assert "its work is not what it said" in verdict.text_content()
    assert page.locator("#trust-doubts tbody tr").count() == 1
    assert "1 of 3 computers at work is proven; 1 was found guilty so far" in page.locator("#trust-sub").text_content()
    assert page.locator("#fact-peers").text_content() == "3"
    words = "pending for 8 rounds, then final; what rounds after 32 pay stays pending: the run ends with round 40."
    assert words in page.locator("#trust-sub").text_content()
    verdict.get_by_role("button", name="show").click()
    findings = page.locator("#trust-evidence tbody tr")
    findings.first.wait_for(timeout=WAIT_MS)
    assert findings.count() == 2
    page.locator("#consistency .verdict.true").wait_for(timeout=WAIT_MS)
    findings.first.get_by_role("button").click()
    page.locator("#entry-answer .verdict.true").wait_for(timeout=WAIT_MS)
    assert "a finding" in page.locator("#entry-answer").text_content()
    page.screenshot(path=screens / "trust.png", full_page=True)
    assert contrast_faults(page) == []
    assert structure_faults(page) == []
    page.goto(f"{address}#peer={name(LIAR)}")
    page.locator("#peer-answer", has_text="Guilty: all that it earns is void").wait_for(timeout=WAIT_MS)
    assert problems == []
    page.close()


def test_of_a_finished_run_nobody_is_at_work_and_what_stays_pending_is_said(finished: tuple[Run, str], browser: Any, screens: Path) -> None:
    run, address = finished
    page, problems = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{address}#peer={name(HONEST)}")
    page.locator("#fact-peers-name", has_text="Computers that took part").wait_for(timeout=WAIT_MS)
    assert [page.locator(f"#fact-peers{part}").text_content() for part in ("", "-more")] == ["3", "3 in the last round"]
    page.locator("#peer-answer", has_text="in the last round").wait_for(timeout=WAIT_MS)
    assert run.ledger.standing.account(HONEST.public_key).pending[0][0] == 2  # what the first round paid is final with the ninth, the last
    assert "pending (stays pending: the run ends before it is final)" in page.locator("#peer-answer").text_content()
    page.locator("#people").evaluate("(node) => node.scrollIntoView()")
    page.locator("#people-rows td", has_text="in the last round").first.wait_for(timeout=WAIT_MS)
    assert page.locator("#people-sub").text_content() == "3 computers took part, 3 of them in the last round."
    page.locator("#swarm circle.dot.gave").first.wait_for(timeout=WAIT_MS)
    page.locator("#trust").evaluate("(node) => node.scrollIntoView()")
    page.locator("#trust-sub", has_text="what rounds after 1 pay stays pending: the run ends with round 9.").wait_for(timeout=WAIT_MS)
    assert "1 of 3 computers that took part is proven" in page.locator("#trust-sub").text_content()
    for words in ("Computers at work", "at work", "gone", "late"):
        assert page.get_by_text(words, exact=True).locator("visible=true").count() == 0
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=screens / "finished.png", full_page=True)
    assert contrast_faults(page) == []
    assert structure_faults(page) == []
    assert problems == []
    page.close()
