"""Checks that a monitor takes its arguments and can be used from this machine."""

import importlib.util
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from trinity.config.monitor import MonitorConfig
from trinity.config.near import did_you_mean
from trinity.errors import UserError

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "wandb": ("base_url", "api_key"),
    "mlflow": ("uri", "username", "password"),
}
OF_ANY = tuple(name for names in ARGUMENTS.values() for name in names)
"""Not read by `tensorboard` and `none`, which a trial may use in place of another monitor."""
WANDB_ADDRESS = "https://api.wandb.ai"
WITHOUT_A_KEY = frozenset({"offline", "disabled", "dryrun", "shared"})
"""Values of WANDB_MODE."""


def check_monitor_args(monitor: MonitorConfig, stage: str) -> None:
    """Checks a monitor's arguments; raises UserError with a line for each wrong one."""
    known = ARGUMENTS.get(monitor.monitor_type, OF_ANY)
    mistakes = [
        f"stage `{stage}`: {wrong}"
        for name, value in monitor.monitor_args.items()
        if (wrong := _mistake(monitor.monitor_type, name, value, known))
    ]
    if mistakes:
        raise UserError("\n".join(mistakes))


def _mistake(monitor: str, name: str, value: object, known: tuple[str, ...]) -> str:
    key = f"`monitor.monitor_args.{name}`"
    if name not in known:
        return f"`{monitor}` has no argument {key}{did_you_mean(name, known)}"
    if value is not None and not isinstance(value, str):
        return f"{key} must be a text"
    return ""


def check_monitor(config: MonitorConfig) -> None:
    """Checks the package and the key; raises UserError if either is missing on this machine."""
    check_package(config)
    if config.monitor_type == "wandb":
        _check_key(config)


def check_package(config: MonitorConfig) -> None:
    """Raises UserError if the monitor's package is not installed; nothing is imported."""
    name = config.monitor_type
    if name in ("wandb", "mlflow") and importlib.util.find_spec(name) is None:
        raise UserError(
            f"`monitor.monitor_type: {name}` needs the package {name}, which is not installed "
            f"here: pip install 'trinity-services[{name}]', or choose another monitor"
        )


def _check_key(config: MonitorConfig) -> None:
    """Requires a key: W&B would ask for it at the terminal, or refuse the run much later."""
    address = config.monitor_args.get("base_url") or os.environ.get("WANDB_BASE_URL")
    has_key = config.monitor_args.get("api_key") or os.environ.get("WANDB_API_KEY")
    if has_key or os.environ.get("WANDB_MODE", "online") in WITHOUT_A_KEY:
        return
    if not _stands_in_netrc(str(address or WANDB_ADDRESS)):
        raise UserError(
            "`monitor.monitor_type: wandb` has no key: set WANDB_API_KEY, or `wandb login`, or "
            "set WANDB_MODE=offline to keep the runs in files that `wandb sync` sends later"
        )


def _stands_in_netrc(address: str) -> bool:
    file = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        return netrc.netrc(file).authenticators(urlsplit(address).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
