"""The page of a run whose claims are audited, in a real browser: a verdict, its findings, and their proofs checked by the page itself."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator.monitor.settings import MonitorSection
from aggregator.monitor.sight import Sight
from tests.aggregator.monitor.asgi import live_of, write_live
from tests.aggregator.monitor.browser import browser, screens
from tests.aggregator.monitor.page_checks import contrast_faults, structure_faults
from tests.aggregator.monitor.test_trust import LIAR, Run, audited_run, name
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
    uvicorn = pytest.importorskip("uvicorn", reason="the extra swarm is not installed")
    from aggregator.monitor.program import Monitor

    sight = Sight(run.directory, lambda _: FixedCourse())
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
    assert "1 guilty" in page.locator("#trust-sub").text_content()
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
