"""The page of episodes in the system's Chromium: opens fast, filters, searches, hovers, shows siblings, no error.

Needs a Chromium (Debian: `apt-get install chromium`) and the `dev` extra's Playwright; skipped without either.
"""

import shutil

import pytest

from ragen.viewer.__main__ import main
from tests.viewer.pages import byte_level, write_run

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"), pytest.mark.timeout(600)]

EPISODES = 2000


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("runs") / "run", byte_level(), EPISODES)
    assert main([str(run)]) == 0
    return run / "episodes.html"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, page_file):
    """The open page; fails the test for anything on the console and for any request but the page's own."""
    opened = browser.new_page(viewport={"width": 1300, "height": 800})
    opened.set_default_timeout(120_000)
    faults = []
    opened.on("console", lambda message: faults.append(message.text))
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda request: request.url.startswith(("data:", "file:")) or faults.append(request.url))
    opened.goto(page_file.as_uri())
    opened.wait_for_function("document.documentElement.dataset.ready === 'yes'")
    yield opened
    opened.close()
    assert faults == []


def summary(page):
    return page.inner_text("#summary")


def test_it_opens_in_under_three_seconds_and_draws_only_what_is_seen(page):
    assert page.evaluate("performance.now()") < 3000
    assert summary(page).startswith("2000 of 2000 episodes, 33.4 % solved")
    assert page.locator(".row").count() < 100


def test_filters_and_sorting(page):
    page.select_option("#tag", label="Other")
    page.select_option("#outcome", "solved")
    page.select_option("#step", label="step 2")
    count = int(summary(page).split()[0])
    assert 0 < count < 500 and "100.0 % solved" in summary(page)
    page.click("#columns button >> text=seed")
    page.click("#columns button >> text=seed")
    assert page.inner_text(".row >> nth=0 >> span >> nth=2") == "349"
    page.select_option("#tag", "")
    page.fill("#search", "seed 100 step 1")
    assert summary(page).startswith("2 of 2000")
    page.keyboard.press("Escape")
    assert summary(page).startswith("334 of 2000")


def test_text_is_searched_in_what_was_said(page):
    page.fill("#search", "down √")
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('summary').textContent.includes('with “down √”')")
    assert summary(page).startswith("2000 of 2000")
    page.fill("#search", "sideways")
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('summary').textContent.includes('with “sideways”')")
    assert summary(page).startswith("0 of 2000")


def test_a_token_says_who_wrote_it_with_log_prob_advantage_and_mask(page):
    page.hover("#detail [data-own] >> nth=1")
    assert page.inner_text("#tip").splitlines()[1:] == [
        "written by the policy", "log-prob -3.250, p 0.039", "advantage 0.500", "mask 1",
    ]  # fmt: skip
    assert "rare" in page.get_attribute("#detail [data-own] >> nth=1", "class")
    page.hover("#detail .read[data-token] >> nth=0")
    assert page.inner_text("#tip").splitlines()[1:] == ["read by the policy", "advantage 0.000", "mask 0"]


def test_a_turn_shows_its_board_its_tokens_and_its_notes_as_text(page):
    assert page.locator(".turn").count() == 3 and page.locator(".turn canvas.board").count() >= 2
    assert page.locator(".turn >> nth=1 >> [data-own]").all_inner_texts()[-3:] == ["", "√", "<|end|>"]
    assert page.inner_text(".note >> nth=0") == "a <b>note</b>"
    tile = page.evaluate("document.querySelector('canvas.board').getContext('2d').getImageData(2, 2, 1, 1).data[3]")
    assert tile == 255


def test_siblings_side_by_side_and_back(page):
    page.keyboard.press("s")
    page.wait_for_selector(".member")
    assert page.locator(".member").count() == 4
    page.click(".member h3 >> nth=2")
    page.wait_for_selector(".turn")
    assert "member 2" in page.inner_text("#detail h2")


def test_keys(page):
    for key in ("j", "ArrowDown", "k"):
        page.keyboard.press(key)
    page.wait_for_function("document.querySelector('#detail h2').textContent.includes('member 1')")
    assert page.evaluate("location.hash") == "#2"
    page.keyboard.press("n")
    assert "current" in page.get_attribute(".turn >> nth=1", "class")
    page.keyboard.press("c")
    page.wait_for_selector("#detail.hide-read")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.is_visible("dialog#keys")
