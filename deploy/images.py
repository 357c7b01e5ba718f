"""Lists the public images that the manifests of this folder name, and pins them by digest.

    python deploy/images.py          # names each image without a digest; 1 if there are any
    python deploy/images.py --pin    # asks the registries and writes the digests of today's images

A digest stands behind its tag, as in `postgres:18@sha256:...`. It says which files are run; the tag
only says to a reader what they are. Needs no package, so it runs before anything is installed.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent
sys.path.insert(0, str(DEPLOY.parent))  # the project may not be installed

from trinity.run.deploy.registry import HUB, index_digest, without_digest  # noqa: E402

OURS = "trinity-"
"""Images that are built from this repository have no digest before they are built."""
NAMED = {
    ".Dockerfile": re.compile(r"^FROM (?P<image>\S+)", re.MULTILINE),
    ".yaml": re.compile(r"^\s*(?:- )?image: *[\"']?(?P<image>[^\s\"']+)", re.MULTILINE),
    ".hcl": re.compile(r"^\s*image\s*=\s*\"(?P<image>[^\"]+)\"", re.MULTILINE),
}
VARIABLE = re.compile(r"^\$\{\w+:-")
"""Before an image that compose may be told by a variable."""
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def main() -> int:
    """Lists or pins the images, and returns the exit code."""
    parser = argparse.ArgumentParser(description="Lists public images, and pins them by digest.")
    parser.add_argument("--pin", action="store_true", help="ask the registries for digests")
    parser.add_argument("--hub", default=HUB, help="Docker Hub, or a mirror of it")
    parser.add_argument("--folder", type=Path, default=DEPLOY, help="where the manifests are")
    options = parser.parse_args()
    if options.pin:
        return pin(options.folder, options.hub)
    return report(options.folder)


def report(folder: Path) -> int:
    """Prints each image without a digest, and where it stands."""
    found = list(public_images(folder))
    for path, line, image in found:
        if not DIGEST.search(image):
            sys.stdout.write(f"{path}:{line}: `{image}` has no digest\n")
    images = {image for _, _, image in found}
    without = {image for image in images if not DIGEST.search(image)}
    if without:
        sys.stdout.write(
            f"{len(without)} of {len(images)} public images have no digest: "
            "run `make pin-images` where their registries can be reached\n"
        )
    return int(bool(without))


def public_images(folder: Path) -> Iterator[tuple[Path, int, str]]:
    """Yields file, line and image of every mention."""
    for path in sorted(folder.rglob("*")):
        pattern = NAMED.get(path.suffix)
        if pattern is None:
            continue
        text = path.read_text()
        for found in pattern.finditer(text):
            image = VARIABLE.sub("", found["image"])
            if not image.startswith(OURS):
                yield path, text.count("\n", 0, found.start("image")) + 1, found["image"]


def pin(folder: Path, hub: str) -> int:
    """Writes the digests that the registries have now, or nothing if one does not answer."""
    images = sorted({image for _, _, image in public_images(folder)})
    try:
        pinned = {image: f"{without_digest(image)}@{index_digest(image, hub)}" for image in images}
    except ValueError as error:
        sys.stderr.write(f"error: no manifest was changed: {error}\n")
        return 1
    for path in {path for path, _, _ in public_images(folder)}:
        path.write_text(_replaced(path, pinned))
    sys.stdout.writelines(f"{image}\n" for image in pinned.values())
    return 0


def _replaced(path: Path, pinned: Mapping[str, str]) -> str:
    def new(found: re.Match[str]) -> str:
        image = found["image"]
        return found[0].replace(image, pinned.get(image, image))

    return NAMED[path.suffix].sub(new, path.read_text())


if __name__ == "__main__":
    sys.exit(main())
