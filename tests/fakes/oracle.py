"""The oracle: answers read straight off the hash language, with no engine, pages, rows or steps.

What flows in: a `Request`. What flows out: its tokens and finish reason, alone and one after the other. Every engine
run on every device must give exactly these.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.fakes import hash_language as lang
from tests.fakes.adjusted import adjusted
from tests.fakes.draw import draw
from tests.fakes.hash_language import HashSpec, Hidden, Reading
from tests.fakes.masks import narrowed
from tests.fakes.ruled_walk import RuledWalk

from gapless.constrain.table import Table, Walker
from gapless.constrain.tokens import TokenWalker
from gapless.records import FinishReason, Flags, Request, Token, ValueHead


@dataclass(frozen=True)
class Answer:
    """What a request must say. `hidden[i]` is the context that token i was sampled from."""

    tokens: tuple[Token, ...]
    reason: FinishReason
    hidden: tuple[Hidden, ...]


def answer(spec: HashSpec, table: Table, request: Request, deny: tuple[int, ...] = ()) -> Answer:
    """Read the prompt, then sample until the rules say it is over. `deny`: what host masks forbid besides the rules."""
    own = request.adapter
    reading = Reading(spec, adapter=own.weights if own is not None and isinstance(own.weights, int) else 0)
    if request.prompt.picture is not None:
        reading.feed_picture(lang.picture_word(request.prompt.picture.crops, request.prompt.picture.tiling))
    insets = {inset.at: inset.picture for inset in request.prompt.insets}
    begun = reading.position
    while (at := reading.position - begun) < len(request.prompt.ids):
        if at in insets:
            reading.feed_inset(lang.picture_word(insets[at].crops, insets[at].tiling))
        else:
            reading.feed(request.prompt.ids[at], request.prompt.values[at])
    s = request.sampling
    walker = Walker.start(table, request.program, s.max_tokens, s.max_objects)
    walk = RuledWalk(walker, _rule(request, walker))
    tokens: list[Token] = []
    contexts: list[Hidden] = []
    while True:
        hidden = reading.hidden
        contexts.append(hidden)
        scores = lang.scores(spec, hidden)
        ruled = walk.rule is not None and walker.answers
        mask = walk.mask() if ruled else narrowed(walker, deny if request.host_masked else ())
        scores = adjusted(scores, mask, request, walker, spec.prefix - 1, [token.id for token in tokens])
        chosen = draw(scores, mask, s.temperature, s.top_p, s.seed, reading.position, s.top_logprobs)
        head, flags = walk.advance(chosen.id)
        token = Token(chosen.id, values_of(head, hidden), chosen.logprob, chosen.top)
        tokens.append(token)
        if flags:
            reason = FinishReason.STOP if flags & Flags.STOP else FinishReason.LENGTH
            return Answer(tuple(tokens), reason, tuple(contexts))
        reading.feed(token.id, token.values)


def _rule(request: Request, walker: Walker) -> TokenWalker | None:
    if request.guide is not None:
        from tests.fakes.guided import LedWalk  # which needs what is not always installed

        return LedWalk(request.guide, walker.mask)
    return None if request.grammar is None else TokenWalker(request.grammar)


def values_of(head: ValueHead, hidden: Hidden) -> tuple[float, ...]:
    """The values that ride on a token sampled in this context."""
    if head is ValueHead.COORD:
        return (lang.coord_of(hidden),)
    return lang.size_of(hidden) if head is ValueHead.SIZE else ()
