"""Prompts with images in vLLM: the same tokens and pixels as in training, for each family."""

import base64
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anthropic
import numpy as np
import openai
import pytest
import pytest_asyncio
import torch
from PIL import Image
from pydantic import JsonValue
from transformers import AutoModelForImageTextToText, AutoProcessor

from services.explorer.engine.images import ChatImages, request_of
from services.explorer.engine.interface import EngineOptions
from services.explorer.engine.tokenizer import HuggingFaceTokenizer, PromptCache, load_tokenizer
from services.explorer.engine.vllm import VllmEngine, start_vllm
from services.explorer.engines import LoadedModel
from services.explorer.media import MediaStore, UnstoredMedia
from services.explorer.serving.access import ServingAccessPolicy
from services.explorer.serving.pool import ServingPool
from services.explorer.serving.server import ModelServer
from services.explorer.serving.work import server_parts
from services.explorer.types import model_weights
from tests.support.images import BAD, data_url
from tests.support.vision_models import make_vision_model
from tests.unit.explorer.builders import build_plan
from tests.unit.workflows.scripted import task_of
from trinity.config.schema.data import FormatConfig
from trinity.config.schema.explorer import EngineConfig
from trinity.data.conversations import FAMILIES
from trinity.data.images import decode, image_of, images_of, opened, part_of, with_hashes
from trinity.data.vision import VisionProcessor
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.runtime.security.credentials import PLAINTEXT
from trinity.types import Experience, FloatArray, JsonObject, SamplingParams
from trinity.workflows.generation import ImagePrompt, ModelLimits
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
SIZES = ((60, 90), (112, 56))
KEY = "a key"


class Store:
    """The images of a tenant, in memory."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        self.num_read = 0

    def add(self, size: tuple[int, int], seed: int) -> JsonObject:
        pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        image = image_of(stream.getvalue())
        self.contents[image.ref.sha256] = image.content
        return part_of(image.ref)

    async def read(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        self.num_read += len(hashes)
        return {sha256: self.contents[sha256] for sha256 in hashes}

    async def resolve(self, messages: Sequence[Any]) -> list[Any]:
        return with_hashes(messages)

    def drawn(self, part: JsonObject) -> dict[str, Any]:
        """The part with a PIL image, as workflows have it."""
        content = self.contents[bytes.fromhex(str(part["sha256"]))]
        return {"type": "image", "image": opened(image_of(content))}


class Served:
    """An engine of a tiny model, and what a stage makes of it."""

    def __init__(
        self, directory: Path, engine: VllmEngine, tokenizer: HuggingFaceTokenizer
    ) -> None:
        self.directory, self.engine, self.tokenizer = directory, engine, tokenizer
        self.store = Store()
        images = ChatImages.of(tokenizer, self.store)
        assert images is not None
        self.images = images

    def model(self) -> ModelWrapper:
        return ModelWrapper(
            generator=self.engine,
            tokenizer=self.tokenizer,
            limits=ModelLimits(max_model_len=256, max_prompt_tokens=200),
            sampling=SamplingParams(temperature=1.0, max_tokens=8, logprobs=0),
            weights=(3, 1),
            seed_of_call=lambda call: 1000 + call,
            keeps_history=True,
            images=self.images,
        )


@pytest_asyncio.fixture(params=FAMILIES, loop_scope="module", scope="module")
async def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    directory = make_vision_model(tmp_path_factory.mktemp("vision") / request.param, request.param)
    tokenizer = load_tokenizer(str(directory), None)
    options = EngineOptions(
        model_path=str(directory),
        max_model_len=256,
        end_token_ids=tokenizer.end_token_ids,
        rollout=EngineConfig(dtype="float32"),
        vision=tokenizer.vision.tokens if tokenizer.vision else None,
    )
    engine = await start_vllm(options)
    yield Served(directory, engine, tokenizer)
    await engine.close()


def chat(*parts: JsonObject) -> list[JsonObject]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "how many? "}]}]


def logprobs_by_transformers(served: Served, answer: Experience, directory: Path) -> FloatArray:
    processor = AutoProcessor.from_pretrained(directory)
    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
    shown = [decode(served.store.contents[ref.sha256]) for ref in answer.blobs]
    made = processor.image_processor(images=shown, return_tensors="pt")
    tokens = torch.from_numpy(answer.sequence.tokens.astype(np.int64))[None]
    prompt_length = answer.sequence.prompt_length
    types = (tokens == processor.image_token_id).int()
    types[:, prompt_length:] = 0
    tokens_in = torch.where((tokens == processor.image_token_id) & (types == 0), 0, tokens)
    with torch.no_grad():
        logits = model(input_ids=tokens_in, mm_token_type_ids=types, **made).logits
    found = torch.log_softmax(logits[0, prompt_length - 1 : -1], -1)
    chosen: FloatArray = found.gather(1, tokens[0, prompt_length:, None])[:, 0].numpy()
    return chosen


@pytest.mark.asyncio(loop_scope="module")
async def test_answers_to_images_are_drawn_from_the_models_own_distribution(
    served: Served, tmp_path: Path
) -> None:
    parts = [served.store.add(size, seed) for seed, size in enumerate(SIZES)]
    answers = await served.model().chat_async(chat(*parts), n=4)
    assert [ref.sha256 for ref in answers[0].blobs] == [
        ref.sha256 for ref in images_of(chat(*parts))
    ]
    for answer in answers:
        by_hand = logprobs_by_transformers(served, answer, served.directory)
        np.testing.assert_allclose(answer.sequence.rollout_logprobs, by_hand, rtol=0, atol=1e-4)
        tokens, images = answer.sequence.tokens.tolist(), answer.blobs
        scored = await served.model().token_logprobs(tokens, images=images)
        of_answer = scored[answer.sequence.prompt_length - 1 :]
        np.testing.assert_allclose(of_answer, by_hand, rtol=0, atol=1e-4)
    turned = (await served.model().chat_async(chat(*parts[::-1]), n=4))[0]
    assert turned.sequence.tokens.tolist() != answers[0].sequence.tokens.tolist()

    kind = json.loads((served.directory / "config.json").read_text())["model_type"]
    newer = make_vision_model(tmp_path / "newer", kind, seed=7)
    await served.engine.load_weights(newer)
    after = (await served.model().chat_async(chat(*parts), n=2))[1]
    by_hand = logprobs_by_transformers(served, after, newer)
    np.testing.assert_allclose(after.sequence.rollout_logprobs, by_hand, rtol=0, atol=1e-4)
    await served.engine.load_weights(served.directory)
    assert served.store.num_read == len(SIZES), "each image is read and decoded once"


@pytest.mark.asyncio(loop_scope="module")
async def test_tokens_and_pixels_are_the_engines_own(served: Served) -> None:
    parts = [served.store.add(size, 10 + seed) for seed, size in enumerate(SIZES)]
    messages = await served.images.loaded(chat(*parts))
    prompt = served.tokenizer.encode_chat(messages)
    shown = await served.images.shown(prompt)
    assert isinstance(shown, ImagePrompt) and served.engine._vision is not None
    request = request_of(shown, served.engine._vision)
    made: Any = served.engine._engine.renderer._process_tokens(request, skip_mm_cache=True)
    assert made["prompt_token_ids"] == prompt.token_ids
    placeholder = served.engine._vision.image_token
    counts = [served.tokenizer.image_tokens[bytes.fromhex(own)] for own, _ in shown.images]
    side_by_side = [5, *[placeholder] * sum(counts), 6]
    collapsed = served.engine._vision.collapsed(side_by_side, counts)
    request = request_of(ImagePrompt(side_by_side, shown.images, collapsed), served.engine._vision)
    together: Any = served.engine._engine.renderer._process_tokens(request, skip_mm_cache=True)
    assert together["prompt_token_ids"] == side_by_side
    processor = VisionProcessor.of_model(served.directory)
    assert processor is not None
    for (_, image), item in zip(shown.images, made["mm_kwargs"]["image"], strict=True):
        of_engine = item.get_data()
        ours = processor.pixels(image)
        of_model = normalized(of_engine["pixel_values"], served.directory)
        np.testing.assert_allclose(of_model, ours.values_PD, rtol=0, atol=1e-6)
        assert tuple(of_engine["image_grid_thw"].tolist()) == ours.grid


def normalized(pixels: torch.Tensor, directory: Path) -> FloatArray:
    """vLLM's model scales and normalizes by itself what its processor leaves in whole numbers."""
    if pixels.float().max() < 10:
        given: FloatArray = pixels.float().numpy()
        return given
    keys = json.loads((directory / "preprocessor_config.json").read_text())
    mean, std = (np.array(keys[name])[:, None] for name in ("image_mean", "image_std"))
    of_channels = pixels.double().numpy().reshape(len(pixels), 3, -1)
    scaled: FloatArray = ((of_channels / 255 - mean) / std).reshape(len(pixels), -1)
    return scaled


@pytest.mark.asyncio(loop_scope="module")
async def test_a_later_turn_may_have_further_images(served: Served) -> None:
    first, second = (served.store.add(size, 20 + seed) for seed, size in enumerate(SIZES))
    model, drawn = served.model(), [served.store.drawn(part) for part in (first, second)]
    (answer,) = await model.chat_async(chat(drawn[0]), max_tokens=3)
    tool = {"role": "tool", "content": [{"type": "text", "text": "look: "}, drawn[1]]}
    said = [*chat(drawn[0]), {"role": "assistant", "content": answer.response_text}, tool]
    (last,) = await model.chat_async(said)
    assert [ref.sha256.hex() for ref in last.blobs] == [first["sha256"], second["sha256"]]
    by_hand = logprobs_by_transformers(served, last, served.directory)
    np.testing.assert_allclose(last.sequence.rollout_logprobs, by_hand, rtol=0, atol=1e-4)

    # A transcript is known by its images too: another one of the same size is another question.
    said.append({"role": "assistant", "content": last.response_text})
    whole = await model.convert_messages_to_experience_async(said)
    samples = [whole, *whole.further]
    assert samples[-1].blobs == last.blobs
    assert samples[-1].sequence.tokens.tolist() == last.sequence.tokens.tolist()
    answered = sum(int(sample.sequence.action_mask.sum()) for sample in samples)
    assert answered == answer.sequence.response_length + last.sequence.response_length
    assert model.get_message_token_len(chat(drawn[0])) == answer.sequence.prompt_length
    other = served.store.add(SIZES[0], 29)
    await model.chat_async(chat(other), max_tokens=1)
    own, others = cast(list[Message], chat(first)), cast(list[Message], chat(other))
    assert model.was_asked(own, answer) and not model.was_asked(others, answer)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_hinted_policy_sees_the_image_of_the_row(served: Served) -> None:
    part = served.store.add(SIZES[0], 40)
    columns = FormatConfig(prompt_key="problem", response_key="answer", image_key="images")
    row: JsonObject = {"problem": "<image>how many? ", "answer": "2", "images": [part]}
    task = task_of(row, columns=columns, workflow_args={"hint_template": "It is {hint}. "})
    model = served.model()
    [made] = await WORKFLOWS.get("self_distill_workflow")(task=task, model=model).run_async()
    texts = [{"type": "text", "text": text} for text in ("how many? ", "It is 2. ")]
    hinted: Any = [{"role": "user", "content": [part, *texts]}]
    prompt = served.tokenizer.encode_chat(hinted).token_ids
    answer = made.sequence.tokens[made.sequence.prompt_length :].tolist()
    body = replace(
        made.sequence, tokens=np.array([*prompt, *answer], np.int32), prompt_length=len(prompt)
    )
    by_hand = logprobs_by_transformers(served, replace(made, body=body), served.directory)
    found: Any = made.arrays["teacher_logprobs"].data
    np.testing.assert_allclose(found, by_hand, rtol=0, atol=1e-4)


@pytest.mark.asyncio(loop_scope="module")
async def test_places_and_images_must_match(served: Served) -> None:
    model = served.model()
    with pytest.raises(UserError, match="1 places of images, and 0 images"):
        await model.chat_async([{"role": "user", "content": "see <|image_pad|>"}])
    with pytest.raises(UserError, match="1 places of images"):
        await model.generate_async("see <|image_pad|>")
    image_token = served.tokenizer.vision.tokens.image_token if served.tokenizer.vision else -1
    with pytest.raises(UserError, match="has those of images, and no images"):
        await model.generate_async([[5, image_token, 7]])


@asynccontextmanager
async def served_clients(
    served: Served, folder: Path
) -> AsyncIterator[tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]]:
    """Official clients of the model as mode serve offers it."""
    model: JsonValue = {"max_model_len": 256, "max_prompt_tokens": 200, "max_response_tokens": 32}
    [plan] = build_plan(folder, model=model, explorer={"proxy_port": 1}).stages
    pool = ServingPool([served.engine], loaded=model_weights("/model"), min_open=1)
    access = ServingAccessPolicy(host="127.0.0.1", security=PLAINTEXT, key=KEY, tenant="default")
    loaded = LoadedModel(
        engine=served.engine, replicas=(served.engine,), tokenizer=served.tokenizer
    )
    media = MediaStore(UnstoredMedia(), "default")
    parts = server_parts(plan, "m", loaded, pool.lend, access, media)
    server = ModelServer(is_ready=lambda: True, **parts)
    async with (
        server.open(1.0),
        openai.AsyncOpenAI(base_url=server.address, api_key=KEY, max_retries=0) as chats,
        anthropic.AsyncAnthropic(
            base_url=server.address.removesuffix("/v1"), api_key=KEY, max_retries=0
        ) as messages,
    ):
        yield chats, messages


@pytest.mark.asyncio(loop_scope="module")
async def test_a_served_model_sees_images_in_every_dialect_and_counts_them(
    served: Served, tmp_path: Path
) -> None:
    part = served.store.add(SIZES[0], 30)
    content = served.store.contents[bytes.fromhex(str(part["sha256"]))]
    url, question = data_url(content), "how many? "
    of_run = await served.model().chat_async(chat(part))
    length = of_run[0].sequence.prompt_length
    served.tokenizer.image_tokens.clear()
    served.tokenizer.prompt_cache = PromptCache(1 << 20)
    async with served_clients(served, tmp_path) as (chats, messages):
        seen: Any = {"type": "image_url", "image_url": {"url": url}}
        asked: Any = [{"role": "user", "content": [seen, {"type": "text", "text": question}]}]
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        blocks: Any = [{"type": "image", "source": source}, {"type": "text", "text": question}]
        said: Any = [{"role": "user", "content": blocks}]
        counted = await messages.messages.count_tokens(model="m", messages=said)
        told = await messages.messages.create(model="m", messages=said, max_tokens=3)
        answer = await chats.chat.completions.create(model="m", messages=asked, max_tokens=3)
        items: Any = [
            {"type": "input_image", "image_url": url, "detail": "auto"},
            {"type": "input_text", "text": question},
        ]
        response = await chats.responses.create(
            model="m", input=[{"role": "user", "content": items}], max_output_tokens=16
        )
        assert answer.usage is not None and response.usage is not None
        counts = [told.usage.input_tokens, answer.usage.prompt_tokens, response.usage.input_tokens]
        assert [counted.input_tokens, *counts] == [length] * 4, "the engine had the same tokens"
        further = await chats.responses.create(
            model="m", input="And now? ", previous_response_id=response.id, max_output_tokens=16
        )
        assert further.usage is not None and further.usage.input_tokens > length
        without = await messages.messages.count_tokens(
            model="m", messages=[{"role": "user", "content": question}]
        )
        processor = VisionProcessor.of_model(served.directory)
        assert processor is not None
        frame = 2  # tokens that mark where an image begins and ends
        assert length == without.input_tokens + processor.num_tokens(decode(content)) + frame
        broken = {**source, "data": base64.b64encode(BAD["cut"][0]).decode()}
        bad: Any = [{"role": "user", "content": [{"type": "image", "source": broken}]}]
        with pytest.raises(anthropic.BadRequestError, match="broken or cut off"):
            await messages.messages.count_tokens(model="m", messages=bad)
