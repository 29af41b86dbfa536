"""What a server with a hash model must answer, read straight off the hash language: no engine, no rows, no steps."""

import base64

from tests.fakes.hash_served import spec_of
from tests.fakes.oracle import answer
from tests.fakes.scene import table_of

from gapless.api.desk import Desk
from gapless.api.load import crop_spec
from gapless.config import ImageLimits
from gapless.models.moondream.config import read_config
from gapless.models.moondream.templates import Templates
from gapless.records import Request
from gapless.skills.base import SkillContext
from gapless.skills.tokenizer import Tokenizer
from gapless.weights.folder import read_json

CHAT = "chat/completions"


class Nobody:
    """An engine for a desk at which questions are only written down."""

    def abandon(self):
        pass


class Oracle:
    """Knows the answer to every body. `folder`: the one that the server was given."""

    def __init__(self, folder):
        config = read_config(read_json(folder / "config.json"))
        templates = Templates.of(config)
        tokenizer = Tokenizer.from_file(folder / "tokenizer.json", templates.ids.all())
        self.spec = spec_of(config)
        self.context = SkillContext(templates, tokenizer, self.spec.prefix, self.spec.max_context, "hash")
        self.table = table_of(self.spec)
        self.desk = Desk(self.context, crop_spec(config.vision), ImageLimits(), Nobody(), 1)

    def ask(self, route, body):
        """The request that a route makes of a body."""
        desk, settings = self.desk, body.get("settings")
        if route == CHAT:
            settings = {name: body[name] for name in ("max_tokens", "seed", "temperature")}
            return desk.chat(body["messages"], settings, body.get("reasoning", False))
        asking = {
            "query": lambda: desk.query(body["question"], settings, body.get("reasoning", False), None),
            "caption": lambda: desk.caption(body.get("length", "normal"), settings),
            "point": lambda: desk.point(body["object"], settings, None),
            "detect": lambda: desk.detect(body["object"], settings),
            "segment": lambda: desk.segment(body["object"], settings, None, False),
        }[route]()
        image = body.get("image_url")
        return desk.ask(None if image is None else base64.b64decode(image.partition(",")[2]), asking)

    def __call__(self, route, body):
        """The answer, how it ends, and of how many tokens it is."""
        ask = self.ask(route, body)
        right = answer(self.spec, self.table, Request(1, ask.prompt, ask.program, ask.sampling))
        ask.reader.feed(right.tokens)
        ask.reader.finish()
        return ask.reader.result() | {"finish_reason": right.reason.value}, len(right.tokens)
