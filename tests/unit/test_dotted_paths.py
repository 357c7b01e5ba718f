"""Every module, attribute or file of ours that a text names is there.

Texts are strings, comments and docstrings of Python files, and all of Markdown, YAML, HCL, JSON,
TOML, Dockerfiles, shell, Makefile and proto files. Names are resolved from the sources: nothing is
imported but the fault points, which name functions relative to a service.
"""

import ast
import fnmatch
import io
import os
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.points import ALL
from tests.chaos.weak.weaknesses import WEAKNESSES
from tests.unit.source_names import ROOT, ROOTS, files, folders, modules, names_of, resolves
from tests.unit.subtests import as_subtests

_ROOTS = "|".join(ROOTS)
DOTTED = re.compile(rf"(?<![\w./-])(?:{_ROOTS})(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_](?:[\w.]*\w)?)?")
PATH = re.compile(
    rf"(?<![\w./$}}>-])(?:\./)?((?:{_ROOTS}|docs|proto|requirements|\.ci)/[\w./*<>{{}}$-]*)"
)
QUOTED_FILE = re.compile(r"`([\w./-]*\w\.(?:py|md|hcl|sh|proto|toml)|[\w.-]+/[\w./-]+\.ya?ml)`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(?:#[^)]*)?\)")
PLACEHOLDER = re.compile(r"[^/]*[<{$}].*")
HISTORY = ("CHANGELOG.md", "benchmarks/results/*", "tests/unit/golden/recorded.json")
"""What was true when it was written, or is compared by a test of its own."""
GENERATED = (
    "trinity/api/*",
    "trinity/user_code/adopt/upstream.txt",
    "*.lock",
    "*.binpb",
    "*/package-lock.json",
    "*.png",
)
THIS = "tests/unit/test_dotted_paths.py"


@dataclass(frozen=True, slots=True)
class Allowed:
    """A token that is no path, where it may stand, and what it is instead."""

    token: str
    file: str
    reason: str


ALLOWED = (
    Allowed(
        r"(services|trinity)\.[\w.]+\.\w+", "benchmarks/mutants_equivalent.py", "methods by module"
    ),
    Allowed(
        r"trinity\.(common|utils|explorer|trainer|manager|buffer|service)(\.[\w.]+)?"
        r"|trinity\.algorithm\.(\w+_fn|sample_strategy|algorithm|key_mapper|utils)(\.\w+)*",
        "*",
        "import paths of Trinity-RFT",
    ),
    Allowed(
        r"trinity\.plugins\.(my_file|a_scorer|of_nobody)",
        "*",
        "files of users, as Trinity-RFT imports them",
    ),
    Allowed(
        r"trinity/(buffer/(operators|selector)|common/(rewards|workflows))",
        "*trinity_rft_*.py",
        "folders of Trinity-RFT",
    ),
    Allowed(
        r"trinity/(algorithm|buffer|common|explorer|manager|service|trainer)\b.*",
        "*/adopt/*",
        "files of Trinity-RFT and of its forks",
    ),
    Allowed(r"setup\.py", "docs/decisions/0125-*", "a file of forks"),
    Allowed(
        r"(docs/sphinx_doc|tests/utils|trinity/plugins)\b.*",
        "benchmarks/trinity_rft_files.py",
        "folders of Trinity-RFT",
    ),
    Allowed(
        r"(async_gsm8k/trainer|bots/ref_eval_collect|grpo_gsm8k/gsm8k)\.yaml"
        r"|trinity/common/workflows/envs|(\w+_)?config_manager\.py"
        r"|examples/(grpo_rubric_as_reward|grpo_gsm8k_experience_pipeline/dj_scoring_exp\.yaml)"
        r"|trinity/(common/verl_config|trainer/verl/dp_actor)\.py",
        "docs/moving-in.md",
        "files of Trinity-RFT",
    ),
    Allowed(
        r"examples/(grpo_rubric_as_reward|grpo_gsm8k_experience_pipeline/dj_scoring_exp\.yaml)"
        r"|trinity/(common/verl_config|trainer/verl/dp_actor)\.py",
        "tests/unit/config/test_words_of_the_guides.py",
        "files of Trinity-RFT",
    ),
    Allowed(
        r"verl/tools/gsm8k_tool\.py|run_qwen2\.5-3b_gsm8k_multiturn_vllm_fsdp\.sh",
        "docs/*.md",
        "files of veRL's",
    ),
    Allowed(
        r"(verl/trainer/)?(core_algos|dp_actor|ray_trainer)\.py|examples/config\.yaml",
        "*",
        "files of veRL and EasyR1",
    ),
    Allowed(
        r"examples/own.*", "tests/unit/benchmarks/test_trinity_rft_examples.py", "made by the test"
    ),
    Allowed(
        r"examples\.shop\.by_two_paths\.Own",
        "tests/unit/workflows/test_plugins.py",
        "made by the test",
    ),
    Allowed(r"trinity\.runs(\.\w+)*", "*", "subjects of the stream begin so"),
    Allowed(r"trinity\.(event|group|role|run)", "*", "tags of MLflow's runs"),
    Allowed(r"trinity\.outcome", "services/explorer/*", "an attribute of a metric"),
    Allowed(r"trinity\.sync", "services/*", "an attribute of a metric"),
    Allowed(r"trinity\.rank", "services/trainer/*", "an attribute of the telemetry's resource"),
    Allowed(r"trinity\.(plugin(\.\w+)?|test)", "*.py", "a logger"),
    Allowed(r"trinity\.(yaml|schema\.json)", "*", "files that `trinity config` writes"),
    Allowed(r"trinity\.json", "tests/unit/deploy/*", "Grafana's dashboard, by its name alone"),
    Allowed(r"trinity\.\{.*|services\.X", "*.md", "any service"),
    Allowed(
        r"trinity\.weights\.manifest:gone|trinity\.errors:UserError\.gone",
        "tests/chaos/*",
        "made up",
    ),
    Allowed(r"trinity/shipped(/\w+)?", "*", "in the wheel alone"),
    Allowed(r"requirements/\*-.*", "pyproject.toml", "a pattern with a set of letters"),
    Allowed(r"examples/NAME", "trinity/cli/first_steps.py", "a placeholder"),
    Allowed(r"examples/(\w+|\*)/work.*", "*", "what an example's preparation makes"),
    Allowed(
        r"examples/(addition-serve|exp\.yaml)", "*", "names of experiments and a file, made up"
    ),
    Allowed(r"acceptance\.md", "benchmarks/acceptance/*", "written by the acceptance"),
    Allowed(r"(trinity|services)/.*\.py", "tests/unit/test_prose.py", "made up by the test"),
    Allowed(
        r"trinity\.plugins\.shop\.nothing", "tests/unit/workflows/*", "a module that is not there"
    ),
    Allowed(r"trinity/rft(/config\.json)?", "tests/unit/config/*", "a model on the hub, made up"),
    Allowed(r"trinity/api/v1/\w+\.proto", "*", "a file as protos import it, under proto/"),
    Allowed(r"benchmarks/results/(gpu\.json|soak\.jsonl)", "*", "written on a GPU, and by a soak"),
    Allowed(r"build(/.*)?", "*.py", "the folder for what tools make"),
    Allowed(r"tests\.integration\.buffer\.own_priorities\.missing", "tests/*", "made up"),
    Allowed(r"my_rewards\.py|my_file\.py|envs/shop/workflow\.py", "*", "a user's file"),
    Allowed(r"docs/(a|decisions/1)\.md", "tests/unit/test_prose.py", "made up by the test"),
    Allowed(r"benchmarks\.nowhere", "tests/unit/test_snippets.py", "made up by the test"),
    Allowed(
        r"(calculator_agent|make_tasks|my_reward|rate|rated)\.py|value\(node\.left",
        "docs/*.md",
        "a user's file",
    ),
    Allowed(r"docs/(a|decisions/1)\.md", "tests/unit/test_prose.py", "made up by the test"),
    Allowed(r"benchmarks\.nowhere", "tests/unit/test_snippets.py", "made up by the test"),
)


@dataclass(frozen=True, slots=True, order=True)
class Mention:
    """A token in a file."""

    file: str
    token: str


@cache
def texts() -> Mapping[str, str]:
    """The files that are looked at, with their text."""
    left_out = (*HISTORY, *GENERATED, THIS)
    chosen = (name for name in files() if not any(fnmatch.fnmatch(name, p) for p in left_out))
    return {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in chosen}


def dangling_in(file: str, text: str) -> list[Mention]:
    """Names in a text that nothing answers to, whether allowed or not."""
    if not (found := list(_dangling(file, text))) or not file.endswith(".py"):
        return found
    return list(_dangling(file, _strings_and_comments(text)))


def _strings_and_comments(text: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = (tokenize.STRING, tokenize.COMMENT)
    return "\n".join(token.string for token in tokens if token.type in kinds)


def _dangling(file: str, text: str) -> Iterator[Mention]:
    for token in DOTTED.findall(text):
        if not _is_name(token, file):
            yield Mention(file, token)
    for token in map(_trimmed, PATH.findall(text)):
        if not _is_path(token):
            yield Mention(file, token)
    for token in QUOTED_FILE.findall(text):
        if not _ends_a_path(token):
            yield Mention(file, token)
    for token in LINK.findall(text) if file.endswith(".md") else ():
        if not _is_path(os.path.normpath(os.path.join(os.path.dirname(file), token))):
            yield Mention(file, token)


def _trimmed(token: str) -> str:
    """The path up to its first part that stands for any name, which may also be a glob."""
    return PLACEHOLDER.sub("", token).rstrip("./")


def _is_name(token: str, file: str) -> bool:
    if resolves(token) or token in telemetry_names() or _is_of_protos(token):
        return True
    if token.split(".")[-1].startswith("__"):  # what Python itself gives a module
        return token.rpartition(".")[0] in modules()
    return file.endswith(".proto") and _is_class_below(token)


def _is_path(token: str) -> bool:
    if token in _paths() or token in (".", ""):
        return True
    return "*" in token and any(fnmatch.fnmatch(path, token) for path in _paths())


@cache
def _paths() -> frozenset[str]:
    return frozenset(files()) | folders()


@cache
def _ends_a_path(token: str) -> bool:
    return any(path == token or path.endswith(f"/{token}") for path in files())


@cache
def telemetry_names() -> frozenset[str]:
    """Metrics, spans and attributes: whole strings of the telemetry package that are no paths."""
    names = set()
    for file, text in texts().items():
        if file.startswith("trinity/runtime/telemetry/"):
            constants = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant))
            names |= {c for c in constants if isinstance(c, str) and DOTTED.fullmatch(c)}
    return frozenset(names)


def _is_of_protos(token: str) -> bool:
    """A service, message or method as it is written on the wire."""
    package, _, rest = token.partition(".v1.")
    declared = _declared_in_protos()
    return package == "trinity.api" and bool(rest) and all(p in declared for p in rest.split("."))


@cache
def _declared_in_protos() -> frozenset[str]:
    protos = [text for file, text in texts().items() if file.endswith(".proto")]
    return frozenset(re.findall(r"\b(?:service|message|enum|rpc) (\w+)", "\n".join(protos)))


@cache
def _is_class_below(token: str) -> bool:
    """Protos name a class by the package that holds its module, where no other has that name."""
    package, _, name = token.rpartition(".")
    below = [module for module in modules() if module.startswith(f"{package}.")]
    return sum(f"class {name}" in _text_of(m) and name in names_of(m).bound for m in below) >= 1


def _text_of(module: str) -> str:
    return texts().get(modules()[module], "")


# Names that are put together from constants: f"{_HERE}.grpo.grpo", ROOT / "docs" / "x.md".

Constants = dict[str, list[str]]
"""Each name with the strings it may stand for."""
Folders = dict[str, Path]


def put_together(text: str) -> Iterator[str]:
    """Dotted names that formatted strings over constants of their module make."""
    constants: Constants = {}
    tree = ast.parse(text)
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value))):
                constants[name] = [value]
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension):
            constants |= _looped(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield from (made for made in _made(node, constants) if DOTTED.fullmatch(made))


def _looped(node: ast.comprehension) -> Constants:
    match node:
        case ast.comprehension(target=ast.Name(id=name), iter=ast.Tuple(elts=parts)):
            values = [part.value for part in parts if isinstance(part, ast.Constant)]
            return {name: [value for value in values if isinstance(value, str)]}
    return {}


def _made(node: ast.JoinedStr, constants: Constants) -> Iterator[str]:
    names = [_name(value) for value in node.values if _is_plain(value, constants)]
    if any(not isinstance(v, ast.Constant) and not _is_plain(v, constants) for v in node.values):
        return
    looped = next((name for name in names if len(constants[name]) > 1), None)
    for value in constants[looped] if looped else [""]:
        chosen = {name: value if name == looped else constants[name][0] for name in names}
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else chosen[_name(part)]
            for part in node.values
        )


def _is_plain(node: ast.expr, constants: Constants) -> bool:
    return bool(constants.get(_name(node)))


def _name(node: ast.expr) -> str:
    match node:
        case ast.FormattedValue(value=ast.Name(id=name), conversion=-1, format_spec=None):
            return name
    return ""


def joined_paths(file: str, text: str) -> Iterator[str]:
    """Paths in the repository that a module joins from its own place and strings."""
    bases: Folders = {}
    tree = ast.parse(text)
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if (place := _place(value, bases, file)) is not None:
                    bases[name] = place
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and (place := _place(node, bases, file)) is not None:
            yield place.as_posix()


def _place(node: ast.expr, bases: Folders, file: str) -> Path | None:
    """Relative to the root."""
    match node:
        case ast.Name(id=name):
            return bases.get(name)
        case ast.Call(func=ast.Name(id="Path"), args=[ast.Name(id="__file__")]):
            return Path(file)
        case ast.Call(func=ast.Attribute(value=value, attr="resolve"), args=[]):
            return _place(value, bases, file)
        case ast.Attribute(value=value, attr="parent"):
            return place.parent if (place := _place(value, bases, file)) else None
        case ast.Subscript(
            value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(depth))
        ):
            place = _place(value, bases, file)
            return place.parents[depth] if place and depth < len(place.parents) else None
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=str(name))):
            place = _place(left, bases, file)
            return place / name if place is not None else None
    return None


def _is_allowed(mention: Mention) -> Allowed | None:
    return next(
        (
            rule
            for rule in ALLOWED
            if re.fullmatch(rule.token, mention.token) and fnmatch.fnmatch(mention.file, rule.file)
        ),
        None,
    )


@cache
def all_dangling() -> tuple[Mention, ...]:
    """Over every text, allowed ones too."""
    found = {m for file, text in texts().items() for m in dangling_in(file, text)}
    for file, text in texts().items():
        if file.endswith(".py"):
            if 'f"{' in text:
                found |= {Mention(file, t) for t in put_together(text) if not _is_name(t, file)}
            if "__file__" in text:
                found |= {Mention(file, t) for t in joined_paths(file, text) if not _is_path(t)}
    return tuple(sorted(found))


def test_every_path_that_a_text_names_is_there() -> None:
    dangling = [mention for mention in all_dangling() if _is_allowed(mention) is None]
    assert not dangling, "\n".join(f"{m.file}: {m.token}" for m in dangling)


def test_every_rule_allows_something() -> None:
    used = {_is_allowed(mention) for mention in all_dangling()}
    assert [rule for rule in ALLOWED if rule not in used] == []


def test_fault_points_and_weaknesses_name_functions() -> None:
    targets = sorted({point.target for point in ALL} | {weak.target for weak in WEAKNESSES})
    assert targets
    assert [target for target in targets if not resolves(target)] == []


def test_registered_parts_are_found_in_formatted_strings() -> None:
    made = [name for text in texts().values() if '_HERE = "' in text for name in put_together(text)]
    assert len(made) > 20


@as_subtests(
    ("file", "text", "token"),
    [
        ("trinity/x.py", '"""See `trinity.no_such.module`."""\n', "trinity.no_such.module"),
        ("trinity/x.py", "x = 1  # as services.trainer.no_such\n", "services.trainer.no_such"),
        ("x.sh", "python -m tests.chaos.no_such", "tests.chaos.no_such"),
        ("x.yaml", "a: trinity.errors:no_such", "trinity.errors:no_such"),
        ("x.yaml", "a: trinity.errors:UserError.no_such.x", "trinity.errors:UserError.no_such.x"),
        ("Makefile", "\tsh deploy/no_such.sh", "deploy/no_such.sh"),
        ("docs/x.md", "[it](../trinity/no_such.py)", "../trinity/no_such.py"),
        ("docs/x.md", "in `no_such/file.py`", "no_such/file.py"),
        ("docs/x.md", "`trinity.api.v1.NoSuchService`", "trinity.api.v1.NoSuchService"),
    ],
)
def test_a_path_that_is_made_up_is_found_dangling(file: str, text: str, token: str) -> None:
    assert Mention(file, token) in dangling_in(file, text)


@pytest.mark.parametrize(
    "text",
    [
        "`trinity.errors.UserError`, `trinity.errors:UserError`, `trinity.config`",
        "`trinity/errors.py`, services/{name}/, proto/trinity/api/v1/*.proto",
        "`trinity.api.v1.BufferService`, trinity.errors.",
    ],
)
def test_a_path_that_is_there_is_not_dangling(text: str) -> None:
    assert dangling_in("docs/x.md", text) == []


@pytest.mark.parametrize(
    ("find", "text", "made"),
    [
        (put_together, '_A = "trinity.x"\nB = f"{_A}.y"\n', ["trinity.x.y"]),
        (
            put_together,
            '_A = "trinity"\nB = {n: f"{_A}.{n}.{n}" for n in ("x", "y")}\n',
            ["trinity.x.x", "trinity.y.y"],
        ),
        (
            lambda text: joined_paths("tests/unit/x.py", text),
            'R = Path(__file__).parents[2]\nP = R / "docs" / "x.md"\n',
            ["docs/x.md", "docs"],
        ),
    ],
)
def test_names_are_put_together(
    find: Callable[[str], Iterator[str]], text: str, made: list[str]
) -> None:
    assert list(find(text)) == made
