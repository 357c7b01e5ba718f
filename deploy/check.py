"""Compose files against their schema, Nomad jobs against HCL's grammar: for deploy/check.sh."""

import json
import sys
from pathlib import Path

import hcl2
import jsonschema
import yaml


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
    main(*map(Path, sys.argv[1:]))
