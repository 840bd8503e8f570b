"""The page in a real browser: live, accessible, and without resources from elsewhere.

The slow form has what an element is and where it stands, which takes the browser a second each."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'ftrun[page]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'ftrun[page]'")

from ftctl.page import app, feed
from ftctl.page.feed import SHOWN
from support import browser
from support.pages import empty, ftctl_serve, serving
from support.runs import FTHANG, Runs, wait_for
from support.runs import runs as runs
from support.scripted import Script
from support.snapshots import ranks, snapshot

pytestmark = pytest.mark.skipif(bool(browser.MISSING), reason=f"not here: {', '.join(browser.MISSING)}")
HOSTILE = '<img src="x" onerror="alert(1)"><script>alert(2)</script>&amp;\x1b[31m\u202e'
WATCH = """
window.phases = [];
const phase = document.getElementById("phase");
const parts = {childList: true, characterData: true, subtree: true};
new MutationObserver(() => window.phases.push(phase.textContent)).observe(phase, parts);
"""


@pytest.fixture(scope="module")
def chromium(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    shots = Path(os.environ.get("FTRUN_TEST_SHOTS") or tmp_path_factory.mktemp("shots"))
    shots.mkdir(parents=True, exist_ok=True)
    with browser.chromium(shots) as page:
        yield page
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nscreenshots of the page: {shots}")


@pytest.fixture
def page(chromium: browser.Page) -> Iterator[browser.Page]:
    """After each test there was no error in the console and no request to another host."""
    yield chromium
    assert chromium.complaints() == []
    assert chromium.hosts() == {"127.0.0.1"}


def shows(page: browser.Page, selector: str, text: str) -> None:
    wait_for(lambda: text in page.text(selector), f"{text!r} in {selector}: {page.text('body')}")


@pytest.fixture
def invented(page: browser.Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a page with an invented run of 1,024 ranks and 8 devices."""
    run_dir = empty(tmp_path / "run")
    found = ranks(1024)
    found = (found[0]._replace(section=HOSTILE), *found[1:])
    shown = snapshot(1024, ranks=found, command=("python", HOSTILE), problems=("nothing much",), paused=65.0)
    (run_dir / "events.jsonl").write_text('{"event": "progress", "step": 1, "time": "2026-11-21T10:00:00.000Z"}\n')
    (run_dir / "reports" / "attempt-1").mkdir(parents=True)
    (run_dir / "reports" / "attempt-1" / "report.md").write_text(HOSTILE)
    monkeypatch.setattr(feed, "read_snapshot", lambda run_dir: shown)
    monkeypatch.setattr(feed, "paces", lambda run_dir, attempt: [(float(at), 0.4 + at % 5 / 100) for at in range(60)])
    with serving(app.Page(lambda: str(run_dir))) as served:
        yield served.url
        page.leave()


def test_a_hang_is_shown_as_it_happens(page: browser.Page, runs: Runs) -> None:
    empty(runs.run_dir)
    with ftctl_serve(runs.run_dir) as (_, served):
        page.open(served.url)
        shows(page, "#link", "Connected")
        page.run(WATCH)
        options = ("--hang-timeout", "3s", *FTHANG, "sleep", "--after", "8", "--steps", "80", "--step-time", "50ms")
        run = runs.start(*options)
        shows(page, "#phase", "Running, attempt 1")
        assert page.text("#link") == "Live"
        shows(page, "#incident-text", "hang in attempt 1")
        shows(page, "#phase", "Ended with 0 (succeeded)")
        assert run.wait() == 0
        phases = "\n".join(page.run("return window.phases"))
        assert "Running, attempt 2" in phases
        assert "fthang sleep" in page.text("#command")
        assert page.driver.title == "ended 0 · step 80 – ftrun"
        assert {"suspect", "hang", "restart", "ended"} <= set(page.text("#record-rows").split())
        shows(page, "#timeline", "Ended with 0")
        assert "2 after hang" in page.text("#timeline")
        assert page.count("#timeline svg title") > 3
        page.shot("ended")
        page.all("#incident-link")[0].click()
        assert page.text("h1").startswith("Rank 0 sleeps at ")
        assert "Report of attempt 1" in page.text("header")
        assert "Rank 0 stopped at step 8" in page.text("article strong")
        assert page.count("article table") > 1
        assert page.faint() == []
        page.all("header a")[0].click()
        shows(page, "#phase", "Ended with 0")
        page.leave()


def test_the_verdict_stays_with_the_action_of_the_scheduler(page: browser.Page, tmp_path: Path) -> None:
    script = Script().starts().after(20).saves(20).after(5).hangs(25)
    script.record("ended", verdict="hang-limit", exit_code=195, why="rank 3 stopped at step 25")
    run_dir = script.written(tmp_path / "run")
    with serving(app.Page(lambda: run_dir)) as served:
        page.open(served.url)
        shows(page, "#phase", "Ended with 195 (hang-limit)")
        assert "The outer scheduler should: reschedule the job." in page.text("#verdict")
        assert "the run is over" in page.text("#link")
        shows(page, "#timeline", "Ended with 195")
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            assert page.faint() == []
        page.shot("ended-195-dark")
        page.leave()


def test_the_page_reconnects_by_itself(chromium: browser.Page, tmp_path: Path) -> None:
    page, run_dir = chromium, empty(tmp_path / "run")
    with ftctl_serve(run_dir) as (_, served):
        page.open(served.url)
        shows(page, "#link", "Connected")
    shows(page, "#link", "Connection lost")
    with ftctl_serve(run_dir, port=served.port):
        shows(page, "#link", "Connected")
        run_dir.rename(tmp_path / "elsewhere")
        shows(page, "#unread", str(run_dir))
        (tmp_path / "elsewhere").rename(run_dir)
        wait_for(lambda: not page.all("#unread"), "the run to be read again")
    while_away = ("net::ERR_", "404 (Not Found)")  # the server was gone, then the run dir
    assert [text for text in page.complaints() if not any(expected in text for expected in while_away)] == []
    assert page.hosts() == {"127.0.0.1"}


@pytest.mark.slow
def test_of_many_ranks_64_are_shown_until_all_are_requested(page: browser.Page, invented: str) -> None:
    page.open(invented)
    shows(page, "#ranks-text", "1024 in total")
    assert page.count("#rank-rows tr") == SHOWN
    assert page.text("#rank-rows tr").split()[0] == "3"
    page.shot("ranks-light")
    button = page.all("#all")[0]
    button.click()
    shows(page, "#all", "Show fewer")
    assert page.count("#rank-rows tr") == 1024
    button.click()
    shows(page, "#all", "Show all 1024")
    assert page.count("#rank-rows tr") == SHOWN


@pytest.mark.slow
def test_text_from_elsewhere_is_never_markup(page: browser.Page, invented: str) -> None:
    page.open(invented)
    shows(page, "#command", '<img src="x" onerror="alert(1)">')
    page.all("#all")[0].click()
    shows(page, "#all", "Show fewer")
    assert "<script>alert(2)" in page.text("#rank-rows")
    assert page.text("#command").endswith(r"&amp;\x1b[31m\u202e")
    assert not {"\x1b", "\u202e"} & set(page.text("body"))
    assert page.count("img") == 0
    assert page.count("script") == 1
    page.driver.get(f"{invented}report/1")
    assert '<img src="x" onerror="alert(1)"><script>' in page.text("article")
    assert page.count("img, script") == 0


@pytest.mark.slow
def test_the_page_is_accessible(page: browser.Page, invented: str) -> None:
    page.open(invented)
    shows(page, "#timeline", "ftrun")
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        assert page.faint() == []
    page.shot("ranks-dark")
    assert page.run("return document.documentElement.lang") == "en"
    assert page.driver.title.startswith("running · step 812")
    headings = page.run("return [...document.querySelectorAll('h1,h2,h3,h4')].map((e) => e.localName)")
    assert (headings[0], set(headings[1:])) == ("h1", {"h2"})
    assert [page.count(name) for name in ("body > header", "body > main", "body > footer")] == [1, 1, 1]
    assert page.run("return [...document.querySelectorAll('[aria-live]')].map((e) => e.id)") == ["phase"]
    assert page.count("th:not([scope])") == 0
    every = "a, button, progress, table, section, svg, [tabindex='0']"
    assert len(page.all(every)) > 15
    assert page.steadily(lambda: [one.tag_name for one in page.all(every) if not one.accessible_name.strip()]) == []
    assert "82 %" in page.text("#bar-text")
    assert "near its limit" in page.text("#rank-rows tr")


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 640])
def test_the_page_fits_a_small_screen(page: browser.Page, invented: str, width: int) -> None:
    page.open(invented)
    page.resize(width)
    shows(page, "#ranks-text", "1024 in total")
    shows(page, "#timeline", "ftrun")
    assert page.run("return document.documentElement.scrollWidth") <= width
    outside = "return [...document.querySelectorAll('main > *, main > * > :not(.out)')]"
    outside += ".filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML.slice(0, 80))"
    assert page.run(outside) == []
    for region in ("timeline", "limits"):  # what is there to be read at once does not have to be scrolled sideways
        beyond = "const e = document.querySelector(arguments[0]); return e.scrollWidth - e.clientWidth"
        assert page.run(beyond, f"#{region}.scroll, #{region} .scroll") <= 1, region
    page.shot(f"ranks-{width}")


@pytest.mark.slow
def test_a_phone_shows_what_to_do_without_scrolling(page: browser.Page, invented: str) -> None:
    page.open(invented)
    page.resize(400)
    shows(page, "#do", "Do: when you are ready, `ftctl resume --run-dir")
    place = "const r = document.querySelector('#do').getBoundingClientRect(); return [r.left, r.right, r.bottom]"
    left, right, bottom = page.run(place)
    assert left >= 0
    assert right <= 400
    assert bottom <= 700
    assert page.run("return document.querySelector('#phase').nextElementSibling.id") == "do"


@pytest.mark.slow
def test_the_keyboard_reaches_every_control_in_order(page: browser.Page, invented: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.open(invented)
    shows(page, "#ranks-text", "1024 in total")
    page.run("window.order = [...document.querySelectorAll('a[href], button, [tabindex=\"0\"]')]")
    expected = page.run("return order.map((e, i) => e.checkVisibility() ? i : -1).filter((i) => i >= 0)")
    reached: list[Any] = []
    for _ in expected:
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        reached.append(page.run("return order.indexOf(document.activeElement)"))
        outline = page.run(
            "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]"
        )
        assert outline == ["solid", "3px"]
    assert reached == expected
    assert page.run("return order[0].className") == "skip"
    page.run("document.getElementById('all').focus()")
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    shows(page, "#all", "Show fewer")
    assert page.run("return document.activeElement.id") == "all"
