"""axe-core looks at every page: our own parts have no serious finding, in light or dark."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.studio.browser.conftest import Viewer
from tests.support.browser import FOLDER_VARIABLE, PAGES

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]
AXE = Path("node_modules/axe-core/axe.min.js")
VIEWS = ("Tokens", "Conversation", "Group", "Details", "Change")
SERIOUS = ("serious", "critical")
RUN_AXE = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  const flat = (target) => target.flat(9).join(" ");
  return found.violations.flatMap((rule) => rule.nodes.map((node) => ({
    rule: rule.id, impact: node.impact, target: flat(node.target), html: node.html,
  })));
}"""
SPOIL = """() => {
  const roots = [document, ...[...document.querySelectorAll("*")].map((one) => one.shadowRoot)];
  const table = roots.filter(Boolean).map((root) => root.querySelector(".table")).find(Boolean);
  table.append(Object.assign(document.createElement("img"), {src: "data:,", width: 9, height: 9}));
}"""
"""Puts an image without a text into the table."""
STREAMLITS: Mapping[str, str] = {"color-contrast": 'class="token'}
"""Rules that Streamlit's own elements break, and what marks these: colours of highlighted code."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An element that some people cannot use."""

    rule: str
    target: str
    html: str

    @property
    def is_ours(self) -> bool:
        """False for what Streamlit is known to do."""
        return self.rule not in STREAMLITS or STREAMLITS[self.rule] not in self.html


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, or a skip that says what is missing."""
    path = Path(os.environ.get(FOLDER_VARIABLE, ".")) / AXE
    if not path.is_file():
        pytest.skip("axe-core is missing: run `make browser` where there is npm")
    return path.read_text()


def findings(page: Any, axe: str) -> Iterator[Finding]:
    page.evaluate(axe)
    for found in page.evaluate(RUN_AXE):
        if found["impact"] in SERIOUS:
            yield Finding(found["rule"], found["target"], found["html"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_has_a_serious_finding_of_ours(
    viewer: Viewer, axe: str, name: str, scheme: str
) -> None:
    viewer.page.emulate_media(color_scheme=scheme)
    viewer.open(name)
    viewer.wait_until_drawn()
    found = list(findings(viewer.page, axe))
    assert not [one for one in found if one.is_ours]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_of_an_experience_has_a_serious_finding_of_ours(
    viewer: Viewer, axe: str, scheme: str
) -> None:
    viewer.page.emulate_media(color_scheme=scheme)
    viewer.first_row().click()
    for name in VIEWS:
        viewer.page.get_by_role("tab", name=name).click()
        viewer.wait_until_drawn()
        found = list(findings(viewer.page, axe))
        assert not [one for one in found if one.is_ours], name


def test_an_image_without_a_name_is_found(viewer: Viewer, axe: str) -> None:
    """The control: in a component of ours, where a selector of the page does not reach."""
    viewer.open("runs")
    viewer.page.locator("tr.choice").first.wait_for()
    viewer.page.evaluate(SPOIL)
    found = list(findings(viewer.page, axe))
    assert "image-alt" in {one.rule for one in found if one.is_ours}
