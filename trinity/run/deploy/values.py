"""The values of a deployment: `values.yaml` in its folder, which no rendering changes."""

import re
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from pydantic_core import ErrorDetails

from trinity.config.schema.base import redact_secrets
from trinity.errors import UserError
from trinity.runtime.shipped import shipped

NAME = "values.yaml"
UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
Service = Annotated[str, Field(pattern="^(synchronizer|buffer|trainer|explorer)$")]
Image = Annotated[str, Field(pattern="^(synchronizer|buffer|trainer|explorer|studio)$")]
Claim = Annotated[str, Field(pattern="^(shared|cache|postgres|nats)$")]
Quantity = Annotated[str, Field(pattern=r"^[1-9]\d*(Mi|Gi|Ti)$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Endpoint = Annotated[str, Field(pattern=r"^(https?://[^\s/@:]+(:\d{1,5})?(/[^\s@]*)?)?$")]


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServiceValues(_Values):
    """Sizes of each process of a service in place of the plan's, and where Kubernetes puts it."""

    memory: Quantity | None = None
    shm: Quantity | None = None
    cpus: PositiveInt | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, str | int], ...] = ()
    runtime_class: str = ""
    priority_class: str = ""


class ClaimValues(_Values):
    """A volume claim of Kubernetes."""

    size: Quantity | None = None
    storage_class: str = ""


class DeploymentValues(_Values):
    """The content of the file; each key is explained in the one that the first rendering writes."""

    registry: str = ""
    tag: str = "0.1.0"
    digests: dict[Image, Digest] = {}
    otlp_endpoint: Endpoint = ""
    environment: str = ""
    root: Annotated[str, Field(pattern="^(/[^/$]+)+$")] = "/trinity"
    pull_secrets: tuple[str, ...] = ()
    services: dict[Service, ServiceValues] = {}
    claims: dict[Claim, ClaimValues] = {}

    def service(self, name: str) -> ServiceValues:
        """Returns the values of a service."""
        return self.services.get(name, ServiceValues())

    def claim(self, name: str) -> ClaimValues:
        """Returns the values of a claim."""
        return self.claims.get(name, ClaimValues())


def num_bytes(quantity: str) -> int:
    """Returns the bytes of a quantity such as 64Gi."""
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def read_values(folder: Path) -> DeploymentValues:
    """Reads the values of a rendering; the defaults where it has no such file.

    Raises: UserError that names the file and the key.
    """
    file = folder / NAME
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
        return DeploymentValues.model_validate({} if found is None else found)
    except (FileNotFoundError, NotADirectoryError):
        return DeploymentValues()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} is no YAML ({reason}): correct it there") from error
    except ValidationError as error:
        found_wrong = "; ".join(dict.fromkeys(map(_problem, error.errors(include_url=False))))
        raise UserError(
            f"{file}: {found_wrong}: correct it, or remove the file and render again for one that "
            "explains its keys"
        ) from error


def _problem(details: ErrorDetails) -> str:
    place = details["loc"]
    is_unknown = details["type"] == "extra_forbidden" or place[-1:] == ("[key]",)
    key = ".".join(str(part) for part in place if part != "[key]") or "its content"
    return f"there is no key `{key}`" if is_unknown else f"`{key}` is wrong ({details['msg']})"


def write_values(folder: Path) -> None:
    """Writes the file with all keys explained and none set, unless there is one."""
    if not (folder / NAME).exists():
        text = (shipped("deploy") / "templates" / NAME).read_text(encoding="utf-8")
        (folder / NAME).write_text(text, encoding="utf-8")


def write_digests(folder: Path, digests: dict[str, str]) -> None:
    """Replaces the key `digests` of the file, and leaves all else as it is."""
    write_values(folder)
    text = (folder / NAME).read_text(encoding="utf-8")
    kept = re.sub(r"^digests:.*\n(?:[ \t]+.*\n|\n)*", "", f"{text.rstrip()}\n", flags=re.MULTILINE)
    lines = "".join(f"  {service}: {digest}\n" for service, digest in digests.items())
    (folder / NAME).write_text(f"{kept.rstrip()}\n\ndigests:\n{lines}", encoding="utf-8")


def secret_key_in(value: object, key: str = "") -> str:
    """Returns the dotted key of a secret value, or an empty text."""
    if isinstance(value, dict):
        return next(
            (k for n, v in value.items() if (k := secret_key_in(v, f"{key}.{n}".strip(".")))), ""
        )
    if isinstance(value, list | tuple):
        return next((k for v in value if (k := secret_key_in(v, key))), "")
    return key if redact_secrets(key, value) != value else ""
