"""Who needs to reach whom among the pods of a rendering, and whom network policies let through."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.unit.deploy.kustomized import (
    Object,
    containers_of,
    labels_of,
    name_of,
    of_kind,
    workloads,
)

SECRETS = {"_DSN_FILE": ("postgres", 5432), "_NATS_URL_FILE": ("nats", 4222)}
"""Addresses that stand in secret files, by the ends of the variables that name those: what
`trinity deploy secrets` is given in docs/operations.md."""
PLACE = re.compile(r"[a-z][a-z0-9.-]*:\d+")


PEERS: Mapping[str, str] = {"egress": "to", "ingress": "from"}


@dataclass(frozen=True, slots=True)
class Connection:
    """From the pods of a workload to a host."""

    source: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Network:
    """The objects of a rendering, as far as connections go."""

    objects: list[Object]

    def wanted(self) -> set[Connection]:
        """What the variables and arguments of all pods name."""
        return {
            Connection(name_of(one), host, port)
            for one in workloads(self.objects)
            for container in containers_of(one)
            for host, port in _named_by(container)
        }

    def allows(self, wanted: Connection) -> bool:
        """Whether the source may open it, and the target, where it is one of ours, take it."""
        (source,) = (one for one in workloads(self.objects) if name_of(one) == wanted.source)
        targets = self._behind(wanted)
        if targets is None:
            return self._lets("egress", labels_of(source), None, wanted.port)
        return bool(targets) and all(
            self._lets("egress", labels_of(source), labels, port)
            and self._lets("ingress", labels, labels_of(source), port)
            for labels, port in targets
        )

    def without(self, policy: str) -> "Network":
        """The same without one of its policies."""
        return Network(
            [
                one
                for one in self.objects
                if (one["kind"], name_of(one)) != ("NetworkPolicy", policy)
            ]
        )

    def _behind(self, wanted: Connection) -> list[tuple[dict[str, str], int]] | None:
        """Labels of the pods behind a Service, with their own port; None for others' hosts."""
        services = {name_of(one): one["spec"] for one in of_kind(self.objects, "Service")}
        if wanted.host not in services:
            return None
        service = services[wanted.host]
        (target,) = (one["targetPort"] for one in service["ports"] if one["port"] == wanted.port)
        return [
            (labels_of(one), port["containerPort"])
            for one in workloads(self.objects)
            if service["selector"].items() <= labels_of(one).items()
            for container in containers_of(one)
            for port in container.get("ports", ())
            if port["name"] == target
        ]

    def _lets(
        self, way: str, subject: dict[str, str], peer: dict[str, str] | None, port: int
    ) -> bool:
        """Whether a policy of the subject's has a rule for the peer and the port."""
        return any(
            _takes(rule.get("ports"), port) and _meets(rule.get(PEERS[way]), peer)
            for policy in of_kind(self.objects, "NetworkPolicy")
            if way.capitalize() in policy["spec"]["policyTypes"]
            and selects(policy["spec"]["podSelector"], subject)
            for rule in policy["spec"].get(way, ())
        )


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether pods with these labels are meant."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        one["operator"] == "In" and labels.get(one["key"]) in one["values"]
        for one in selector.get("matchExpressions", ())
    )


def _meets(peers: list[Object] | None, labels: dict[str, str] | None) -> bool:
    """Without peers all are meant; a host that is none of ours is met by a block of addresses."""
    if peers is None:
        return True
    if labels is None:
        return any("ipBlock" in one for one in peers)
    return any(
        "podSelector" in one
        and "namespaceSelector" not in one
        and selects(one["podSelector"], labels)
        for one in peers
    )


def _takes(ports: list[Object] | None, port: int) -> bool:
    return ports is None or {"protocol": "TCP", "port": port} in ports


def _named_by(container: Object) -> Iterator[tuple[str, int]]:
    variables = {one["name"]: str(one.get("value", "")) for one in container.get("env", ())}
    for name in variables:
        yield from (place for end, place in SECRETS.items() if name.endswith(end))
    yield from _places(variables.values())
    yield from _places(one.partition("=")[2] for one in container.get("args", ()))


def _places(values: Iterable[str]) -> Iterator[tuple[str, int]]:
    for value in values:
        parts = urlsplit(value if "//" in value else f"//{value}")
        if PLACE.fullmatch(parts.netloc) and parts.hostname and parts.port:
            yield parts.hostname, parts.port
