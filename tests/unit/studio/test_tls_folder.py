"""`trinity studio --tls-folder`: TLS for browsers beside services that have none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from trinity.cli.studio import studio
from trinity.errors import UserError
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import VARIABLE, Credentials
from trinity.studio.context import StudioOptions
from trinity.studio.listening import Listening


def beyond_loopback(tls_folder: Path | None, *, allow_changes: bool = False) -> None:
    """Studio for other machines, beside services that have no certificates."""
    studio(
        host="0.0.0.0",
        port=0,
        buffer="127.0.0.1:50052",
        synchronizer="127.0.0.1:50051",
        tls_folder=tls_folder,
        allow_changes=allow_changes,
    )


@dataclass(slots=True)
class Started:
    """What would have been served."""

    options: list[StudioOptions] = field(default_factory=list)
    listening: list[Listening] = field(default_factory=list)
    security: list[Credentials] = field(default_factory=list)

    def serve(
        self, options: StudioOptions, listening: Listening, *, security: Credentials, say: object
    ) -> None:
        self.options.append(options)
        self.listening.append(listening)
        self.security.append(security)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.delenv(VARIABLE, raising=False)
    found = Started()
    monkeypatch.setattr("trinity.studio.server.serve", found.serve)
    yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    role = CredentialRole(name="studio", scopes=(), hosts=("studio.example.org",))
    return CredentialIssuer(tmp_path).issue(role, timedelta(hours=1))


def test_browsers_get_its_certificate_and_services_are_called_in_plaintext(
    started: Started, folder: Path
) -> None:
    beyond_loopback(folder)
    (listening,), (security,), (options,) = started.listening, started.security, started.options
    assert listening.certificate == folder / "tls.crt"
    assert security.folder == folder, "its keys decide whose tokens let in"
    assert options.system is not None
    assert not options.system.security.is_on


def test_it_leaves_the_credentials_of_calls_as_they_are(
    started: Started, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "calls"))
    studio(host="0.0.0.0", port=0, tls_folder=folder, buffer="far:1", synchronizer="far:2")
    (options,), (listening,) = started.options, started.listening
    assert options.system is not None
    assert options.system.security.folder == tmp_path / "calls"
    assert listening.certificate == folder / "tls.crt"


def test_services_beyond_loopback_still_need_credentials(started: Started, folder: Path) -> None:
    with pytest.raises(UserError, match="refusing to speak to far:1 without TLS and a token"):
        studio(host="0.0.0.0", tls_folder=folder, buffer="far:1", synchronizer="far:2")
    assert not started.options


def test_what_does_not_go_together_is_named(started: Started, folder: Path) -> None:
    with pytest.raises(UserError, match="--tls-folder is for other machines"):
        studio(tls_folder=folder)
    with pytest.raises(UserError, match="--allow-changes needs services that check tokens"):
        beyond_loopback(folder, allow_changes=True)
    with pytest.raises(UserError, match="or give one as --tls-folder"):
        beyond_loopback(None)
    with pytest.raises(UserError, match=r"tls\.crt is missing"):
        beyond_loopback(folder.parent)
    assert not started.options
