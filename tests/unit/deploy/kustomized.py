"""What kustomize makes of a folder, as far as these manifests use it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
LONG_RUNNING = ("Deployment", "StatefulSet")


def read(folder: Path) -> list[Object]:
    """Its resources and those of the folders it names, with the variables that patches add."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found: list[Object] = []
    for name in kustomization.get("resources", ()):
        place = folder / name
        found += read(place) if place.is_dir() else _objects(place)
    for patch in kustomization.get("patches", ()):
        if "target" not in patch:
            for one in _objects(folder / patch["path"]):
                _add_variables(one, found)
    return found


def built(folder: Path) -> list[Object]:
    """The same by kubectl, whole."""
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return list(yaml.safe_load_all(done.stdout))


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one of that kind and name."""
    (found,) = (one for one in objects if (one["kind"], name_of(one)) == (kind, name))
    return found


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """All of a kind."""
    return [one for one in objects if one["kind"] == kind]


def name_of(one: Object) -> str:
    """What it is called."""
    return str(one["metadata"]["name"])


def workloads(objects: list[Object]) -> list[Object]:
    """All that have pods."""
    return [one for one in objects if "template" in one.get("spec", {})]


def stays(workload: Object) -> bool:
    """Whether its pods are there until somebody removes them."""
    return workload["kind"] in LONG_RUNNING


def labels_of(workload: Object) -> dict[str, str]:
    """Those of its pods."""
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def containers_of(workload: Object) -> list[Object]:
    """Those that run first, and the others."""
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _objects(file: Path) -> Iterator[Object]:
    yield from (one for one in yaml.safe_load_all(file.read_text()) if one)


def _add_variables(patch: Object, objects: list[Object]) -> None:
    changed = named(objects, patch["kind"], name_of(patch))
    own = {container["name"]: container for container in containers_of(changed)}
    for container in patch["spec"]["template"]["spec"]["containers"]:
        own[container["name"]].setdefault("env", []).extend(container.get("env", ()))


def with_component(component: Path, overlay: Path, folder: Path) -> list[Object]:
    """An overlay with the component, as a user names both in a kustomization."""
    folder = folder.resolve()
    back = "/".join([".."] * (len(folder.parts) - 1))
    (folder / "kustomization.yaml").write_text(
        f"resources: [{back}{overlay.resolve()}]\ncomponents: [{back}{component.resolve()}]\n"
    )
    return built(folder)
