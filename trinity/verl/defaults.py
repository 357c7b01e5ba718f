"""Lays the defaults of the veRL that a script was written for below its settings."""

import re

from trinity.verl.checkout import Checkout, YamlDefault, find_checkout
from trinity.verl.key_table import find_row
from trinity.verl.releases import (
    CHANGED,
    IN_REWARD,
    KL_LOSS,
    NEWEST,
    RELEASES,
    Default,
    Release,
    kept_defaults,
    name_of,
    oldest_with,
    parse_release,
)
from trinity.verl.settings import CONFIG_FILE, VerlSetting, VerlSettings, is_verl_default
from trinity.verl.values import JsonValue

_CLIP_RATIO = "actor_rollout_ref.actor.clip_ratio"
_CLIP_BOUNDS = (f"{_CLIP_RATIO}_low", f"{_CLIP_RATIO}_high")
_SECTIONS = ("algorithm.", "data.", "actor_rollout_ref.", "critic.")
_OF_SOME_RELEASE = re.compile(
    r"_target_$|\.(skip|layer_name_map|kl_ctrl|continuous_token)\.|rollout_is_\w+$"
    r"|\.(load_weight|nccl_timeout|data_loader_seed|skip_dump_dir|audio_key|qat|loss_scale_factor"
    r"|max_inflight_gen_batches)$"
)
"""veRL keys that only some releases have and that do not affect training."""
_NOT_SAID: tuple[JsonValue, ...] = (None, False, 0, "", [], {}, -1)
_MOST_NAMED = 12


def apply_defaults(
    settings: VerlSettings, version: str | None = None, checkout: Checkout | None = None
) -> Checkout | None:
    """Sets keys that the sources leave out and that were not always as they are today.

    They are those of `version`, else of the checkout, else of the one around the first source,
    else of today. Returns the checkout that was read.
    """
    if settings.dialect:
        settings.remarks.append(f"defaults are those of {settings.dialect}")
        settings.fill_in_references()
        return None
    if version is not None:
        checkout = None
    elif checkout is None and settings.path is not None:
        checkout = find_checkout(settings.path)
    rows: tuple[Default, ...] = (*CHANGED, *kept_defaults())
    if settings.is_supervised:
        is_older = settings.module.endswith("fsdp_sft_trainer")
        rows = kept_defaults(supervised=True) if is_older else ()
    if checkout is not None:
        _apply_checkout(settings, checkout, rows)
    elif version is not None:
        release = parse_release(version)
        settings.remarks.append(f"defaults are those of veRL {name_of(release)} (--verl-version)")
        for row in rows:
            if _is_relevant(settings, row):
                where = f"veRL {name_of(release)}"
                _lay(settings, row, row.at(release), where, is_unread=row.is_unread(release))
    else:
        _advise(settings, rows)
    settings.fill_in_references()
    return checkout


def _apply_checkout(settings: VerlSettings, checkout: Checkout, rows: tuple[Default, ...]) -> None:
    release = checkout.release or NEWEST
    found = _configured(settings, checkout)
    version = f"veRL {name_of(release)}"
    settings.remarks.append(
        f"defaults are those of {version} in {checkout.folder}: its configuration and code are "
        "read, not run"
    )
    for row in rows:
        if not _is_relevant(settings, row):
            continue
        is_unread = _is_unread(row, checkout, release)
        yaml_default = found.get(row.key)
        if is_unread or yaml_default is None:
            value = row.at(RELEASES[0]) if is_unread else row.at(release)
            _lay(settings, row, value, version, is_unread=is_unread)
        elif not (row.key.startswith("critic.") and "${" in str(yaml_default.value)):
            _lay(settings, row, yaml_default.value, yaml_default.where)
    if not settings.is_supervised:
        _advise_on_own_keys(settings, checkout, found)


def _is_unread(row: Default, checkout: Checkout, release: Release) -> bool:
    """True if the code does not read a key; without code, if that of the release did not."""
    if not checkout.code:
        return row.is_unread(release)
    return row.unread is not None and not checkout.reads(row.key.rpartition(".")[2], row.file)


def _advise_on_own_keys(
    settings: VerlSettings, checkout: Checkout, found: dict[str, YamlDefault]
) -> None:
    """Points out keys of the configuration that a project has added to veRL's."""
    own = [
        key
        for key, default in found.items()
        if default.value not in _NOT_SAID
        and key.startswith(_SECTIONS)
        and not _OF_SOME_RELEASE.search(key)
        and not settings.has(key)
        and find_row(key) is None
    ]
    if own:
        more = f" and {len(own) - _MOST_NAMED} more" if len(own) > _MOST_NAMED else ""
        settings.advice.append(
            f"the configuration in {checkout.folder} sets keys that veRL does not have: "
            f"{', '.join(own[:_MOST_NAMED])}{more}: check whether they affect training"
        )


def _configured(settings: VerlSettings, checkout: Checkout) -> dict[str, YamlDefault]:
    """The values of the configuration that the script starts with."""
    if settings.is_supervised:
        return checkout.defaults("sft_trainer")
    own = settings.peek(CONFIG_FILE)
    if own is not None:
        return {
            key: default
            for name in settings.included
            for key, default in checkout.defaults(name).items()
        }
    name = str(settings.peek("hydra.config_name") or "ppo_trainer")
    return checkout.defaults(name if is_verl_default(name) else "ppo_trainer")


def _is_relevant(settings: VerlSettings, row: Default) -> bool:
    """False for keys that only FSDP once left unread, where another back end trains."""
    back_end = (
        f"{settings.peek('actor_rollout_ref.actor.strategy')} {settings.peek('hydra.config_name')}"
    )
    return not (row.is_fsdp and "megatron" in back_end)


def _lay(
    settings: VerlSettings, row: Default, value: JsonValue, where: str, *, is_unread: bool = False
) -> None:
    """Sets the key unless the sources do, or it is as today; one that no code reads is replaced."""
    given = settings.peek(row.key)
    is_given = settings.has(row.key) and given is not None
    if row.key == IN_REWARD and value is True and is_unread:
        value = settings.peek(KL_LOSS) is not True
    if is_given and (not is_unread or _is_same(given, value)):
        return
    if not is_given and (_is_same(value, row.newest) or (value is None and not row.effect)):
        return
    if is_unread:
        where += "'s code, which does not read it:" if is_given else "'s code:"
    settings.put(VerlSetting(key=row.key, value=value, where=where))


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _advise(settings: VerlSettings, rows: tuple[Default, ...]) -> None:
    """Says which version is assumed, and which settings of this script hang on it."""
    oldest = oldest_with({setting.key for setting in settings.all()})
    others = [text for row in rows if (text := _difference(settings, row, oldest))]
    assumed = f"defaults are those of veRL {name_of(NEWEST)}, as no veRL stands with the script"
    if others:
        settings.advice.append(
            f"{assumed}: give --verl-version if it was written for an older one, in which "
            f"{'; '.join(others)}"
        )
    else:
        settings.remarks.append(f"{assumed}; no older one has others for its keys")


def _difference(settings: VerlSettings, row: Default, oldest: Release) -> str:
    """Describes the default of older releases and the last of them; empty if it did not change."""
    given = settings.peek(row.key)
    if row.key in _CLIP_BOUNDS and settings.peek(_CLIP_RATIO) in (None, 0.2):
        return ""
    if row.key == IN_REWARD and settings.peek(KL_LOSS) is True:
        return ""
    if not _is_relevant(settings, row):
        return ""
    others = [
        release
        for release in RELEASES
        if release >= oldest and not _is_same(_acting(row, release, given), given or row.newest)
    ]
    if not others:
        return ""
    last = name_of(others[-1])
    return f"{row.key} is {_acting(row, others[-1], given)} until {last} ({row.effect})"


def _acting(row: Default, release: Release, given: JsonValue) -> JsonValue:
    if given is None or row.is_unread(release):
        return row.at(release)
    return given
