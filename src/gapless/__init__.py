"""gapless: vision-language inference with no gaps between steps.

    import gapless

    vlm = gapless.load("glint")
    vlm.query("picture.png", "How many stars?")["answer"]

The names below are imported when they are first used, so that `import gapless` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gapless import errors

if TYPE_CHECKING:
    from gapless.api.aio import AsyncVLM
    from gapless.api.desk import EncodedImage
    from gapless.api.load import load
    from gapless.api.vlm import VLM

__version__ = "0.1.0"

__all__ = ["VLM", "AsyncVLM", "EncodedImage", "__version__", "errors", "load"]

_HOMES = {"AsyncVLM": "api.aio", "EncodedImage": "api.desk", "VLM": "api.vlm", "load": "api.load"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gapless' has no attribute {name!r}")
    return getattr(import_module(f"gapless.{_HOMES[name]}"), name)
