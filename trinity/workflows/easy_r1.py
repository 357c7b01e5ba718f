"""Prompts of EasyR1: a Jinja text around the row's, and images of bounded size."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.task import Task

if TYPE_CHECKING:
    from PIL.Image import Image


class FormattedPrompt(SimpleWorkflow):
    """Asks the row's question within a template, with its images between two sizes.

    class Ask(FormattedPrompt):
        template = "{{ content | trim }} Put the final answer within \\\\boxed{}."
        min_pixels, max_pixels = 262144, 4194304
    """

    shares_loop: ClassVar[bool] = False
    template: ClassVar[str] = "{{ content }}"
    min_pixels: ClassVar[int | None] = None
    max_pixels: ClassVar[int | None] = None

    def __init__(self, *, task: Task, **models: Any) -> None:
        from jinja2 import Template

        form, row = task.format_args, dict(task.raw_task)
        template = Template(self.template.strip())
        row[form.prompt_key] = template.render(content=row[form.prompt_key])
        if form.image_key and (images := row.get(form.image_key)):
            row[form.image_key] = [self._resized(image) for image in images]
        super().__init__(task=replace(task, raw_task=row), **models)

    def _resized(self, image: "Image") -> "Image":
        """An image with at most and then at least so many pixels, and its proportions."""
        for bound, is_out in ((self.max_pixels, int.__gt__), (self.min_pixels, int.__lt__)):
            if bound is not None and is_out(image.width * image.height, bound):
                factor = math.sqrt(bound / (image.width * image.height))
                image = image.resize((int(image.width * factor), int(image.height * factor)))
        return image
