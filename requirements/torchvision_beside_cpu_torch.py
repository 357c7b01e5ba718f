"""Lets torchvision's common build load with the build of torch for CPUs.

`install_locked.sh` puts this into the environment, which imports it at every start, so that the
processes of vLLM and of users' code have it too. The common build of torchvision is made for CUDA.
Its operators do not load with torch's CPU build, and its import then fails as it describes two of
them to the compiler. Declaring these two lets it load: transforms work, `torchvision.ops.nms` does
not. Nothing is imported before torchvision is.
"""

import sys

OPERATORS = ("nms", "qnms")


class _BeforeTorchvision:
    """Declares the operators as torchvision is first imported; it finds no module itself."""

    def __init__(self):
        self.library = None

    def find_spec(self, name, *_):
        if name == "torchvision" and self.library is None:
            import torch

            if torch.version.cuda is None and torch.version.hip is None:
                self.library = torch.library.Library("torchvision", "DEF")
                for operator in OPERATORS:
                    self.library.define(
                        f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    )
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
