"""The checks of prose and of shape find what they look for."""

import pytest

from tests.support.prose import faults_of_document, faults_of_rates, faults_of_source
from tests.support.shape import faults_of_shape


@pytest.mark.parametrize(
    "text",
    [
        '"""What producers are told."""\n',
        'def f() -> None:\n    """Whether it works."""\n',
        '"""Returns a value that nobody reads."""\n',
        "x = 1  # for whoever comes next\n",
    ],
)
def test_an_opening_or_a_word_that_is_banned_is_found(text: str) -> None:
    assert len(list(faults_of_source("a.py", text))) == 1


def test_plain_english_passes() -> None:
    text = '"""Returns the newest version that every explorer has loaded."""\nx = 1  # bytes\n'
    assert list(faults_of_source("a.py", text)) == []


def test_documents_are_checked_outside_of_code() -> None:
    text = "Start it anew.\n\n```text\nanew\n```\n`anew`\n"
    assert [fault.line for fault in faults_of_document("a.md", text)] == [1]


def test_a_code_block_says_its_language() -> None:
    text = "```\nx\n```\n\n```sh\nx\n```\n"
    assert [fault.line for fault in faults_of_document("docs/a.md", text)] == [1]
    assert list(faults_of_document("docs/decisions/1.md", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "names = [one for one in found]\n",
        "async def f() -> None:\n    async for number, one in found:\n        pass\n",
        "size = 1\n" * 501,
        "C = 1\n",
        "def f() -> None:\n    pass\nSIZE = 1\n",
        "def f() -> None:\n" + "    x = 1\n" * 59,
        "class A:\n" + "    x = 1\n" * 312,
    ],
)
def test_a_shape_beyond_its_limit_is_found(text: str) -> None:
    assert len(list(faults_of_shape({"trinity/a.py": text}))) == 1


def test_a_shape_within_its_limits_passes() -> None:
    text = "names = [name for name in found]\n" + "def f() -> None:\n" + "    x = 1\n" * 58
    text += "class A:\n" + "    x = 1\n" * 311
    text = "SIZE = 1\n" + text + "CALLS = {'f': f, 'own': A}\nNAMES = list(CALLS)\n"
    assert list(faults_of_shape({"trinity/a.py": text})) == []


def test_a_class_name_stands_once_except_where_upstream_has_it() -> None:
    text = "class Task:\n    pass\n"
    ours = {"trinity/tasks.py": text, "trinity/rft/common/tasks.py": text}
    assert list(faults_of_shape(ours)) == []
    again = [fault.file for fault in faults_of_shape(ours | {"services/tasks.py": text})]
    assert again == ["services/tasks.py"]


def test_a_folder_holds_a_bounded_number_of_files() -> None:
    files = {f"trinity/rewards/r{number}.py": "" for number in range(35)}
    assert list(faults_of_shape(files)) == []
    files["trinity/rewards/another.py"] = ""
    assert [fault.file for fault in faults_of_shape(files)] == ["trinity/rewards"]


def test_a_turn_of_phrase_that_is_too_frequent_is_found() -> None:
    plain = "# Returns the rows of a batch, in the order of their numbers.\n" * 100
    assert not [*faults_of_rates({"plain.py": plain})]
    (fault,) = faults_of_rates({"plain.py": plain, "other.py": "# rows beside those\n"})
    assert "`beside` comes 0.83 times" in fault.problem
