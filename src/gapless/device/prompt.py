"""Prompts as int64 words that travel in one piece: what one sequence's prefill feeds.

In: a `Prefill` with T ids, which computes a picture block on n pages or none. Out: 3 T + n words: the ids, the
positions, the values (two float32 to a word), the block's pages; and on the device the same words by name. Pictures
travel apart from them, in the order of `pictures_of`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gapless.device.packet import Words
from gapless.records import POISON, HostPlace, Picture, Prefill, Step


def prompt_words(prefill: Prefill) -> int:
    """How many words `write_prompt` fills."""
    return 3 * len(prefill.ids) + len(prefill.prefix_pages)


def write_prompt(prefill: Prefill, words: Words) -> None:
    """Fill `words` int64 [prompt_words(prefill)]."""
    length = len(prefill.ids)
    words[:length] = prefill.ids
    words[length : 2 * length] = range(prefill.position, prefill.position + length)
    values = words[2 * length : 3 * length].view(np.float32).reshape(length, 2)
    values[:] = POISON
    for i, value in enumerate(prefill.values):
        values[i, : len(value)] = value
    words[3 * length :] = prefill.prefix_pages


def pictures_of(prefill: Prefill) -> tuple[Picture, ...]:
    """The pictures a prefill computes, in the order in which it feeds them: its block's, then its insets'."""
    front = () if prefill.picture is None else (prefill.picture,)
    return (*front, *(inset.picture for inset in prefill.insets))


def shown_by(prefill: Prefill) -> list[tuple[Picture, HostPlace | None]]:
    """The same pictures, each with its place on the host if it has one."""
    pictures = pictures_of(prefill)
    return list(zip(pictures, prefill.places or (None,) * len(pictures), strict=True))


@dataclass(frozen=True, slots=True)
class Sight:
    """Crops `begin`..`end` - 1 of a picture, which a step encodes; those before were encoded by earlier steps. With
    `later` they are kept for a later step, which feeds it, else the picture is fed now and these are its last."""

    picture: Picture
    begin: int
    end: int
    later: bool = False


def there_for(step: Step) -> dict[str, int]:
    """The slots of pictures of a step, by digest, whose embeddings lie on the host."""
    shown = [pair for prefill in step.prefills for pair in shown_by(prefill)]
    return {of.digest: place.slot for of, place in shown if place is not None and place.there}


def sights_of(step: Step) -> tuple[dict[str, Sight], list[Sight]]:
    """What a step encodes: pictures of its prefills, each once, by digest; and what it looks at for later."""
    there, found = there_for(step), dict[str, Sight]()
    for prefill in step.prefills:
        looked = prefill.looked
        for picture in pictures_of(prefill):
            if picture.digest not in there and (looked or picture.digest not in found):
                found[picture.digest] = Sight(picture, looked, picture.count)
            looked = 0
    look = step.look
    return found, [] if look is None else [Sight(look.picture, look.begin, look.end, later=True)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt on the device: `ids` and `positions` int64 [T], `values` float32 [T, 2], `prefix_pages` int64 [n]."""

    ids: Tensor
    positions: Tensor
    values: Tensor
    prefix_pages: Tensor

    @classmethod
    def of(cls, prefill: Prefill, words: Tensor) -> Prompt:
        """Name the parts of a prefill's words."""
        length, pages = len(prefill.ids), len(prefill.prefix_pages)
        ids, positions, values, prefix_pages = torch.split(words, [length, length, length, pages])
        return cls(ids, positions, values.view(torch.float32).view(length, 2), prefix_pages)
