"""A library without an engine: each request is answered at once by a random walk through its rule's table.

What is tested with it is everything before and behind the engine; that the engine walks as the table says is tested
elsewhere. A request without a rule is answered with "free".
"""

import itertools
import random

from tests.constrain.walks import glint

from gapless.api.desk import Desk
from gapless.api.load import crop_spec
from gapless.api.runner import NOTHING
from gapless.api.vlm import VLM
from gapless.config import ImageLimits
from gapless.constrain.guides import Guides
from gapless.constrain.tokens import TokenWalker
from gapless.errors import EngineClosed, InvalidRequest
from gapless.models.moondream.identify import identify
from gapless.models.moondream.templates import Templates
from gapless.records import Emission, Finish, FinishReason, HostGrammar, Token
from gapless.skills.base import SkillContext
from gapless.skills.own_tokenizer import open_tokenizer
from gapless.weights.folder import find_files
from gapless.weights.hub import locate

GUIDES = Guides()


class WalkingRunner:
    """`EngineHandle` that answers in `submit`. `short`: answers are cut off after so many tokens."""

    def __init__(self, context, short=None):
        self.context, self.short = context, short
        self.tables = []
        self.closed = False
        self._ids = itertools.count(1)
        self._clock = itertools.count()

    def check(self):
        if self.closed:
            raise EngineClosed("closed")

    def now(self):
        return 0.0

    def adapters(self):
        return ()

    def cancel(self, request_id):
        pass

    def pin(self, picture, more):
        pass

    def close(self, drain=True, within=None):
        self.closed = True

    def abandon(self):
        self.closed = True

    def submit(self, prompt, program, sampling, deadline, channel, adapter=None, grammar=None):
        number = next(self._ids)
        self.tables.append(grammar)
        try:
            ids = self._said(number, grammar, sampling.max_tokens)
        except InvalidRequest as error:
            channel.put(Emission(number, finish=Finish(NOTHING, error=error)))
            return number
        if program == "reason":
            ids = [*self.context.tokenizer.encode("I think so"), self.context.templates.ids.answer, *ids]
        cut = self.short is not None
        reason = FinishReason.LENGTH if cut else FinishReason.STOP
        for id in ids[: self.short]:
            channel.put(Emission(number, (Token(id),)))
        channel.put(Emission(number, finish=Finish(NOTHING, reason)))
        return number

    def _said(self, number, grammar, most):
        return self._walk(number, grammar, most) if grammar else [*self.context.tokenizer.encode("free"), 0]

    def _walk(self, number, grammar, most):
        if isinstance(grammar, HostGrammar):
            return self._led(number, grammar, min(most, 60))
        walker, draw = TokenWalker(grammar), random.Random(number)
        ids = []
        while not walker.ended:
            left = most - len(ids) if most < 100 else max(walker.fewest, 100 - len(ids))
            allowed = [int(id) for id in walker.mask(left).nonzero()[0]]
            ids.append(draw.choice(allowed))
            walker.advance(ids[-1])
        return ids

    def _led(self, number, grammar, most):
        """From `most` tokens on it closes what it can."""
        guide, draw, ids, pieces = GUIDES.guide(grammar), random.Random(number), [], grammar.words.pieces
        while not ids or ids[-1] != grammar.words.end:
            allowed = [int(id) for id in guide.mask().nonzero()[0]]
            closing = [id for id in allowed if id == grammar.words.end or pieces[id][-1:] in b'"]}']
            ids.append(draw.choice(allowed if len(ids) < most else closing or allowed))
            guide.consume(ids[-1:] if ids[-1] != grammar.words.end else [])
        return ids


def walking(short=None):
    """A VLM of glint's shape over such a runner."""
    located = locate("glint", None)
    files = find_files(located.folder, located.tokenizer)
    config = identify(files, located.behaves)
    templates = Templates.of(config)
    context = SkillContext(templates, open_tokenizer(templates, files.tokenizer), 65, 1024, "glint")
    assert templates.rules().vocab == glint().size
    runner = WalkingRunner(context, short)
    return VLM(Desk(context, crop_spec(config.vision), ImageLimits(), runner, 4))
