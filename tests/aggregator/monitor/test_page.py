"""The monitor's page in a real browser: what it shows, what it checks, and who can use it.

One run for the module, whose log grows a round when a test says so, and its monitor; the last test is of a real swarm. Pictures are kept
where ``browser.picture`` says.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="the extra swarm is not installed")

from manta_swarm.aggregator.monitor.evaluator import StateEvaluator
from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.monitor.shown import SWARM_LETTERS
from manta_swarm.aggregator.states.opening import OpenedRun
from manta_swarm.automl.training.update import State
from manta_swarm.protocol.signing import Identity, peer_name
from tests.aggregator.monitor.asgi import live_of, open_round, write_live
from tests.aggregator.monitor.browser import browser, picture
from tests.aggregator.monitor.page_checks import contrast_faults, keyboard_faults, structure_faults
from tests.aggregator.monitor.test_program import at_work
from tests.aggregator.real_run import DATASET, PEERS, commit, made, made_together, opened
from tests.network.processes import DEADLINE_S, LITTLE_WORK, Programs, small_run

__all__ = ["browser"]

pytestmark = pytest.mark.swarm

WAIT_MS = 1000 * DEADLINE_S
ALONE, LEFT, RIGHT = PEERS
PURPOSE = "Text stays text: <img src=x onerror=\"document.title='broken'\"> <b>bold</b>"
DESKTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
COLOURS = {"light": "rgb(248, 247, 244)", "dark": "rgb(15, 21, 25)"}  # of the page itself


@dataclass
class Watched:
    """A page, and what it did that nobody should see."""

    page: Any
    address: str
    problems: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # what is no problem: lines of the browser's own, which may come after what they are about was seen

    @property
    def faults(self) -> list[str]:
        """What went wrong, without what a test provoked."""
        return [problem for problem in self.problems if not any(part in problem for part in self.expected)]

    def open(self, fragment: str = "") -> None:
        """Load the page and wait until it is live."""
        self.page.goto(f"{self.address}{fragment}")
        self.page.locator("#connection[data-state=live]").wait_for(timeout=WAIT_MS)

    def until(self, condition: str, what: object = None) -> None:
        """Return once a function of the page's returns true of ``what``."""
        self.page.wait_for_function(condition, arg=what, timeout=WAIT_MS)

    def see_all(self) -> None:
        """Scroll through the page so that each part loads, and wait until all of them have."""
        for part in ("quality", "people", "round", "record"):
            self.page.locator(f"#{part}").scroll_into_view_if_needed()
            self.page.locator(f"#{part}").evaluate("(node) => node.scrollIntoView()")
        self.page.evaluate("document.querySelector('footer').scrollIntoView()")
        for rows in ("rounds-rows", "entries-rows", "credits-rows"):
            self.page.locator(f"#{rows} tr").nth(1).wait_for(timeout=WAIT_MS)
        self.page.locator("#consistency .verdict.true").wait_for(timeout=WAIT_MS)
        self.page.evaluate("scrollTo(0, 0)")

    def end(self) -> None:
        """Close the page; it must not have had a fault, nor asked anybody else."""
        self.page.context.close()
        assert self.elsewhere == []
        assert self.faults == []


class Site:
    """A run whose log grows when a test says so, and the address of its monitor."""

    def __init__(self, run: OpenedRun, directory: Path) -> None:
        self._run, self._directory = run, directory
        self._monitor = ExitStack()
        self._port = 0

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Start the monitor, or start it again."""
        settings = MonitorSection(purpose=PURPOSE)
        self._port = self._monitor.enter_context(
            at_work(self._directory, settings, round_=self._run.log.ledger.round, port=self._port)
        ).address[1]

    def stop(self) -> None:
        """Kill the monitor."""
        self._monitor.close()

    def go_on(self, *cohort: Identity) -> State:
        """Commit a round of one who works alone and of these, by default two, who work together; return the state after it."""
        members = cohort or (LEFT, RIGHT)
        ledger, keys = self._run.log.ledger, [peer.public_key for peer in (ALONE, *members)]
        state = commit(self._run, [made(ledger, ALONE, cohort="cohort-0"), made_together(ledger, members, cohort="cohort-1")]).state
        now = open_round(ledger.round + 1, keys, {keys[0]: "good"}, left_ms=600_000)
        write_live(self._directory, live_of(open=now, heard={key.hex(): now.deadline_at for key in keys}))
        return state


def watch(browser: Any, address: str, **settings: Any) -> Watched:
    """Return a new page in a browser that knows nothing yet."""
    context = browser.new_context(**{"reduced_motion": "reduce", **settings})
    watched = Watched(context.new_page(), address)

    def note(url: str) -> None:
        if urlsplit(url).scheme != "blob" and not url.startswith(address):
            watched.elsewhere.append(url)

    watched.page.on("request", lambda request: note(request.url))
    watched.page.on("console", lambda told: watched.problems.append(told.text) if told.type in ("error", "warning") else None)
    watched.page.on("pageerror", lambda error: watched.problems.append(str(error)))
    return watched


def name_of(peer: Identity) -> str:
    """Return the name that people know a peer by."""
    return peer_name(peer.public_key)


def dot_of(peer: Identity) -> str:
    """Return by what a peer's dot is known: the end of its name."""
    return name_of(peer)[-SWARM_LETTERS:]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A run whose second round is committed, and evaluated."""
    directory = tmp_path_factory.mktemp("shown") / "run"
    run = opened(directory)
    site = Site(run, directory)
    with run.log:
        site.go_on()
        StateEvaluator(run.signed.open(), DATASET, directory).evaluate(site.go_on())
        site.start()
        yield site
        site.stop()


@pytest.fixture
def watched(browser: Any, site: Site, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A page on its own."""
    watched = watch(browser, site.address, **getattr(request, "param", DESKTOP))
    yield watched
    watched.end()


def test_the_first_view_is_small_a_new_round_comes_without_a_reload_and_what_strangers_wrote_stays_text(
    site: Site, watched: Watched
) -> None:
    page, sizes = watched.page, list[int]()
    network = page.context.new_cdp_session(page)
    network.on("Network.loadingFinished", lambda loaded: sizes.append(loaded["encodedDataLength"]))  # with headers, as it was sent
    network.send("Network.enable")
    watched.open()
    page.locator("#swarm-glance .dot").first.wait_for(timeout=WAIT_MS)
    assert len(sizes) > 20
    assert sum(sizes) <= 100_000
    page.evaluate("window.isTheSamePage = true")
    seen = page.locator("#round-of").text_content()
    site.go_on()
    watched.until("(seen) => document.getElementById('round-of').textContent !== seen", seen)
    assert page.locator("#round-of").text_content().startswith("Round ")
    assert page.evaluate("window.isTheSamePage")
    assert page.locator("#purpose").text_content() == PURPOSE
    assert page.locator("#purpose *").count() == 0
    watched.see_all()
    page.locator("#round").evaluate("(node) => node.scrollIntoView()")  # what is out of sight is not asked for
    newest = page.locator("#rounds-rows tr:first-child th").text_content()
    site.go_on()
    watched.until("(seen) => document.querySelector('#rounds-rows th').textContent !== seen", newest)
    for peer in PEERS:
        page.locator(f"#swarm [data-peer='{dot_of(peer)}']").wait_for(timeout=WAIT_MS)
    assert page.locator("#swarm .raft").count() == 2
    page.locator("#quality").evaluate("(node) => node.scrollIntoView()")
    page.locator("#curve canvas").wait_for(timeout=WAIT_MS)  # the first evaluation has come
    page.locator("#front .point").first.wait_for(timeout=WAIT_MS)
    page.locator("#pictures .tile").first.wait_for(timeout=WAIT_MS)


def test_a_volunteer_sees_that_their_work_is_used_and_has_it_checked_and_who_is_not_known_is_told_so(watched: Watched) -> None:
    page, name = watched.page, name_of(ALONE)
    watched.open()
    page.get_by_label("Your computer's name").fill(name[-8:])
    page.get_by_role("button", name="Look").click()
    page.locator("#peer-answer .answer-head", has_text="Yes.").wait_for(timeout=WAIT_MS)
    assert name in page.locator("#peer-answer").text_content()
    page.get_by_role("button", name="Check these in my browser").click()
    page.locator("#peer-answer .verdict.true").first.wait_for(timeout=WAIT_MS)
    assert page.locator("#peer-answer .verdict.false").count() == 0
    assert page.url.endswith(f"#peer={name[-8:]}")
    watched.expected = ("404",)
    page.evaluate("location.hash = 'peer=zzzzzzzzzz'")
    page.locator("#peer-answer .answer-head", has_text="No.").wait_for(timeout=WAIT_MS)


def _check(page: Any, index: int) -> str:
    """Have an entry's proof checked; return the class of the verdict, and leave it on the page."""
    page.get_by_label("An entry's number").fill(str(index))
    page.locator("#entry-form button").click()
    verdict = page.locator(f"#entry-answer .verdict:not(.busy):has-text('ntry {index} ')")
    verdict.wait_for(timeout=WAIT_MS)
    return str(verdict.get_attribute("class"))


def _spoilt(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
    """Return a handler that passes the server's answer on, changed."""

    def handle(route: Any) -> None:
        answer = route.fetch()
        found = answer.json()
        change(found)
        route.fulfill(response=answer, json=found)

    return handle


def _flipped(hash_: str) -> str:
    return ("0" if hash_[0] != "0" else "1") + hash_[1:]


def _spoil_proof(found: dict[str, Any]) -> None:
    found["proof"][-1] = _flipped(found["proof"][-1])


def _spoil_entry(found: dict[str, Any]) -> None:
    found["entry"] = ("A" if found["entry"][10] != "A" else "B").join((found["entry"][:10], found["entry"][11:]))


def test_a_proof_is_checked_in_the_browser_and_one_that_was_tampered_with_is_false(watched: Watched) -> None:
    page = watched.page
    watched.open()
    watched.see_all()
    assert _check(page, 0) == "verdict true"
    assert [text.partition(",")[0] for text in page.locator("#entry-answer caption").all_text_contents()] == ["Entry 0", "Its claim 1"]
    assert page.locator("#entry-answer caption").first.bounding_box()["height"] > 10  # a caption that everybody sees
    names = page.locator("#entry-answer tr", has_text="payout").locator("td").all_text_contents()
    assert names
    assert all(text.startswith("12D3Koo") for text in names)
    for path, change in (("**/api/ledger/proof*", _spoil_proof), ("**/api/ledger/entries/0", _spoil_entry)):
        page.route(path, _spoilt(change))
        assert _check(page, 0) == "verdict false"
        page.unroute(path)
    assert _check(page, 0) == "verdict true"
    assert page.locator("#alarms .alarm", has_text="rewritten").count() == 0


def test_a_head_that_nobody_signed_is_refused_at_the_next_visit_and_a_history_that_was_tampered_with_raises_an_alarm_that_stays(
    site: Site, watched: Watched
) -> None:
    """The page keeps the head that it saw first: a log that begins anew is found out, and one it was never shown is not believed."""
    page = watched.page
    watched.open()
    page.locator("#record").evaluate("(node) => node.scrollIntoView()")
    page.locator("#consistency .verdict.true").wait_for(timeout=WAIT_MS)
    kept = page.evaluate("Object.entries(localStorage).filter(([name]) => name.startsWith('manta.head.'))")
    assert len(kept) == 1
    assert kept[0][1].startswith("manta/")
    page.evaluate("([name, note]) => localStorage.setItem(name, note.replace(/^(.*)\\n(\\d+)\\n/, '$1\\n99999999\\n'))", kept[0])
    page.reload()
    page.locator("#record").evaluate("(node) => node.scrollIntoView()")
    page.locator("#consistency .verdict.true").wait_for(timeout=WAIT_MS)  # nobody signed 99999999 entries: that note is thrown away
    assert "99999999" not in page.evaluate("(name) => localStorage.getItem(name)", kept[0][0])
    page.route("**/api/ledger/consistency*", _spoilt(_spoil_proof))
    site.go_on()
    page.locator("#alarms .alarm", has_text="rewritten").wait_for(timeout=WAIT_MS)
    page.unroute("**/api/ledger/consistency*")
    page.locator("#consistency .verdict.false").wait_for(timeout=WAIT_MS)
    with page.expect_download() as download:
        page.get_by_role("button", name="Keep the evidence").click()
    evidence = json.loads(Path(download.value.path()).read_text())
    assert evidence["now"].startswith("manta/")
    assert evidence["proof"]


@pytest.mark.parametrize(("watched", "size"), [(DESKTOP, "desktop"), (PHONE, "phone")], indirect=["watched"], ids=["desktop", "phone"])
def test_everybody_can_use_it_in_the_light_and_in_the_dark_and_the_checks_find_faults_where_there_are_some(
    watched: Watched, size: str
) -> None:
    page = watched.page
    watched.open()
    watched.see_all()
    page.locator("#people").scroll_into_view_if_needed()
    page.locator("#people-rows a").first.wait_for(timeout=WAIT_MS)
    page.evaluate("scrollTo(0, 0)")
    for colours in COLOURS:
        page.emulate_media(color_scheme=colours)
        picture(page, f"{size}-{colours}", whole=False)
        picture(page, f"{size}-{colours}-whole")
    assert _check(page, 1) == "verdict true"
    for summary in page.locator("details > summary").all():
        if summary.is_visible():
            summary.click()
    assert structure_faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen"
    for colours, expected in COLOURS.items():
        page.emulate_media(color_scheme=colours)
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == expected
        assert contrast_faults(page) == []
    page.evaluate("document.getElementById('purpose').style.color = '#777777'")
    page.evaluate("document.querySelector('label[for=peer-name]').remove()")
    page.evaluate("document.querySelector('h2').outerHTML = '<h5>too deep</h5>'")
    for colours in COLOURS:
        page.emulate_media(color_scheme=colours)
        assert any("purpose" in fault for fault in contrast_faults(page))
    faults = "\n".join(structure_faults(page))
    assert "no name: <input" in faults
    assert "a heading of level 5" in faults


def test_all_of_it_can_be_reached_and_used_by_keyboard(watched: Watched) -> None:
    page = watched.page
    watched.open()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    watched.see_all()
    order, faults = keyboard_faults(page, 24)
    assert faults == []
    assert {"theme", "peer-name", "Look", "people-query"} <= set(order)
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    before = page.evaluate("getComputedStyle(document.documentElement).colorScheme")
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") != before
    page.reload()
    page.locator("#connection[data-state=live]").wait_for(timeout=WAIT_MS)
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"  # it was remembered
    page.locator("#peer-name").focus()
    page.keyboard.type(name_of(LEFT)[-8:])
    page.keyboard.press("Enter")
    page.locator("#peer-answer .answer-head", has_text="Yes.").wait_for(timeout=WAIT_MS)


def test_a_peer_that_leaves_is_seen_to_be_gone(site: Site, watched: Watched) -> None:
    page, name = watched.page, dot_of(RIGHT)
    watched.open()
    page.locator("#people").evaluate("(node) => node.scrollIntoView()")
    page.locator(f"#swarm [data-peer='{name}']:not(.away)").wait_for(timeout=WAIT_MS)
    site.go_on(LEFT)
    site.go_on(LEFT)
    page.locator(f"#swarm [data-peer='{name}'].away").wait_for(timeout=WAIT_MS)
    watched.until("() => document.getElementById('people-sub').textContent.includes('1 more has left')")
    assert page.locator(f"#swarm [data-peer='{dot_of(ALONE)}'].away").count() == 0


def test_a_server_that_goes_away_is_told_and_comes_back(site: Site, watched: Watched) -> None:
    page = watched.page
    watched.expected = ("net::ERR", "503")
    watched.open()
    site.stop()
    page.locator("#connection[data-state=away]").wait_for(timeout=WAIT_MS)
    assert "does not answer" in page.locator("#connection").text_content()
    site.start()
    page.locator("#connection[data-state=live]").wait_for(timeout=WAIT_MS)
    seen = page.locator("#round-of").text_content()
    site.go_on()
    watched.until("(seen) => document.getElementById('round-of').textContent !== seen", seen)


def test_a_real_swarm_is_shown_and_evaluated(browser: Any, tmp_path: Path) -> None:
    config = small_run(rounds=10_000, first_open_s=2.0, min_open_s=2.0, max_open_s=6.0, **LITTLE_WORK)
    with Programs(tmp_path, config) as programs:
        address = programs.start_aggregator("--monitor", "127.0.0.1:0")["monitor"]
        programs.start_peer("alone")
        watched = watch(browser, address, **DESKTOP)
        watched.open()
        watched.until("() => Number(document.getElementById('round-of').textContent.split(' ')[1]) > 0")
        dot = programs.status("alone")["peer"][-SWARM_LETTERS:]
        watched.page.locator(f"#swarm [data-peer='{dot}']:not(.away)").wait_for(timeout=WAIT_MS)
        watched.page.locator("#quality").evaluate("(node) => node.scrollIntoView()")
        watched.page.locator("#curve canvas").wait_for(timeout=WAIT_MS)
        watched.page.locator("#pictures .tile").first.wait_for(timeout=WAIT_MS)
        watched.end()
