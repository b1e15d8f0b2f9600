"""The page of a run whose contributions are audited, in a real browser: what was found out, and verdicts whose proofs it checks."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.monitor.sight import Sight
from tests.aggregator.audited_log import AuditedRun
from tests.aggregator.monitor.asgi import live_of, write_live
from tests.aggregator.monitor.browser import browser, picture
from tests.aggregator.monitor.page_checks import contrast_faults, structure_faults
from tests.aggregator.monitor.test_trust import DOUBTED, HONEST, LIAR, audited_run, demoted_run, name
from tests.audited import verdict_of
from tests.network.processes import DEADLINE_S
from tests.runs import FixedTrainingSpec

__all__ = ["browser"]

WAIT_MS = 1000 * DEADLINE_S


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AuditedRun:
    """A run in which one peer was found false, and one contribution is in doubt."""
    made = audited_run(tmp_path_factory.mktemp("trust") / "run")
    write_live(made.directory, live_of())
    return made


@pytest.fixture(scope="module")
def address(run: AuditedRun) -> Iterator[str]:
    """Where its page is served."""
    with served(run.directory) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)  # before the browser: while that is there, nothing here can run a loop of its own
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Where the pages of two runs are served: one is over and not settled, the other one settled."""
    folder = tmp_path_factory.mktemp("finished")
    over, settled = demoted_run(folder / "over"), demoted_run(folder / "settled")
    for made in (over, settled):
        made.rounds_to_the_end(peers=[HONEST, DOUBTED])
        write_live(made.directory, live_of())
    settled.settle(verdict_of(settled.ledger, DOUBTED))
    with served(over.directory) as first, served(settled.directory) as second:
        yield first, second


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve the page of a run's folder, as it is now."""
    uvicorn = pytest.importorskip("uvicorn", reason="the extra swarm is not installed")
    from manta_swarm.aggregator.monitor.program import Monitor

    sight = Sight(directory, lambda _: FixedTrainingSpec())
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


@contextmanager
def opened(browser: Any, address: str) -> Iterator[Any]:
    """A page that has to be without faults at the end."""
    page, problems = browser.new_page(reduced_motion="reduce"), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    yield page
    assert contrast_faults(page) == []
    assert structure_faults(page) == []
    assert problems == []
    page.close()


def test_what_was_found_out_is_shown_with_its_verdicts_whose_proofs_the_browser_checks(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        page.locator("#trust").evaluate("(node) => node.scrollIntoView()")
        fault = page.locator("#trust-faults tbody tr")
        fault.wait_for(timeout=WAIT_MS)
        assert name(LIAR)[-6:] in fault.text_content()
        assert "its work was found false" in fault.text_content()
        assert page.locator("#trust-doubts tbody tr").count() == 1
        assert page.locator("#trust-audits tbody tr").count() == 6
        words = page.locator("#trust-sub").text_content()
        assert "1 of 3 computers at work is proven" in words
        assert "The work of 1 computer was found false" in words
        assert "A round is paid 6 rounds later, those after round 34 with the settlement at the end" in words
        fault.get_by_role("button", name="show").click()
        verdicts = page.locator("#trust-evidence tbody tr")
        verdicts.first.wait_for(timeout=WAIT_MS)
        assert [text.count("false") for text in verdicts.all_text_contents()] == [1, 1]
        page.locator("#record").evaluate("(node) => node.scrollIntoView()")
        page.locator("#consistency .verdict.true").wait_for(timeout=WAIT_MS)
        verdicts.first.get_by_role("button").click()
        page.locator("#entry-answer .verdict.true").wait_for(timeout=WAIT_MS)
        assert "a verdict" in page.locator("#entry-answer").text_content()
        assert page.locator("#entry-answer tr", has_text="outcomes").locator("td").text_content() == "false"
        page.locator("#credits-rows tr").first.wait_for(timeout=WAIT_MS)
        assert "pending" in page.locator("#credit-sub").text_content()
        page.locator("#rounds-rows button").last.click()
        page.locator("#round-detail td", has_text="found good").first.wait_for(timeout=WAIT_MS)
        picture(page, "trust")
        page.goto(f"{address}#peer={name(LIAR)}")
        page.locator("#peer-answer", has_text="Its work was found false").wait_for(timeout=WAIT_MS)
        page.goto(f"{address}#peer={name(HONEST)}")
        page.locator("#peer-answer", has_text="pending: all of it paid with round 9").wait_for(timeout=WAIT_MS)


def test_of_a_run_that_is_over_and_not_settled_nobody_is_at_work_and_what_is_pending_is_said(
    finished: tuple[str, str], browser: Any
) -> None:
    with opened(browser, f"{finished[0]}#peer={name(HONEST)}") as page:
        page.locator("#fact-peers-name", has_text="Computers that took part").wait_for(timeout=WAIT_MS)
        assert [page.locator(f"#fact-peers{part}").text_content() for part in ("", "-more")] == ["3", "2 in the last round"]
        page.locator("#peer-answer", has_text="in the last round").wait_for(timeout=WAIT_MS)
        assert "paid with the settlement at the end" in page.locator("#peer-answer").text_content()
        page.locator("#people").evaluate("(node) => node.scrollIntoView()")
        page.locator("#people-rows td", has_text="in the last round").first.wait_for(timeout=WAIT_MS)
        assert page.locator("#people-sub").text_content() == "3 computers took part, 2 of them in the last round."
        page.locator("#swarm circle.dot.gave").first.wait_for(timeout=WAIT_MS)
        page.locator("#trust").evaluate("(node) => node.scrollIntoView()")
        page.locator("#trust-sub", has_text="the rest is paid with its settlement").wait_for(timeout=WAIT_MS)
        assert "1 computer did not show work and has to begin anew" in page.locator("#trust-sub").text_content()
        for words in ("Computers at work", "at work", "gone", "late"):
            assert page.get_by_text(words, exact=True).locator("visible=true").count() == 0
        page.evaluate("scrollTo(0, 0)")
        picture(page, "finished")


def test_of_a_run_that_is_settled_all_is_paid(finished: tuple[str, str], browser: Any) -> None:
    with opened(browser, finished[1]) as page:
        page.locator("#trust").evaluate("(node) => node.scrollIntoView()")
        page.locator("#trust-sub", has_text="The run is settled: all that it pays is paid.").wait_for(timeout=WAIT_MS)
        fault = page.locator("#trust-faults tbody tr")
        assert "its work was not shown" in fault.text_content()
        fault.get_by_role("button", name="show").click()
        page.locator("#trust-evidence tbody tr").first.wait_for(timeout=WAIT_MS)
        assert "not shown" in page.locator("#trust-evidence").text_content()
        page.locator("#record").evaluate("(node) => node.scrollIntoView()")
        page.locator("#entries-rows td", has_text="all is paid").wait_for(timeout=WAIT_MS)
        page.locator("#credits-rows tr").first.wait_for(timeout=WAIT_MS)
        assert "pending" not in page.locator("#credit-sub").text_content()
        picture(page, "settled")
