"""The embedded broker: its configuration, its process and a check that both agree."""

import asyncio
import http.client
import json
import shutil
import signal
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from trinity.errors import RunFailed, UserError
from trinity.run.local import binaries
from trinity.run.local.addresses import LOOPBACK
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.process.child_process import OWN_IDENTITY
from trinity.runtime.security.broker import (
    ADMIN,
    BrokerUser,
    authorization_block,
    buffer_user,
    explorer_user,
    tls_block,
)
from trinity.runtime.security.credentials import PLAINTEXT, Credentials
from trinity.runtime.security.secret_files import SecretFiles, write_private

NATS_USERS = (ADMIN, "buffer", "explorer")
_SYNC_INTERVAL = "100ms"
_SYNC_INTERVAL_NANOSECONDS = 100_000_000
_MAX_PAYLOAD = "8MB"
_STORE_BYTES_LIMIT = 20 * 2**30
_STORE_BYTES_NEEDED = 256 * 2**20
_ROOM_AGAIN_BYTES = 64 * 2**20

# Durations are quoted: the server reads a bare 2m as two million seconds.
_CONFIG = """\
host: {host}
port: {port}
http: "127.0.0.1:{monitor_port}"
max_payload: {max_payload}
max_pending: 64MB
jetstream {{
  store_dir: {store}
  sync_interval: "{sync_interval}"
  max_file_store: {max_file_store}
  max_memory_store: 256MB
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsServer:
    """A nats-server with JetStream whose data is in `folder`; user `admin` may do everything."""

    folder: Path
    secrets: SecretFiles
    port: int
    monitor_port: int
    security: Credentials = PLAINTEXT
    host: str = LOOPBACK

    def prepare_process(self, log_file: Path) -> ProcessSpec:
        """Writes the configuration and returns the process to start."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        config = self.folder / "nats.conf"
        write_private(config, self._config())
        argv = [str(binaries.nats_server()), "-c", str(config)]
        return ProcessSpec(
            name="nats",
            argv=OWN_IDENTITY.command(argv, death_signal=signal.SIGKILL),
            log_file=log_file,
            stop_grace_seconds=5.0,
        )

    def url(self, user: str) -> str:
        password = self.secrets.password(f"nats-{user}")
        scheme = "tls" if self.security.is_on else "nats"
        return f"{scheme}://{user}:{password}@{self.host}:{self.port}"

    async def wait_ready(self, timeout_seconds: float = 30.0) -> None:
        """Returns when JetStream answers and syncs to disk at the configured interval."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while not await asyncio.to_thread(self._is_healthy):
            if asyncio.get_running_loop().time() > deadline:
                raise RunFailed(f"The broker did not answer within {timeout_seconds:.0f} s")
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self._check_sync_interval)

    def is_refusing(self) -> bool:
        """Returns true if it goes on failing to store although the disk has room again.

        A write that failed once fails all later ones, and their senders get no answer.
        """
        try:
            self._monitor("healthz")
        except urllib.error.HTTPError as error:
            has_room = shutil.disk_usage(self.folder).free > _ROOM_AGAIN_BYTES
            return has_room and b"write error" in error.read()
        except (OSError, http.client.HTTPException):
            return False
        return False

    def _config(self) -> str:
        settings = _CONFIG.format(
            host=self.host,
            port=self.port,
            monitor_port=self.monitor_port,
            max_payload=_MAX_PAYLOAD,
            store=json.dumps(str(self.folder), ensure_ascii=False),
            sync_interval=_SYNC_INTERVAL,
            max_file_store=_store_bytes(self.folder),
        )
        return settings + authorization_block(self._users()) + tls_block(self.security)

    def _users(self) -> list[BrokerUser]:
        admin, buffer, explorer = (self.secrets.password(f"nats-{name}") for name in NATS_USERS)
        return [
            BrokerUser(name=ADMIN, password=admin),
            buffer_user(buffer),
            explorer_user(explorer),
        ]

    def _is_healthy(self) -> bool:
        try:
            self._monitor("healthz?js-enabled-only=true")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def _check_sync_interval(self) -> None:
        config = json.loads(self._monitor("jsz"))["config"]
        actual = config.get("sync_interval")
        if actual != _SYNC_INTERVAL_NANOSECONDS or config.get("sync_always", False):
            raise RunFailed(f"The broker syncs every {actual} ns, configured is {_SYNC_INTERVAL}")

    def _monitor(self, page: str) -> bytes:
        # The user's proxy settings must not apply to loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        address = f"http://127.0.0.1:{self.monitor_port}/{page}"
        with opener.open(address, timeout=2.0) as response:
            content: bytes = response.read()
        return content


def _store_bytes(folder: Path) -> int:
    """Returns the store's limit: its size plus half of the free disk, up to a fixed limit."""
    held = sum(path.stat().st_size for path in folder.rglob("*.blk"))
    available = held + shutil.disk_usage(folder).free // 2
    if available < _STORE_BYTES_NEEDED:
        raise UserError(
            f"The disk of {folder} has too little room for the broker: "
            f"free at least {2 * _STORE_BYTES_NEEDED // 2**20} MiB or choose another "
            f"checkpoint_root_dir"
        )
    return min(available, _STORE_BYTES_LIMIT)
