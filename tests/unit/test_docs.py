"""The Markdown pages: links and anchors resolve, lines are short, indexes are whole."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.subtests import as_subtests
from trinity.cli.main import make_app

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs/decisions"
MAX_COLUMNS = 140
LONG_LINES = ("examples/custom_algorithm/README.md", "examples/custom_operator/README.md")
"""Pages whose number of lines another test bounds."""

FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(
    r"<!-- (?P<kind>table|campaign|metrics): .*?<!-- (?:(?P=kind): )?end -->", re.DOTALL
)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*(?P<target>[^)\s]+)\s*\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
TITLE_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def _markdown_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:  # an archive without a repository
        return sorted(
            {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")}
        )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


PAGES = _markdown_files()


def _blanked(text: str, *patterns: re.Pattern[str]) -> str:
    """Empties what the patterns match and keeps the numbers of the lines."""
    for pattern in patterns:
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    return text


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, named as GitHub names them."""
    anchors: list[str] = []
    for heading in HEADING.finditer(_blanked(page.read_text(), FENCE)):
        title = TITLE_LINK.sub(r"\1", heading["title"]).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        earlier = sum(
            re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", known) is not None for known in anchors
        )
        anchors.append(f"{anchor}-{earlier}" if earlier else anchor)
    return frozenset(anchors)


def _broken_links(page: Path) -> Iterator[str]:
    text = _blanked(page.read_text(), FENCE)
    for link in LINK.finditer(text):
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{target}: there is no such file"
        elif anchor and file.suffix == ".md" and anchor not in _anchors(file):
            yield f"{target}: there is no such heading"


@as_subtests("page", PAGES)
def test_links_and_anchors_resolve(page: Path) -> None:
    assert not list(_broken_links(page))


@as_subtests("page", PAGES)
def test_lines_are_short_outside_tables_and_code(page: Path) -> None:
    if page.relative_to(ROOT).as_posix() in LONG_LINES:
        return
    lines = _blanked(page.read_text(), GENERATED, FENCE).splitlines()
    long = [
        number
        for number, line in enumerate(lines, 1)
        if len(line) > MAX_COLUMNS and not line.lstrip().startswith("|")
    ]
    assert not long, f"lines of more than {MAX_COLUMNS} characters: {long}"


def test_each_decision_is_in_the_index_with_its_number_and_title() -> None:
    rows = re.findall(
        r"^\| \[(\d+)\]\(([^)]+)\) \| (.+?) \| .+ \|$", (DECISIONS / "README.md").read_text(), re.M
    )
    indexed = {file: (number, title) for number, file, title in rows}
    decided = {}
    for page in DECISIONS.glob("[0-9]*.md"):
        title = re.match(r"# (\d+)\. (.+)\n", page.read_text())
        assert title, f"{page.name} begins with no number and title"
        assert int(title[1]) == int(page.name[:4])
        decided[page.name] = (title[1], title[2])
    assert indexed == decided
    assert [int(number) for number, _, _ in rows] == sorted(int(number) for number, _, _ in rows)


def test_each_decision_that_is_named_has_a_page() -> None:
    numbers = {page.name[:4] for page in DECISIONS.glob("[0-9]*.md")}
    named = [(name, f"{int(number):04d}") for name, number in _named_decisions()]
    assert len(named) > 50, "the control"
    assert [(name, number) for name, number in named if number not in numbers] == []


def _named_decisions() -> Iterator[tuple[str, str]]:
    pattern = re.compile(
        r"\bdecisions?\W+(\d+)|\bdecisions/(\d{4})-|\]\((\d{4})-[a-z]", re.IGNORECASE
    )
    listed = subprocess.run(
        ["git", "grep", "--untracked", "-lI", "-i", "decision"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    pages = (str(page.relative_to(ROOT)) for page in _markdown_files())
    for name in listed.stdout.splitlines() or pages:  # the latter in an archive
        for match in pattern.finditer((ROOT / name).read_text()):
            yield name, match[1] or match[2] or match[3]


def test_guides_say_why_themselves() -> None:
    """A guide that sends to a decision leaves its reader to find the reason among the history."""
    about_decisions = {ROOT / "docs" / name for name in ("README.md", "figures.md")}
    guides = {*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")} - about_decisions
    assert [page.name for page in sorted(guides) if "decisions/" in page.read_text()] == []
    assert all("decisions/" in page.read_text() for page in about_decisions), "the control"


def test_the_glossary_is_sorted_and_names_each_term_once() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    terms = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert terms == sorted(set(terms), key=str.casefold)


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert not [name for name in sorted(pages) if f"({name}" not in index]


def test_the_readme_counts_the_algorithms() -> None:
    (number,) = re.findall(r"\[(\d+) algorithms\]", (ROOT / "README.md").read_text())
    page = (ROOT / "docs/algorithms.md").read_text()
    rows = page.partition("## All algorithms")[2].partition("\n## ")[0].splitlines()
    assert int(number) == sum(row.startswith("| `") for row in rows) - 1
    runs = (ROOT / "docs/runs.md").read_text()
    assert re.findall(r"`algorithm.algorithm_type`, one of (\d+)", runs) == [number]


UNTRUE = (
    r"Not run so far\W+a GPU",
    r"Nothing has been run on a GPU",
    r"anything on a GPU \| \*\*not run",
    r"as many ranks as wrote",
)
"""What pages said until `benchmarks/results/gpu_acceptance.json` and decision 78 were there."""


TODAY = [page for page in _markdown_files() if page.name != "CHANGELOG.md"]


def test_no_page_says_what_is_no_longer_true() -> None:
    said = [(page, words) for page in TODAY for words in UNTRUE if re.search(words, joined(page))]
    assert said == []
    assert re.search(UNTRUE[0], "**Not run so far**: a GPU"), "the control"


def joined(page: Path) -> str:
    return " ".join(page.read_text().split())


def test_the_accuracy_of_the_demo_is_that_of_its_measured_runs() -> None:
    claims = json.loads((ROOT / "benchmarks/results/main_job.json").read_text())["claims"]
    ends = [claim["value"] for claim in claims if claim["name"].startswith("accuracy at end")]
    (said,) = re.findall(r"about 0\.55 to\s+about ([\d.]+)", (ROOT / "README.md").read_text())
    assert ends and float(said) <= min(ends)


def test_packages_are_installed_from_a_checkout() -> None:
    """No index has the package, and who registered its name there could run code of theirs."""
    files = [*TODAY, *ROOT.glob("trinity/**/*.py"), *ROOT.glob("services/**/*.py")]
    named = re.compile(r"(pip install|install) \W*trinity-services")
    assert not [file for file in files if named.search(file.read_text())]


def test_the_yaml_of_the_readme_has_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "math.yaml").write_text(shown)
    monkeypatch.chdir(tmp_path)
    words = ["config", "check", "math.yaml"]
    checked = CliRunner().invoke(make_app(words), words)
    assert checked.exit_code == 0, checked.output
