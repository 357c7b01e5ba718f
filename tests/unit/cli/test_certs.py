"""`trinity certs` and `trinity token` make what services and people need, for their owner only."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from trinity.cli.main import make_app
from trinity.errors import UserError
from trinity.runtime.security.certificates import PARTS
from trinity.runtime.security.tokens import TokenKeys


def trinity(*words: str) -> str:
    outcome = CliRunner().invoke(make_app(words), list(words), catch_exceptions=True)
    if isinstance(outcome.exception, Exception):
        raise outcome.exception
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_each_part_gets_a_folder_that_only_its_owner_reads(tmp_path: Path) -> None:
    said = trinity(
        "certs", str(tmp_path / "made"), "--host", "buffer=buffer.example", "--days", "2"
    )
    for part in PARTS:
        folder = tmp_path / "made" / part
        assert f"TRINITY_SECURITY_DIR={folder}" in said
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    certificate = x509.load_pem_x509_certificate((tmp_path / "made/buffer/tls.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"buffer", "localhost", "buffer.example"} == set(names.get_values_for_type(x509.DNSName))
    assert not (tmp_path / "made/nats/token").exists()


def test_a_second_time_the_authority_goes_on(tmp_path: Path) -> None:
    trinity("certs", str(tmp_path))
    before = (tmp_path / "buffer" / "ca.crt").read_bytes()
    token = (tmp_path / "operator" / "token").read_text()
    trinity("certs", str(tmp_path), "--tenant", "a")
    assert (tmp_path / "buffer" / "ca.crt").read_bytes() == before
    keys = TokenKeys(tmp_path / "buffer" / "token-keys.pem")
    assert keys.caller_of(token).tenant == "*"
    assert keys.caller_of((tmp_path / "explorer" / "token").read_text()).tenant == "a"


def test_one_further_part_leaves_the_others_alone(tmp_path: Path) -> None:
    trinity("certs", str(tmp_path))
    before = (tmp_path / "buffer" / "token").read_text()
    trinity("certs", str(tmp_path), "--name", "explorer-b", "--role", "explorer", "--tenant", "b")
    keys = TokenKeys(tmp_path / "buffer" / "token-keys.pem")
    caller = keys.caller_of((tmp_path / "explorer-b" / "token").read_text())
    assert (caller.subject, caller.tenant) == ("explorer-b", "b")
    assert (tmp_path / "buffer" / "token").read_text() == before


@pytest.mark.parametrize(
    "words", [("--host", "buffer"), ("--host", "x=y"), ("--name", "x", "--role", "king")]
)
def test_a_mistake_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--host|--role"):
        trinity("certs", str(tmp_path), *words)


def test_a_token_is_printed_or_written(tmp_path: Path) -> None:
    trinity("certs", str(tmp_path))
    key = str(tmp_path / "authority" / "token-signing.key")
    words = ["token", "--signing-key", key, "--subject", "eve", "--tenant", "a", "--scope", "read"]
    keys = TokenKeys(tmp_path / "buffer" / "token-keys.pem")
    assert keys.caller_of(trinity(*words).strip()).subject == "eve"
    said = trinity(*words, "-o", str(tmp_path / "token"))
    token = (tmp_path / "token").read_text()
    assert token not in said
    assert keys.caller_of(token).subject == "eve"
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
