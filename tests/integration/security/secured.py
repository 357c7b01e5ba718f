"""A stack with everything on, the credentials of many callers, and the calls that they try."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
from pydantic import JsonValue

from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.run.launch.resume import store_plan
from trinity.run.local.addresses import SERVICES
from trinity.run.local.stack import LocalStack
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import AUTHORITY, CERTIFICATE, KEY
from trinity.runtime.security.tokens import issue_token

RUN_SECONDS = 120
CALL_SECONDS = 10.0
HOUR = timedelta(hours=1)
STEPS = 4
JUDGE_KEY = "a key that the plan holds"
SERVICE_OF = {
    "SynchronizerService": "synchronizer",
    "BufferService": "buffer",
    "QueryService": "buffer",
    "TasksetService": "buffer",
    "ExplorerService": "explorer",
    "TrainerService": "trainer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How a call ended."""

    code: grpc.StatusCode
    details: str


@dataclass(slots=True, kw_only=True)
class Secured:
    """A running stack in which one experiment of the tenant `default` has ended."""

    stack: LocalStack
    job_dir: Path
    ended: pb.Experiment

    @property
    def security_root(self) -> Path:
        return self.job_dir / "infra" / "security"

    def token(
        self,
        *,
        tenant: str = "default",
        scopes: Iterable[Scope] = tuple(Scope),
        lifetime: timedelta = HOUR,
        issuer: CredentialIssuer | None = None,
    ) -> str:
        """A token that the stack knows, or a stranger's."""
        key = (issuer or CredentialIssuer(self.security_root)).signing_key
        return issue_token(key, subject="tester", tenant=tenant, scopes=scopes, lifetime=lifetime)

    def certificate(self) -> dict[str, bytes]:
        """Files of a client that the stack trusts."""
        folder = self.security_root / "operator"
        return {name: (folder / name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY)}

    def strangers_certificate(self, folder: Path) -> dict[str, bytes]:
        """Files of another authority, which trusts this one."""
        issued = CredentialIssuer(folder).issue(CredentialRole(name="operator"), HOUR)
        files = {name: (issued / name).read_bytes() for name in (CERTIFICATE, KEY)}
        return files | {AUTHORITY: self.certificate()[AUTHORITY]}

    def address_of(self, method: str) -> str:
        """Of the service that serves a method."""
        service = SERVICE_OF[method.partition("/")[0].rpartition(".")[2]]
        return str(getattr(self.stack.addresses, service))

    def log_of(self, service: str) -> str:
        return (self.job_dir / "log" / f"{service}.log").read_text()

    async def logged(self, service: str, *words: str) -> str:
        """The first line of its log with all of these words, once it is there."""
        async with asyncio.timeout(CALL_SECONDS):
            while True:
                for line in self.log_of(service).splitlines():
                    if all(word in line for word in words):
                        return line
                await asyncio.sleep(0.1)

    async def call(
        self,
        method: str,
        request: bytes = b"",
        *,
        token: str | None = None,
        files: dict[str, bytes] | None = None,
    ) -> Refusal | bytes:
        """Make a call with these credentials; the answer, or the first of a stream, as bytes."""
        async with self.channel(self.address_of(method), files or self.certificate()) as channel:
            return await answer_of(channel, method, request, bearer(token))

    @contextlib.asynccontextmanager
    async def channel(
        self, address: str, files: dict[str, bytes]
    ) -> AsyncIterator[grpc.aio.Channel]:
        """With a certificate and without a token."""
        credentials = grpc.ssl_channel_credentials(
            files[AUTHORITY], files.get(KEY), files.get(CERTIFICATE)
        )
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            yield channel


def bearer(token: str | None) -> Sequence[tuple[str, str]]:
    return () if token is None else (("authorization", f"Bearer {token}"),)


async def answer_of(
    channel: grpc.aio.Channel,
    method: str,
    request: bytes,
    metadata: Sequence[tuple[str, str]],
) -> Refusal | bytes:
    """On the wire one message and a first answer look the same whatever kind of call it is."""
    stream = channel.unary_stream(f"/{method}")(request, metadata=metadata, timeout=CALL_SECONDS)
    try:
        async for answer in stream:
            stream.cancel()
            return bytes(answer)
    except grpc.aio.AioRpcError as error:
        return Refusal(code=error.code(), details=error.details() or "")
    return b""


@contextlib.asynccontextmanager
async def secured_stack(root: Path) -> AsyncIterator[Secured]:
    """Start it, run an experiment to its end, and leave it running."""
    tasks: Mapping[str, JsonValue] = {
        "default_reward_fn_type": "tests.support.model_free.keyed.KeyedReward",
        "taskset": {"reward_fn_args": {"judge_api_key": JUDGE_KEY}},
    }
    plan = experiment_plan(root, buffer={"total_steps": STEPS, "explorer_input": {**tasks}})
    plan.job_path.mkdir(parents=True)
    store_plan(plan)
    async with model_free_stack(plan.job_path, secure=True, max_restarts=0) as stack:
        at = stack.addresses
        async with asyncio.timeout(RUN_SECONDS):
            ended = await run_to_end(at.synchronizer, plan, at.security)
        yield Secured(stack=stack, job_dir=plan.job_path, ended=ended)


assert set(SERVICE_OF.values()) == set(SERVICES)
