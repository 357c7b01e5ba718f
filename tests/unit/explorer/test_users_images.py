"""Users' workflows get the images of a row as PIL images, in threads and in processes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from PIL import Image

from services.explorer.media import MediaStore
from tests.support.images import png
from tests.unit.explorer.builders import build_assignment
from tests.unit.explorer.runs import outcome_of
from tests.unit.explorer.users import plugin_folder, user_processes
from trinity.data.images import decode, image_of, opened, part_of, with_data_urls

FILE = """
from trinity.workflows.workflow import Workflow

class Looks(Workflow):
    def run(self):
        [image] = self.task.raw_task["images"]
        [part, text] = self.task.prompt_messages[0]["content"]
        assert part == {"type": "image", "image": image} and text["text"] == "How many?"
        [made] = self.model.chat([{"role": "user", "content": "1+1="}])
        assert self.model.get_message_token_len(self.task.prompt_messages) > 0
        assert self.model.tokenizer.encode_chat(self.task.prompt_messages).token_ids
        made.reward = 1.0
        made.info = {"mode": image.mode, "pixel": list(image.getpixel((0, 0)))}
        return [made]
"""
CONTENT = png((7, 8, 9))
IMAGE = image_of(CONTENT)


class Buffer:
    """Has one image."""

    async def read_media(self, tenant: str, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        assert (tenant, [*hashes]) == ("a", [IMAGE.ref.sha256])
        return {IMAGE.ref.sha256: CONTENT}

    async def upload_blob(self, tenant: str, content: bytes, media_type: str = "") -> bytes:
        raise AssertionError("nothing is stored")


@pytest.fixture(scope="module", autouse=True)
def _workflows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_folder(tmp_path_factory.mktemp("plugins"), looking=FILE):
        yield


@pytest.mark.parametrize("isolated", [False, True])
async def test_a_workflow_sees_the_pixels_of_its_row(tmp_path: Path, isolated: bool) -> None:
    row = {"question": "<image>How many?", "answer": "2", "images": [part_of(IMAGE.ref)]}
    async with user_processes() as pool:
        result = await outcome_of(
            tmp_path,
            assignment=build_assignment(task_json=json.dumps(row)),
            processes=pool if isolated else None,
            media=MediaStore(Buffer(), "a"),
            timeout_seconds=60.0,
            default_workflow_type="looking.Looks",
            format={"prompt_key": "question", "response_key": "answer", "image_key": "images"},
        )
    assert result.failure == ""
    assert result.experiences[0].info == {"mode": "RGB", "pixel": [7, 8, 9]}


def test_images_of_a_process_travel_as_data_urls_and_keep_their_content() -> None:
    chat = [{"role": "user", "content": [{"type": "image", "image": opened(IMAGE)}, "a"]}, "b"]
    [message, other] = with_data_urls(chat)
    [part, text] = message["content"]
    assert (text, other) == ("a", "b")
    url = part["image_url"]["url"]
    assert json.loads(json.dumps(message)) == message and url.startswith("data:image/png;base64,")
    drawn = Image.new("RGB", (2, 2), "red")
    [message] = with_data_urls([{"role": "user", "content": [{"type": "image", "image": drawn}]}])
    assert "image_url" in message["content"][0] and decode(CONTENT).getpixel((0, 0)) == (7, 8, 9)
