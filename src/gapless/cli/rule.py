"""`gapless rule`: what a rule for answers is, as a model's table of it, before anything is asked.

In: a rule and a model's name; of the model only its configuration and its tokenizer are read. Out: the table's sizes
and what compiling it took, or why there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.options import ReportJsonOption
from gapless.cli.rule_options import ChoiceOption, JsonObjectOption, RegexOption, SchemaOption, rule_from
from gapless.cli.show import json_line
from gapless.cli.terminal import table
from gapless.skills.rules import rules_of

if TYPE_CHECKING:
    from gapless.constrain.grammar import Grammar
    from gapless.constrain.limits import NotATable
    from gapless.constrain.vocabulary import Vocabulary
    from gapless.records import HostGrammar, TokenTable

ModelArgument = Annotated[
    str, typer.Argument(metavar="[MODEL]", help="A model folder, or a name that `gapless pull` has got.")
]


def rule(
    model: ModelArgument = "glint",
    choice: ChoiceOption = None,
    regex: RegexOption = None,
    schema: SchemaOption = None,
    json_object: JsonObjectOption = False,
    json: ReportJsonOption = False,
) -> int:
    """Compile a rule for answers, and tell its table's size. Ends with 1 if it would be refused."""
    from gapless.constrain.grammar import compile_grammar
    from gapless.constrain.limits import NotATable

    given = rule_from(choice, regex, schema, json_object)
    if not given:
        raise typer.BadParameter("which rule? Give --choice, --regex, --schema or --json-object")
    (grammar,) = rules_of(given).values()
    vocabulary = _vocabulary(model)
    try:
        found = compile_grammar(grammar, vocabulary)
    except NotATable as error:
        led = _led(grammar, vocabulary, error)
        facts: dict[str, Any] = {"kind": grammar.kind, "host": True, "ids": vocabulary.size, **_size(led)}
    else:
        facts = {
            "kind": grammar.kind,
            "states": found.states,
            "classes": found.following.shape[1],
            "ids": vocabulary.size,
            "fewest_tokens": found.fewest,
            **_size(found),
        }
    if json:
        json_line(facts)
    else:
        _show(facts)
    return 0


def _led(grammar: Grammar, vocabulary: Vocabulary, error: NotATable) -> HostGrammar:
    """What leads a rule without a table, read once: what is too large for that is refused."""
    from gapless.constrain.compiler import needing_more, neither
    from gapless.constrain.grammar import host_grammar
    from gapless.constrain.guides import Guides, installed
    from gapless.constrain.limits import NotATable

    if not installed():
        raise needing_more(error) from error
    try:
        led = host_grammar(grammar, vocabulary)
    except NotATable as other:
        raise neither(error, other) from other
    Guides(most_kept=0).guide(led).mask()
    return led


def _size(rule: TokenTable | HostGrammar) -> dict[str, float]:
    return {"bytes": rule.nbytes, "compile_ms": 1e3 * rule.seconds}


def _show(facts: dict[str, Any]) -> None:
    if "host" in facts:
        size = f"{facts['bytes'] / 1e3:.1f} kB, compiled in {facts['compile_ms']:.1f} ms"
        table(("", ""), [("rule", facts["kind"]), ("table", "none: masks are built on the host"), ("grammar", size)])
        return
    told = f"{facts['classes']} kinds of {facts['ids']} ids"
    rows = [("rule", facts["kind"]), ("states", facts["states"]), ("tokens", told)]
    rows += [("table", f"{facts['bytes'] / 1e3:.1f} kB"), ("compiled in", f"{facts['compile_ms']:.1f} ms")]
    table(("", ""), [*rows, ("shortest answer", f"{facts['fewest_tokens']} tokens, with the end")])


def _vocabulary(model: str) -> Vocabulary:
    from gapless.constrain.vocabulary import Vocabulary, token_bytes
    from gapless.models.moondream.identify import identify
    from gapless.models.moondream.templates import Templates
    from gapless.skills.own_tokenizer import open_tokenizer
    from gapless.weights.folder import find_files
    from gapless.weights.hub import have

    located = have(model)
    files = find_files(located.folder, located.tokenizer)
    templates = Templates.of(identify(files, located.behaves))
    rules = templates.rules()
    return Vocabulary(token_bytes(open_tokenizer(templates, files.tokenizer), rules.vocab), rules.end)
