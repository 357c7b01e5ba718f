"""Pictures of a sample's images: small, made here, and read as the run's tenant."""

import base64
import hashlib
import io
import re
from pathlib import Path

import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from tests.support.images import BAD, png
from tests.unit.inspect.builders import ID, record
from tests.unit.studio.fake_run import FakeStudio, said, stored_stage
from tests.unit.studio.test_runs import a_run
from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.errors import PreconditionFailed
from trinity.studio.pages import common, experiences

SCRIPT = "from trinity.studio.pages import experiences\nexperiences.show()"
CONTENT = png((9, 200, 9), (640, 480))
CUT = BAD["cut"][0]
EXPECTED = f"image 0: 640 x 480, image/png, {len(CONTENT):,} bytes, "


def digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def studio_with(folder: Path, *contents: bytes) -> FakeStudio:
    """A run whose one sample has these images."""
    shown = record()
    for content in contents:
        shown.content.blobs.add(
            name="image", sha256=digest(content), size=len(content), media_type="image/png"
        )
    stored = {digest(content): content for content in contents}

    def chunks(request: buffer_pb2.ReadMediaRequest) -> list[buffer_pb2.ReadMediaResponse]:
        return [
            buffer_pb2.ReadMediaResponse(sha256=own, chunk=stored[own][begin : begin + 100])
            for own in request.sha256
            for begin in range(0, len(stored[own]), 100)
        ]

    return FakeStudio(
        folder,
        ListStages=stored_stage(ready=1),
        ListExperiences=[query_pb2.ListExperiencesResponse(experiences=[record()])],
        GetExperience=query_pb2.GetExperienceResponse(experience=shown),
        GetSession=[query_pb2.GetSessionResponse()],
        ReadMedia=chunks,
    ).show()


def shown(studio: FakeStudio) -> AppTest:
    app = AppTest.from_string(SCRIPT, default_timeout=120)
    app.query_params[common.RUN] = str(studio.places[0])
    app.query_params[experiences.SAMPLE] = ID
    assert not app.run().exception
    return app


def pictures(app: AppTest) -> list[Image.Image]:
    body = "".join(part.proto.body for part in app.get("html"))
    urls = re.findall(r'<img src="data:image/png;base64,([^"]+)"', body)
    return [Image.open(io.BytesIO(base64.b64decode(url))) for url in urls]


def test_a_samples_images_are_shown_small_and_read_once_as_its_tenant(tmp_path: Path) -> None:
    studio = studio_with(a_run(tmp_path), CONTENT, CUT, CONTENT)
    app = shown(studio)
    texts = "".join(said(app))
    assert [image.size for image in pictures(app)] == [(128, 96)] * 2
    assert pictures(app)[0].convert("RGB").getpixel((50, 50)) == (9, 200, 9)
    assert EXPECTED + digest(CONTENT).hex()[:12] in texts
    assert "image 1: it is broken or cut off" in texts and "image 2: 640 x 480" in texts
    app.run()
    asked = studio.service.requests["ReadMedia"]
    assert [one.tenant for one in asked] == ["default"] * 2
    assert [list(one.sha256) for one in asked] == [[digest(CONTENT)], [digest(CUT)]]


def test_a_sample_without_images_asks_for_none_and_lost_ones_are_told(tmp_path: Path) -> None:
    studio = studio_with(a_run(tmp_path))
    assert pictures(shown(studio)) == [] and "ReadMedia" not in studio.service.requests
    studio = studio_with(studio.places[0], CONTENT)
    studio.service.answers["ReadMedia"] = PreconditionFailed("no sample uses the image <b>*ab*</b>")
    app = shown(studio)
    assert "no sample uses the image <b>*ab*</b>" in "".join(said(app))
    assert "<b>" not in "".join(part.proto.body for part in app.get("html"))


def test_many_images_are_not_all_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity.studio.pictures.MAX_SHOWN", 1)
    app = shown(studio_with(a_run(tmp_path), CONTENT, CUT))
    assert len(pictures(app)) == 1 and "1 of 2 images are shown." in said(app)
