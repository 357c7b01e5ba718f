"""Compose files against their schema, Nomad jobs against HCL's grammar, certificates against
cert-manager's models: for deploy/check.sh."""

import json
import sys
from pathlib import Path

import hcl2
import jsonschema
import yaml


def check_certificates(manifests: Path) -> None:
    """Raises where an object of cert-manager has fields that its models do not have."""
    from cloudcoil.models.cert_manager import v1

    objects = [found for found in yaml.safe_load_all(manifests.read_text()) if found]
    ours = [found for found in objects if found["apiVersion"].startswith("cert-manager.io/")]
    for given in ours:
        read = getattr(v1, given["kind"]).model_validate(given)
        assert read.model_dump(by_alias=True, exclude_none=True, mode="json") == given
    sys.stdout.write(f"{manifests}: {len(ours)} objects of cert-manager, valid for 1.17\n")


def main(schema: Path, compose: Path, nomad: Path) -> None:
    """Raises where a file is not of its form."""
    validator = jsonschema.Draft7Validator(json.loads(schema.read_text()))
    for name in ("compose.yaml", "compose.override.yaml", "compose.studio.yaml"):
        validator.validate(yaml.safe_load((compose / name).read_text()))
    sys.stdout.write(f"{compose}: of the compose specification\n")
    given = json.loads((nomad / "experiment.vars.json").read_text())
    for file in sorted((nomad / "nomad").glob("*.hcl")):
        with file.open() as stream:
            variables = {
                name.strip('"') for block in hcl2.load(stream)["variable"] for name in block
            }
        assert given.keys() <= variables, f"{file} declares no {given.keys() - variables}"
    sys.stdout.write(f"{nomad}: HCL that declares every variable it is given\n")


if __name__ == "__main__":
    if sys.argv[1] == "certificates":
        check_certificates(Path(sys.argv[2]))
    else:
        main(*map(Path, sys.argv[1:]))
