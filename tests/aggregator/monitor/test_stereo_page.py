"""The monitor's page of a stereo run: curves, front and pictures of what a real evaluator wrote, in a real browser.

``recorded_stereo`` is DIR/aggregator/monitor after 27 rounds of ``manta-swarm up --task stereo --peers 2 --cohorts 2``: its evaluations and
pictures. The log beside them is made here, and has no round yet.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from manta_swarm.aggregator.features.front_file import FILE, FrontPoint, MembersFront
from manta_swarm.aggregator.monitor.quality import PicturesIndex
from manta_swarm.aggregator.monitor.settings import DIRECTORY
from manta_swarm.automl.spaces.cost import cost_table, macs
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.protocol.manifest import SignedManifest
from tests.aggregator.monitor.asgi import Shown, live_of, write_live
from tests.aggregator.monitor.browser import browser, picture
from tests.aggregator.monitor.page_checks import contrast_faults, structure_faults
from tests.aggregator.monitor.test_program import at_work
from tests.aggregator.small_run import OPERATOR, create
from tests.network.processes import DEADLINE_S
from tests.runs import manifest_of

__all__ = ["browser"]

RECORDED = Path(__file__).parent / "recorded_stereo"
INDEX = PicturesIndex.model_validate_json((RECORDED / "pictures" / "index.json").read_bytes())
SPACE = space_named("stereo-tiny")
SIGNED = SignedManifest.sign(manifest_of(OPERATOR, task="stereo", dataset="layers", supernet=SPACE.name, costs=cost_table(SPACE)), OPERATOR)
FRONT = MembersFront(  # that peers measured; the evaluator's own comes from what was recorded
    round=27,
    state="00" * 32,
    measured=48,
    members=3,
    samples=32,
    not_believed=("12D3KooWLiarLiarLiarEnd4u1",),
    front=tuple(
        FrontPoint(text=one.text, macs=macs(one, SPACE), loss=epe, epe=epe)
        for one, epe in ((SPACE.smallest(), 3.06), (SPACE.sample(Random(3)), 2.96), (SPACE.largest(), 2.71))
    ),
)
WAIT_MS = 1000 * DEADLINE_S
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stereo run that is evaluated."""
    directory = tmp_path_factory.mktemp("stereo") / "run"
    with create(directory, SIGNED):
        shutil.copytree(RECORDED, directory / DIRECTORY)
        write_live(directory, live_of())
        (directory / "snapshots").mkdir(exist_ok=True)
        (directory / "snapshots" / FILE).write_text(FRONT.model_dump_json())
    return directory


def test_the_api_gives_what_was_recorded(directory: Path) -> None:
    shown = Shown(directory)
    assert shown.json("/api/run")["metric"] == {"name": "epe", "unit": "px", "higher_is_better": False}
    found = shown.json("/api/pictures")
    assert (found["kind"], found["round"], len(found["scenes"])) == ("stereo", INDEX.round, 2)
    assert all(shown.get(f"/api/pictures/{name}.png").status == 200 for name in INDEX.pictures)
    quality = shown.json("/api/quality")
    assert quality["loss_largest"] == [None] * 3  # the error is the loss
    assert quality["largest"][0] > quality["baseline"] > 4
    for cost in ("macs", "latency"):
        newest = shown.json(f"/api/fronts?cost={cost}&limit=1")["fronts"][0]
        best = [point["quality"] for point in newest["points"] if point["on_front"]]
        assert best == sorted(best, reverse=True)  # who costs more errs less


@pytest.fixture(scope="module")
def address(directory: Path) -> Iterator[str]:
    with at_work(directory, round_=0) as program:
        yield program.url


def _compare(page: Any) -> None:
    """Have the page compare what its reader knows of the run and of its operator with what the server says."""
    run, operator = SIGNED.run.hex(), OPERATOR.public_key.hex()
    other = ("0" if run[20] != "0" else "1").join((run[:20], run[21:]))
    answer = page.locator("#known-answer .verdict")
    outside = f"manta-aggregator ledger verify --from {page.url.partition('#')[0]}tlog/ --run {run}"
    page.locator("#outside", has_text=outside).wait_for(timeout=WAIT_MS)
    for text, state, told in (
        (run, "true", "its manifest names the key"),
        (f" {run[:16].upper()} ", "true", "begins with these 16 digits"),
        (operator, "true", "The key by which the log is signed is this one"),
        (run[:15], "unchecked", "16 to 64 digits"),
        (other, "false", "Do not believe this page"),
    ):
        page.get_by_label("The run's id, or the operator's key").fill(text)
        page.get_by_role("button", name="Compare").click()
        page.locator(f"#known-answer .verdict.{state}", has_text=told).wait_for(timeout=WAIT_MS)
        assert page.locator("#alarms .alarm", has_text="not the run that you mean").count() == (state == "false")
        trusted = {"true": "it is the right one", "false": "not the one that you know", "unchecked": "Compare it with what you know"}
        assert trusted[state] in page.locator("#consistency .trust").text_content()
    page.route("**/api/manifest", lambda route: route.fulfill(json={"manifest": "gICA"}))  # other bytes than the id is the hash of
    page.evaluate("(run) => { location.hash = `run=${run}`; }", run)
    page.locator("#known-answer .verdict.false", has_text="another manifest").wait_for(timeout=WAIT_MS)
    page.unroute("**/api/manifest")
    page.evaluate("(key) => { location.hash = `key=${key}`; }", operator)
    page.locator("#known-answer .verdict.true").wait_for(timeout=WAIT_MS)
    assert "You compared that key" in page.locator("#consistency").text_content()
    assert answer.count() == 1


def _see_members_front(page: Any) -> None:
    figure = page.locator("#members-figure")
    figure.wait_for(timeout=WAIT_MS)
    assert figure.locator("#members-sub").text_content() == (
        "3 networks, each with less loss than any that costs less, of 48 that 3 volunteers’ computers measured after round 27, "
        "on 32 examples that nobody trains on. Others contradicted …arEnd4u1, whose answers do not count."
    )
    assert figure.locator(".point").count() == 3
    figure.get_by_text("As a table").click()
    figure.locator("tbody code").first.wait_for(timeout=WAIT_MS)
    assert figure.locator("tbody code").all_text_contents() == [point.text for point in FRONT.front]


@pytest.mark.swarm
def test_a_stereo_run_is_shown(browser: Any, address: str) -> None:
    page = browser.new_page(viewport=DESKTOP, reduced_motion="reduce")
    problems: list[str] = []
    page.on("console", lambda told: problems.append(told.text) if told.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    page.locator("#connection[data-state=live]").wait_for(timeout=WAIT_MS)
    page.locator("#quality").evaluate("(node) => node.scrollIntoView()")
    page.locator("#curve canvas").wait_for(timeout=WAIT_MS)
    page.locator("#pictures").evaluate("(node) => node.scrollIntoView()")
    page.locator(".scenes img").nth(11).wait_for(timeout=WAIT_MS)
    page.wait_for_function("() => [...document.querySelectorAll('.scenes img')].every((one) => one.naturalWidth > 0)", timeout=WAIT_MS)
    assert page.locator(".scenes").count() == 2
    for place, scene in enumerate(INDEX.scenes):
        images = page.locator(".scenes").nth(place).locator("img")
        names = [image.get_attribute("src").split("/")[-1].removesuffix(".png") for image in images.all()]
        assert names == [scene.left, scene.truth, scene.largest, scene.largest_error, scene.smallest, scene.smallest_error]
        told = page.locator(".scenes").nth(place).text_content()
        assert f"{scene.largest_epe:.2f} px" in told
        assert f"{scene.smallest_epe:.2f} px" in told
    assert page.locator("#loss-figure").is_hidden()
    page.locator("#front").evaluate("(node) => node.scrollIntoView()")  # what is out of sight is not loaded
    page.locator("#front .point").first.wait_for(timeout=WAIT_MS)
    assert "operations" in page.locator("#front svg[role=img]").get_attribute("aria-label")
    page.get_by_label("Cost", exact=True).select_option("latency")
    page.locator("#front svg[aria-label*=' ms']").wait_for(timeout=WAIT_MS)
    assert "one core" in page.locator("#front-note").text_content()
    _see_members_front(page)
    _compare(page)
    for name, size, colours in (("desktop", DESKTOP, "light"), ("phone", PHONE, "dark")):
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=colours)
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth", timeout=WAIT_MS)  # it is no wider than the screen
        picture(page, f"stereo-{name}-{colours}")
        assert structure_faults(page) == []
        assert contrast_faults(page) == []
    assert problems == []
    page.close()
