"""Studio in a browser: following a run, reading tokens, a late reward, a phone, keyboard alone."""

import shutil
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.studio.browser.conftest import HOSTILE, LiveStudio, Viewer
from tests.support.browser import PAGES, path_of
from tests.support.model_free.experiment import experiment_plan
from trinity.run.launch.resume import store_plan

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]
MOST_TAB_STOPS = 200
PHONE = {"width": 390, "height": 844}
OWN_SCHEMES_HAVE_NO_HOST = ""
FOCUSED = """() => {
  let at = document.activeElement;
  while (at && at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
  return at ? at.className : "";
}"""
"""The class of the element with the focus, also inside of components."""
FOCUSED_NAME = """() => {
  const at = document.activeElement;
  if (at.hasAttribute("aria-label")) return at.getAttribute("aria-label");
  if (!at.matches("input, textarea, button")) return "";
  return (at.closest("label") || at).textContent.trim();
}"""
"""The name of the field or button with the focus; empty for others, such as the whole page."""


def first_sample(viewer: Viewer) -> Any:
    """Opens the list, and returns the row of the newest experience that waits for its reward."""
    return viewer.first_row(where="state=awaiting")


def test_a_live_run_is_followed(viewer: Viewer) -> None:
    viewer.open("run")
    page = viewer.page
    page.get_by_text("Who did what").wait_for()
    for name in ("train steps", "trainer"):
        page.locator(".lane .name", has_text=name).wait_for()
    wait = page.locator(".span.wait").first
    wait.wait_for()
    assert page.locator(".lane").count() == 4
    page.locator("[aria-label='Members']").first.wait_for()
    page.locator(".trinity-good, .trinity-warning").first.wait_for()


def test_a_run_is_opened_from_the_list(viewer: Viewer) -> None:
    viewer.open("runs")
    page = viewer.page
    page.locator("tr.choice").first.click()
    page.get_by_role("heading", level=1, name="Run", exact=True).wait_for()
    page.get_by_text("Who did what").wait_for()
    page.get_by_text("Newest values as a table").wait_for()


def test_a_sample_is_found_and_its_tokens_are_read(viewer: Viewer) -> None:
    first_sample(viewer).click()
    page = viewer.page
    token = page.locator(".token").first
    token.wait_for()
    token.focus()
    facts = page.locator(".tokens .facts")
    assert "rollout" in facts.inner_text()
    assert page.locator(".token").count() > 1
    assert "id=" in urlsplit(page.url).query


def test_a_samples_image_is_drawn_small(viewer: Viewer) -> None:
    first_sample(viewer).click()
    picture = viewer.page.locator("img[alt^='image 0: 640 x 480, image/png']")
    picture.wait_for()
    size = "image => [image.naturalWidth, image.naturalHeight]"
    assert picture.evaluate(size) == [128, 96]
    viewer.page.get_by_role("tab", name="Conversation").click()
    of_turn = viewer.page.locator(".message img[alt^='640 x 480, image/png']")
    of_turn.wait_for()
    assert of_turn.evaluate(size) == [128, 96]


def test_a_late_reward_is_given_after_two_yeses(viewer: Viewer) -> None:
    first_sample(viewer).click()
    page = viewer.page
    page.get_by_role("tab", name="Change").click()
    page.get_by_label("Reward", exact=True).fill("0.75")
    page.get_by_label("Reason").fill("read by hand")
    page.get_by_role("button", name="Look what it would do").click()
    page.get_by_text("1 experience gets the reward 0.75").wait_for()
    page.get_by_role("button", name="Yes, do it").click()
    page.get_by_text("1 experience has the reward 0.75 now.").wait_for()
    page.get_by_role("tab", name="Details").click()
    page.locator("td", has_text="by local · read by hand").wait_for()


def test_a_script_tag_is_text(viewer: Viewer) -> None:
    first_sample(viewer).click()
    page = viewer.page
    page.get_by_role("tab", name="Conversation").click()
    page.get_by_text(HOSTILE).locator("visible=true").first.wait_for()
    assert page.title() != "owned"
    assert page.locator("a[href*='evil']").count() == 0
    assert page.locator("script", has_text="owned").count() == 0
    assert viewer.said == []


@pytest.mark.parametrize("name", ["run", "experiences", "tasks"])
def test_a_run_that_is_deleted_while_it_is_viewed_leaves_the_page_usable(
    viewer: Viewer, studio: LiveStudio, name: str
) -> None:
    plan = experiment_plan(studio.root, name=f"gone-{name}")
    plan.job_path.mkdir(parents=True)
    store_plan(plan)
    page = viewer.page
    page.goto(f"{viewer.origin}/{path_of(name)}?run={plan.job_path}")
    viewer.wait_until_drawn()
    shutil.rmtree(plan.job_path)
    page.reload()
    viewer.wait_until_drawn()
    page.get_by_text("There is no such run here: choose one on the page Runs.").wait_for()
    assert page.locator("[data-testid=stException]").count() == 0
    viewer.open("runs")
    page.locator("tr.choice").first.wait_for()


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_each_page_without_scrolling_sideways(viewer: Viewer, name: str) -> None:
    page = viewer.page
    page.set_viewport_size(PHONE)
    viewer.open(name)
    viewer.wait_until_drawn()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]


@pytest.mark.parametrize("size", [PHONE, {"width": 1280, "height": 900}], ids=["phone", "desk"])
def test_the_menu_covers_no_heading(viewer: Viewer, size: dict[str, int]) -> None:
    page = viewer.page
    page.set_viewport_size(size)
    viewer.open("runs")
    viewer.wait_until_drawn()
    menu = page.locator("[data-testid='stHeader']").bounding_box()
    heading = page.locator("h1, h2").first.bounding_box()
    assert menu["y"] + menu["height"] <= heading["y"]


def test_the_keyboard_alone_is_enough(viewer: Viewer) -> None:
    first_sample(viewer)
    page = viewer.page
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED) == "row choice":
            break
    else:
        pytest.fail("the table cannot be reached")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".token").first.wait_for()
    for _ in range(60):
        page.keyboard.press("Tab")
        if str(page.evaluate(FOCUSED)).startswith("token"):
            break
    else:
        pytest.fail("the tokens cannot be reached")
    page.keyboard.press("ArrowRight")
    assert page.locator(".token[aria-selected='true']").count() == 1


def test_lanes_are_reached_and_read_by_the_keyboard(viewer: Viewer) -> None:
    viewer.open("run")
    page = viewer.page
    page.locator(".span.wait").first.wait_for()
    page.locator(".span").last.focus()
    page.keyboard.press("ArrowUp")
    assert str(page.evaluate(FOCUSED)).startswith("span")
    told = page.locator(".lanes .facts").inner_text()
    assert "began" in told
    page.wait_for_timeout(5_000)  # the page is drawn again meanwhile
    assert str(page.evaluate(FOCUSED)).startswith("span")


def tab_to(page: Any, name: str) -> None:
    """Presses Tab until the element of this name has the focus."""
    for _ in range(MOST_TAB_STOPS):
        page.keyboard.press("Tab")
        if name == page.evaluate(FOCUSED_NAME):  # its help is called `Help for ...`
            return
    pytest.fail(f"{name} cannot be reached")


def test_a_configuration_is_written_and_saved_by_the_keyboard(
    viewer: Viewer, studio: LiveStudio
) -> None:
    viewer.open("configure")
    viewer.wait_until_drawn()
    page = viewer.page
    page.locator("code", has_text="name: rft").first.wait_for()
    tab_to(page, "`name`")
    page.keyboard.press("Control+A")
    page.keyboard.type("by-keyboard")
    tab_to(page, "`buffer.batch_size`")
    page.locator("code", has_text="name: by-keyboard").first.wait_for()
    page.keyboard.type("24")
    page.keyboard.press("Enter")
    page.locator("code", has_text="batch_size: 24").first.wait_for()
    tab_to(page, "Save")
    page.keyboard.press("Enter")
    page.get_by_text("saved ").first.wait_for()
    [saved] = studio.root.glob("*by-keyboard.yaml")
    assert "batch_size: 24" in saved.read_text()


def test_the_modes_and_sections_of_configure_are_changed_by_the_keyboard(viewer: Viewer) -> None:
    viewer.open("configure")
    viewer.wait_until_drawn()
    page = viewer.page
    tab_to(page, "Beginner")
    page.keyboard.press("ArrowRight")
    page.get_by_label("Section").wait_for()
    tab_to(page, "Section")
    page.keyboard.type("Trainer")
    page.keyboard.press("Enter")
    page.get_by_label("`trainer.save_interval`", exact=True).wait_for()


def test_the_browser_asks_nothing_of_other_hosts(viewer: Viewer) -> None:
    first_sample(viewer).click()
    page = viewer.page
    page.locator(".token").first.wait_for()
    for name in ("runs", "run", "tasks", "evaluations", "step", "configure"):
        viewer.open(name)
        page.get_by_role("heading", level=1).wait_for()
        page.wait_for_timeout(1_500)
    own = urlsplit(viewer.origin).netloc
    assert viewer.hosts - {OWN_SCHEMES_HAVE_NO_HOST} == {own}
