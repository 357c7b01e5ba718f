"""Images of chats for a model that reads them: loaded for the tokenizer, shown to the engine."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from services.explorer.engine.tokenizer import HuggingFaceTokenizer
from trinity.data.images import decode, images_of, ref_of
from trinity.data.vision import VisionProcessor, VisionTokens
from trinity.errors import UserError
from trinity.types import BlobRef
from trinity.workflows.generation import ImagePrompt, Prompt

if TYPE_CHECKING:
    import PIL.Image
    from vllm.inputs import TokensPrompt

MAX_DECODED_BYTES = 256 << 20
"""Limits the decoded images that are kept."""

MAX_COUNTED_IMAGES = 100_000
"""Limits the images whose numbers of tokens are kept, which are far more than one chat has."""


class ImageStore(Protocol):
    """Reads and stores images of one tenant."""

    async def read(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns the contents by hash."""
        ...

    async def resolve(self, messages: Sequence[Any]) -> list[Any]:
        """Returns a chat whose images are stored, as parts with their hashes."""
        ...


class ChatImages:
    """The images of a stage's chats.

    images = ChatImages(tokenizer, store)
    messages = await images.loaded(messages)
    prompt = tokenizer.encode_chat(messages)
    generation = await engine.generate(await images.shown(prompt), sampling)
    """

    def __init__(
        self, tokenizer: HuggingFaceTokenizer, vision: VisionProcessor, store: ImageStore
    ) -> None:
        self._tokenizer = tokenizer
        self._vision = vision
        self._store = store
        self._decoded: OrderedDict[bytes, PIL.Image.Image] = OrderedDict()
        self._num_bytes = 0

    @classmethod
    def of(cls, tokenizer: object, store: ImageStore) -> "ChatImages | None":
        """Returns it for the tokenizer of a model that reads images; else None."""
        if not isinstance(tokenizer, HuggingFaceTokenizer) or tokenizer.vision is None:
            return None
        return cls(tokenizer, tokenizer.vision, store)

    async def loaded(self, messages: Sequence[Any]) -> list[Any]:
        """Returns a chat that the tokenizer can encode, with its images stored and decoded.

        Raises: BadImage; PreconditionFailed for an image that is not the tenant's; Unavailable.
        """
        resolved = await self._store.resolve(messages)
        known = self._tokenizer.image_tokens
        refs = images_of(resolved)
        await self._decode([ref for ref in refs if ref.sha256 not in known])
        for ref in refs:  # those that were used last are at the end
            known[ref.sha256] = known.pop(ref.sha256)
        while len(known) > MAX_COUNTED_IMAGES:
            del known[next(iter(known))]
        return resolved

    async def shown(self, prompt: Prompt) -> list[int]:
        """Returns a prompt's token ids with its images, as engines take them."""
        if not prompt.images:
            return prompt.token_ids
        refs = [ref for ref in map(ref_of, prompt.images) if ref is not None]
        kept = {ref.sha256: self._decoded.get(ref.sha256) for ref in refs}
        made = await self._decode([ref for ref in refs if kept[ref.sha256] is None])
        shown = tuple((ref.sha256.hex(), kept[ref.sha256] or made[ref.sha256]) for ref in refs)
        counts = [self._tokenizer.image_tokens[ref.sha256] for ref in refs]
        collapsed = self._vision.tokens.collapsed(prompt.token_ids, counts)
        return ImagePrompt(prompt.token_ids, shown, collapsed)

    async def _decode(self, refs: Sequence[BlobRef]) -> "Mapping[bytes, PIL.Image.Image]":
        """Decodes images in a thread, and keeps the newest."""
        if not refs:
            return {}
        contents = await self._store.read([ref.sha256 for ref in refs])
        made = await asyncio.to_thread(
            lambda: {sha256: decode(content) for sha256, content in contents.items()}
        )
        for sha256, image in made.items():
            self._tokenizer.image_tokens[sha256] = self._vision.num_tokens(image)
            if sha256 not in self._decoded:
                self._num_bytes += _size_of(image)
            self._decoded[sha256] = image
        while self._num_bytes > MAX_DECODED_BYTES and len(self._decoded) > 1:
            self._num_bytes -= _size_of(self._decoded.popitem(last=False)[1])
        return made


def request_of(prompt: list[int], vision: VisionTokens | None) -> "TokensPrompt":
    """Returns vLLM's request: one placeholder for each image, which its caches know by the hash.

    Raises: UserError for a prompt whose images are not given.
    """
    from vllm.inputs import TokensPrompt

    if vision is None or not isinstance(prompt, ImagePrompt):
        if vision is not None and vision.image_token in prompt:
            raise UserError(
                "a prompt of tokens has those of images, and no images: give a chat with them"
            )
        return TokensPrompt(prompt_token_ids=prompt)
    return TokensPrompt(
        prompt_token_ids=list(prompt.collapsed),
        multi_modal_data={"image": [image for _, image in prompt.images]},
        multi_modal_uuids={"image": [sha256 for sha256, _ in prompt.images]},
    )


def check_expansion(prompt: list[int], of_engine: Sequence[int] | None) -> None:
    """Raises UserError if the engine expanded a prompt's images to other tokens."""
    if isinstance(prompt, ImagePrompt) and of_engine != list(prompt):
        raise UserError(
            "the engine and the model's processor expand an image to different tokens: leave "
            "`mm_processor_kwargs` out of `extra_engine_args`"
        )


def _size_of(image: "PIL.Image.Image") -> int:
    return 3 * image.width * image.height
