"""veRL's settings, read from scripts, YAML files and `key=value` arguments."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from trinity.config.loading.yaml import key_lines
from trinity.config.loading.yaml_errors import yaml_error_sentence
from trinity.errors import UserError
from trinity.verl.shell.reader import Command, Script, read_script
from trinity.verl.shell.variables import ExpandedField, ScriptNote, is_of_a_library
from trinity.verl.values import (
    FloatLoader,
    JsonValue,
    flat_values,
    read_override,
    read_value,
)

_REFERENCE = re.compile(
    r"\$\{(?P<select>oc\.select:)?\s*(?P<key>\.*[A-Za-z_][\w.]*)\s*(?:,\s*(?P<default>[^${}]*))?\}"
)
"""References without nested ones, which are resolved first."""

OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?")
CONFIG_FILE = "hydra.config_file"
"""The setting that holds the path of the configuration."""
_OPTIONS = ("config_name", "config_path", "config_dir")
_VERL_DEFAULT = re.compile(
    r"((fully_async|one_step_off)_)?(ppo|sft)(_[a-z]+)?_trainer(_engine)?(\.yaml)?"
)
_ENVIRONMENT = re.compile(r"[A-Z][A-Za-z0-9_]*=.*", re.S)
"""`NAME=value` in front of what starts veRL, whose own keys are in small letters."""
_UNKNOWN_ROOT = re.compile(r"\$\{[^}]*\}/")
COMMAND_LINE = "command line"
_YAML = (".yaml", ".yml")
_MODULE = re.compile(r"(?!-)(?!.*\.ya?ml$)(?:.*/)?(?P<name>(?:verl|recipe)(?:[./]\w+)+?)(?:\.py)?")
"""The words that name a module of veRL or a recipe; options and configurations do not match."""
_SECTIONS = ("data.", "actor_rollout_ref.", "algorithm.", "trainer.", "model.", "optim.", "critic.")
_HYDRA_MAIN = re.compile(r"@hydra\.main\((?P<arguments>[^)]*)\)")
_HYDRA_ARGUMENT = re.compile(r"(config_path|config_name)\s*=\s*[\"']([^\"']+)[\"']")
_LAUNCHERS = ("torch.distributed", "torchrun", "accelerate", "deepspeed")
"""Modules that start another one."""
_FROM_OUTSIDE = re.compile(r"\$\{oc\.env:(\w+)\}")
MISSING = "???"
"""Hydra's placeholder of a value that must be given."""
_MIN_KEYS_OF_OTHER_LAUNCHER = 4
_LAUNCHER = {"nproc_per_node", "nproc-per-node", "nnodes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlSetting:
    """A veRL key with its value and origin."""

    key: str
    value: JsonValue
    where: str
    """`run.sh:12`, `command line`."""


@dataclass(slots=True)
class VerlSettings:
    """All veRL settings, later over earlier ones, and the keys that were already taken.

    setting = settings.take("data.train_batch_size")
    """

    module: str = ""
    """The module that was started, such as `verl.trainer.main_ppo`; empty for keys alone."""
    program: str = ""
    """A module outside of veRL that was started with veRL's keys."""
    remarks: list[str] = field(default_factory=list)
    """Remarks for the user on how the sources were read."""
    advice: list[str] = field(default_factory=list)
    """What the user should look at, found while the sources were read."""
    path: Path | None = None
    """The first file among the sources."""
    included: list[str] = field(default_factory=list)
    """veRL's configurations that a configuration file includes."""
    dialect: str = ""
    folder: Path | None = None
    """The rewritten veRL whose keys these were, and the folder of a copy; empty for veRL."""
    _settings: dict[str, VerlSetting] = field(default_factory=dict)
    _handled: set[str] = field(default_factory=set)

    @property
    def is_supervised(self) -> bool:
        """True if supervised fine-tuning was started."""
        if self.module:
            return "sft_trainer" in self.module
        tops = {key.partition(".")[0] for key in self._settings}
        return bool(tops & {"model", "optim"}) and "actor_rollout_ref" not in tops

    def put(self, setting: VerlSetting) -> None:
        """Sets a key; adds a remark if it replaces another value."""
        before = self._settings.get(setting.key)
        if before is not None and before.value != setting.value:
            self.remarks.append(
                f"{setting.where}: {setting.key} replaces the {before.value!r} of {before.where}"
            )
        self._settings[setting.key] = setting

    def remove(self, key: str, where: str) -> None:
        """Removes a key and all keys below it, as `~key` does."""
        for name in [held for held in self._settings if held == key or held.startswith(f"{key}.")]:
            del self._settings[name]
        self.remarks.append(f"{where}: ~{key} removes the key")

    def rename(self, key: str, setting: VerlSetting) -> None:
        """Puts a setting in the place of a key."""
        self._settings.pop(key)
        self._settings[setting.key] = setting

    def has(self, key: str) -> bool:
        """True if the key is set."""
        return key in self._settings

    def take(self, key: str) -> VerlSetting | None:
        """Takes the setting of a key, which then counts as handled."""
        self._handled.add(key)
        return self._settings.get(key)

    def value(self, key: str, default: JsonValue) -> JsonValue:
        """Takes the value of a key, or veRL's default; the key then counts as handled."""
        setting = self.take(key)
        return default if setting is None or setting.value is None else setting.value

    def peek(self, key: str) -> JsonValue:
        """The value of a key that is handled elsewhere; None if it is not set."""
        setting = self._settings.get(key)
        return None if setting is None else setting.value

    def all(self) -> list[VerlSetting]:
        """Every setting."""
        return list(self._settings.values())

    def unhandled(self) -> Iterator[VerlSetting]:
        """Yields settings that were not taken, in order of first appearance."""
        yield from [setting for key, setting in self._settings.items() if key not in self._handled]

    def fill_in_references(self) -> None:
        """Replaces `${data.max_prompt_length}` by the value of that key."""
        for key, setting in list(self._settings.items()):
            if self._copy_section(setting):
                continue
            value = self._filled(setting.value, key, seen=frozenset({key}))
            if value is None and setting.value is not None:
                del self._settings[key]  # a reference to an unset key counts as not set
            else:
                self._settings[key] = VerlSetting(key=key, value=value, where=setting.where)

    def _copy_section(self, setting: VerlSetting) -> bool:
        """Copies the keys of a section that a value refers to; returns False for other values."""
        found = _REFERENCE.fullmatch(str(setting.value))
        prefix = f"{found['key']}." if found else ""
        below = [held for held in self._settings if prefix and held.startswith(prefix)]
        if not below:
            return False
        del self._settings[setting.key]
        for name in below:
            copied = f"{setting.key}.{name.removeprefix(prefix)}"
            source = self._settings[name]
            value = VerlSetting(key=copied, value=source.value, where=source.where)
            self._settings.setdefault(copied, value)
        return True

    def _filled(self, value: JsonValue, key: str, seen: frozenset[str]) -> JsonValue:
        if isinstance(value, list):
            return [self._filled(item, key, seen) for item in value]
        while isinstance(value, str) and (found := _REFERENCE.search(value)):
            target = self._referred(found, key, seen)
            if found[0] == value:
                return self._filled(target, key, seen)
            value = value.replace(found[0], str(target))
        return value

    def _referred(self, found: re.Match[str], key: str, seen: frozenset[str]) -> JsonValue:
        """The value of a reference at `key`; leading dots go up from there."""
        name = found["key"].lstrip(".")
        if up := len(found["key"]) - len(name):
            name = ".".join([*key.split(".")[:-up], name])
        if name in self._settings and name not in seen:
            return self._filled(self._settings[name].value, name, seen | {name})
        if found["select"] is None and not up:
            self.remarks.append(f"`{found[0]}` is not set by anything given: write its value")
            return name
        return read_value(found["default"]) if found["default"] else None


def is_verl_default(name: str) -> bool:
    """True if a configuration comes with veRL, so that the conversion knows its defaults."""
    return _VERL_DEFAULT.fullmatch(name) is not None


def config_options(words: Sequence[ExpandedField]) -> Iterator[tuple[str, str, int]]:
    """Yields name, value and line of the options with which Hydra finds its files."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        option = OPTION.fullmatch(word.text)
        name = option["name"].replace("-", "_") if option else ""
        if option is None or name not in _OPTIONS:
            continue
        if value := option["value"] or (following.text if following else ""):
            yield name, value, word.line


def user_config_file(words: Sequence[ExpandedField], script: Path) -> Path | None:
    """Returns the path of the configuration that overrides veRL's defaults, if there is one.

    The command or else the started program names it, relative to the current folder or to one
    above the script.
    """
    roots = (Path(), *script.resolve().parents)
    usual = _options_of_program(words, roots)
    options = usual | {name: value for name, value, _ in config_options(words)}
    name = options.get("config_name")
    if name is None or is_verl_default(name):
        return None
    folders = [options[key] for key in ("config_dir", "config_path") if key in options] or ["."]
    places = (
        above / inner / f"{name.removesuffix('.yaml')}.yaml"
        for folder in folders
        for inner in (_UNKNOWN_ROOT.sub("", folder), *_folders_of_modules(words, folder))
        for above in roots
    )
    return next((place for place in places if place.is_file()), None)


def _options_of_program(words: Sequence[ExpandedField], roots: Sequence[Path]) -> dict[str, str]:
    """The folder and the name of the configuration in the `@hydra.main` of the started program."""
    for module in started_modules(words):
        file = f"{module.replace('.', '/')}.py"
        for place in (above / file for above in roots):
            if place.is_file() and (found := _HYDRA_MAIN.search(_text(str(place)))):
                return dict(_HYDRA_ARGUMENT.findall(found["arguments"]))
    return {}


def started_modules(words: Sequence[ExpandedField]) -> Iterator[str]:
    """Yields the modules that a command starts: veRL's, recipes, and those behind `-m`."""
    for before, word in zip(["", *(word.text for word in words)], words, strict=False):
        if found := _MODULE.fullmatch(word.text):
            yield found["name"].replace("/", ".")
        elif before == "-m" and not word.text.startswith(_LAUNCHERS):
            yield word.text


def _folders_of_modules(words: Sequence[ExpandedField], folder: str) -> Iterator[str]:
    """Yields folders relative to the started modules, where Hydra looks for a relative path."""
    for module in started_modules(words):
        yield f"{module.replace('.', '/').rpartition('/')[0]}/{folder}".lstrip("/")


def read_starts(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, line: int | None = None
) -> list[VerlSettings]:
    """Reads all `arguments` once for each time that their script starts veRL.

    Raises: UserError as `read_sources` does.
    """
    found = [0]
    for path in arguments:
        if read_override(path) is None and not path.endswith(_YAML):
            script = read_script(_text(path), path, environment or {})
            found = [*range(len(_starts(script, line)))] or [0]
    return [read_sources(arguments, environment, line, position) for position in found]


def read_sources(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    line: int | None = None,
    position: int | None = None,
) -> VerlSettings:
    """Reads all `arguments`, later over earlier ones.

    `line` selects one of a script's commands, `position` one of those that start veRL.

    Raises: UserError for an argument that is not a script, YAML file or override, or for a script
    that does not start veRL.
    """
    settings = VerlSettings()
    for argument in arguments:
        override = read_override(argument)
        if override is not None and not Path(argument).exists():
            _put(settings, argument, COMMAND_LINE)
            continue
        settings.path = settings.path or Path(argument)
        if argument.endswith(_YAML):
            read_yaml(settings, argument)
        else:
            _read_script(settings, argument, environment or {}, line, position)
    settings.fill_in_references()
    return settings


def _put(settings: VerlSettings, text: str, where: str) -> bool:
    """Applies an override; returns False if `text` is not one."""
    override = read_override(text)
    if override is None:
        return False
    if override.sign == "~":
        settings.remove(override.key, where)
    else:
        _put_value(settings, override.key, override.value, where)
    return True


def _put_value(settings: VerlSettings, key: str, value: JsonValue, where: str) -> None:
    """Sets a key; a mapping sets the keys below it."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            _put_value(settings, f"{key}.{name}", inner, where)
    else:
        settings.put(VerlSetting(key=key, value=value, where=where))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(
            f"there is no file {path}: give a script, a YAML file, or key=value"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: give a script or a YAML file") from error


def read_yaml(settings: VerlSettings, path: str) -> None:
    """Sets the keys of a file. Raises: UserError if it is no configuration."""
    text = _text(path)
    try:
        tree = yaml.load(text, Loader=FloatLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise UserError(yaml_error_sentence(error, path, text)) from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no `key: value` lines: give veRL's configuration")
    if ours := {"buffer", "explorer", "synchronizer"} & tree.keys():
        raise UserError(
            f"{path} has the section `{min(ours)}` and is not a veRL configuration: to convert it "
            f"back, use --to-verl {path}"
        )
    lines, name = key_lines(text), Path(path).name
    given = (pair for pair in flat_values(tree) if pair[1] not in (None, {}, MISSING))
    for key, value in given:
        line = lines.get(key)
        where = f"{name}:{line}" if line else name
        if key == "defaults" and _are_verls_defaults(value):
            names = value if isinstance(value, list) else [value]
            settings.included += [str(name) for name in names if is_verl_default(str(name))]
            continue
        if key == "defaults" or (key.startswith("hydra.") and key != "hydra.searchpath"):
            settings.remarks.append(
                f"{where}: `{key}` is Hydra's: included files are not read, give those files too"
            )
        elif not key.endswith("_target_") and not key.startswith("hydra."):
            settings.put(VerlSetting(key=key, value=value, where=where))


def _are_verls_defaults(value: JsonValue) -> bool:
    """True if a file includes veRL's defaults alone, which the conversion knows."""
    names = value if isinstance(value, list) else [value]
    texts = [name for name in names if isinstance(name, str) and name != "_self_"]
    return len(texts) >= len(names) - 1 and all(is_verl_default(name) for name in texts)


def _read_script(
    settings: VerlSettings,
    path: str,
    environment: Mapping[str, str],
    line: int | None,
    position: int | None,
) -> None:
    text = _text(path)
    script = read_script(text, path, environment)
    command = _launch_command(script, path, line, position)
    if (own := user_config_file(command.words, Path(path))) is not None:
        read_yaml(settings, str(own))
    path = Path(path).name
    for name, value, at in config_options(command.words):
        settings.put(VerlSetting(key=f"hydra.{name}", value=value, where=f"{path}:{at}"))
    if own is not None:
        where = f"{path}:{command.line}"
        settings.put(VerlSetting(key=CONFIG_FILE, value=str(own), where=where))
    for note in script.notes:
        settings.remarks.append(f"{path}:{note.line}: {_line(note)}")
    if script.defaulted:
        names = ", ".join(script.defaulted)
        settings.remarks.append(
            f"{path}: defaults are taken of {names} (--env NAME=VALUE gives another)"
        )
    settings.remarks += _environment_remarks(command, path)
    settings.remarks += _export_remarks(script, text, path)
    _stray_keys(settings, script, command, path)
    words = iter(command.words)
    for word in words:
        _read_word(settings, word, words, path)
    files = (each.text for each in command.words if re.fullmatch(r"[^=]+\.py", each.text))
    file = next(files, "").removesuffix(".py").lstrip("./").replace("/", ".")
    settings.program = settings.module or next(started_modules(command.words), file)
    if not settings.module:
        settings.remarks.append(
            f"{path}:{command.line}: `{command.words[0].text}` is taken for the start of veRL"
        )


def _export_remarks(script: Script, text: str, path: str) -> list[str]:
    """Remarks on variables for the user's own code, which the script itself does not read."""
    names = [
        name
        for name in script.exported
        if not is_of_a_library(name) and not re.search(rf"\$\{{?{name}\b", text)
    ]
    how = "set it in the environment of `trinity run` where your own code reads it"
    return [f"{path}: exports {', '.join(names)}: {how}"] if names else []


def _environment_remarks(command: Command, path: str) -> list[str]:
    """Remarks on the variables that the script takes from its environment without setting them."""
    found = {name for word in command.words for name in _FROM_OUTSIDE.findall(word.text)}
    names = ", ".join(sorted(found - {"HOME"}))
    how = "set it before `trinity run`, or give --env NAME=VALUE here"
    return [f"{path}: takes {names} from its environment: {how}"] if names else []


def _read_word(
    settings: VerlSettings, word: ExpandedField, words: Iterator[ExpandedField], path: str
) -> None:
    where = f"{path}:{word.line}"
    if (module := _MODULE.fullmatch(word.text)) and not settings.module:
        settings.module = module["name"].replace("/", ".")
    elif option := OPTION.fullmatch(word.text):
        name, value = option["name"], option["value"]
        if name.startswith("config") and not value:
            next(words, word)
        if name in _LAUNCHER and value:
            settings.put(
                VerlSetting(key=f"torchrun.{name.replace('-', '_')}", value=value, where=where)
            )
    elif not settings.module and _ENVIRONMENT.fullmatch(word.text):
        return
    elif not _put(settings, word.text, where) and settings.module and word.text.strip():
        settings.remarks.append(f"{where}: `{word.text}` is not key=value and is left out")


def _starts(script: Script, line: int | None) -> list[Command]:
    """Returns the commands that start veRL, those on the line if there are any."""
    found = [command for command in dict.fromkeys(script.commands) if _starts_verl(command)]
    return [command for command in found if command.line == line] or found


def _launch_command(script: Script, path: str, line: int | None, position: int | None) -> Command:
    """Returns the command that starts veRL; of a loop's, the first unless a position is given."""
    found = _starts(script, line)
    if not found:
        guesses = "".join(f"\n  line {note.line}: {_line(note)}" for note in script.notes)
        raise UserError(
            f"{path} starts no veRL: give the script with `python3 -m verl...`, or the values that "
            f"it waits for as --env NAME=VALUE{guesses}"
        )
    lines = dict.fromkeys(str(command.line) for command in found)
    if len(lines) > 1 and position is None:
        raise UserError(
            f"{path} starts veRL {len(found)} times (lines {', '.join(lines)}): choose one with "
            "--line, or give --output, which writes a file of each"
        )
    return found[position or 0]


def _line(note: ScriptNote) -> str:
    """The note's text on one line, though it may show a command of several lines."""
    return " ".join(note.text.split())


def _starts_verl(command: Command) -> bool:
    """True for veRL's module with one of its keys, or for another launcher with many of them."""
    texts = [word.text for word in command.words]
    tops, is_module = (*_SECTIONS, "worker."), any(_MODULE.fullmatch(text) for text in texts)
    num_keys = sum(text.lstrip("+~").startswith(tops) and "=" in text for text in texts[1:])
    return (
        num_keys >= (1 if is_module else _MIN_KEYS_OF_OTHER_LAUNCHER)
        and read_override(texts[0]) is None
    )


def _stray_keys(settings: VerlSettings, script: Script, launch: Command, path: str) -> None:
    """Remarks on keys after a comment in a continued command, which the shell does not pass on."""
    for command in script.commands:
        texts = [word.text.lstrip("+~") for word in command.words]
        if command is not launch and texts[0].startswith(_SECTIONS) and "=" in texts[0]:
            keys = ", ".join(text.partition("=")[0] for text in texts)
            settings.remarks.append(
                f"{path}:{command.line}: {keys} are outside of the command that begins on line "
                f"{launch.line}, the shell does not pass them on: fix the continued lines if "
                "they are intended"
            )
