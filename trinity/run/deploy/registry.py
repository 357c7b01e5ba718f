"""Digests of images, asked of their registries. Needs no package: it runs before any is there."""

import hashlib
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPMessage
from pathlib import Path

HUB = "https://registry-1.docker.io"
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
"""Of all platforms."""
MANIFESTS = (
    *INDEXES,
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Or of one."""
SECONDS = 30.0


def index_digest(image: str, hub: str = HUB) -> str:
    """Returns the digest of an image for all platforms, computed from what was answered.

    Raises: ValueError, with the reason.
    """
    registry, path = _place_of(image, hub)
    body, _ = _answer(image, registry, path, "GET", INDEXES)
    if "manifests" not in json.loads(body):
        raise ValueError(f"`{image}`: {registry} answers with no index of platforms")
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def image_digest(image: str, hub: str = HUB) -> str:
    """Returns the digest that the registry names for a tag, without fetching anything.

    Raises: ValueError, with the reason.
    """
    registry, path = _place_of(image, hub)
    _, headers = _answer(image, registry, path, "HEAD", MANIFESTS)
    digest = headers.get("Docker-Content-Digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"`{image}`: {registry} names no digest (`Docker-Content-Digest`)")
    return digest


def without_digest(image: str) -> str:
    """Returns the image's name with its tag."""
    return image.partition("@")[0]


def _place_of(image: str, hub: str) -> tuple[str, str]:
    """Returns the registry, and the path of the manifest there, as Docker reads a name."""
    name, _, tag = without_digest(image).rpartition(":")
    if not name or "/" in tag:
        raise ValueError(f"`{image}` has no tag")
    host, slash, rest = name.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        is_local = host.partition(":")[0] in ("localhost", "127.0.0.1")
        return f"{'http' if is_local else 'https'}://{host}", f"/v2/{rest}/manifests/{tag}"
    return hub.rstrip("/"), f"/v2/{name if slash else f'library/{name}'}/manifests/{tag}"


def _answer(
    image: str, registry: str, path: str, method: str, accepted: tuple[str, ...]
) -> tuple[bytes, HTTPMessage]:
    """Returns body and headers of a manifest, with Docker's login or a token that anyone gets."""
    headers = {"Accept": ", ".join(accepted)}
    login = _login(urllib.parse.urlsplit(registry).netloc)
    try:
        try:
            return _ask(registry + path, headers, method)
        except urllib.error.HTTPError as refusal:
            challenge = refusal.headers.get("WWW-Authenticate", "")
            if refusal.code != 401 or not (login or challenge.startswith("Bearer ")):
                raise
        is_token = challenge.startswith("Bearer ")
        headers["Authorization"] = _token(challenge, login) if is_token else login
        return _ask(registry + path, headers, method)
    except OSError as error:  # an answer that is a refusal is one too
        raise ValueError(f"`{image}`: {registry} does not give it: {error}") from None


def _login(host: str) -> str:
    """Returns the header of `docker login` at a registry, if Docker keeps it in its own file."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        known = json.loads((folder / "config.json").read_text(encoding="utf-8"))["auths"][host]
        return f"Basic {known['auth']}"
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return ""


def _token(challenge: str, login: str) -> str:
    """Returns the header with a token for reading."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    url = f"{fields.pop('realm')}?{urllib.parse.urlencode(fields)}"
    body, _ = _ask(url, {"Authorization": login} if login else {}, "GET")
    answer = json.loads(body)
    return f"Bearer {answer.get('token') or answer['access_token']}"


def _ask(url: str, headers: dict[str, str], method: str) -> tuple[bytes, HTTPMessage]:
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read(), answer.headers
    except urllib.error.HTTPError as refusal:
        refusal.close()
        raise
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from error  # its own text is `<urlopen error ...>`
