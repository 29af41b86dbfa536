"""Several pictures in one prompt: every device says what the oracle says, at every depth, preempted or not."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.oracle import answer
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Stage, expected, limits_of, mix_of_requests, picture, sim_stage, table_of
from tests.fakes.sim_clock import SimClock
from tests.fakes.verdict import judge_all
from tests.gpu.mixes import mix

from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import build_table
from gapless.device.host import HostDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates

SPEC = HashSpec()
INSET = SPEC.prefix - 1
AMPLE, SCARCE = 400, 38


def scene(seed, host=0.0):
    """Ten at once that talk long."""
    entries = mix_of_requests(seed, 10, host=host, spread=2, inset=INSET)
    long = {"max_tokens": 35, "max_objects": 10}
    return [replace(e, request=replace(e.request, sampling=replace(e.request.sampling, **long))) for e in entries]


@contextmanager
def stage_on(device, depth, pages, seed):
    """A stage and all the prompts its device is given."""
    with ExitStack() as stack:
        if device == "sim":
            stage, refereed = sim_stage(SPEC, limits_of(SPEC, depth, pages=pages), delays=(0.0, 3.0))
        else:
            make = host_stage if device == "host" else inline_stage
            made = make(HashModel(SPEC), depth, pages=pages, seed=seed, delays=(0.0, 0.001))
            stage, refereed = stack.enter_context(made)
        launch, told = refereed.launch, []

        def watched(step):
            told.append(step.prefills)
            launch(step)

        refereed.launch = watched
        yield stage, refereed, told


def play(device, depth, pages, seeds, host):
    """Judge all answers; how many steps fed prompts with and without insets, and how many insets were computed again
    with what had been said: the prefix cache had lost them."""
    mixed = again = 0
    for seed in seeds:
        entries = scene(seed, host)
        assert sum(len(entry.request.prompt.insets) for entry in entries) > 6
        with stage_on(device, depth, pages, seed) as (stage, refereed, told):
            judge_all(stage.play(entries), expected(SPEC, entries), entries)
            refereed.audit()
        mixed += sum(len({bool(prompt.insets) for prompt in prompts}) > 1 for prompts in told)
        again += sum(bool(p.insets) and p.start.left != p.start.left_next for prompts in told for p in prompts)
    return mixed, again


@pytest.mark.parametrize(("depth", "host"), [(1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0), (1, 0.5), (3, 0.5)])
def test_the_engine_is_exact(depth, host):
    mixed, _ = play("sim", depth, AMPLE, (0,), host)
    _, again = play("sim", depth, SCARCE, (0, 2), host)
    assert mixed > 0 and again > 0


@pytest.mark.parametrize(
    ("device", "depth", "seed"), [("host", 1, 2), ("host", 2, 2), ("inline", 2, 2), ("inline", 4, 0)]
)
def test_devices_are_exact(device, depth, seed):
    mixed, again = play(device, depth, SCARCE, (seed,), 0.0)
    assert mixed > 0 and again > 0


@pytest.mark.slow
@pytest.mark.parametrize("host", [0.0, 0.5])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("device", ["sim", "host", "inline"])
def test_many_seeds(device, depth, host):
    for pages in (AMPLE, SCARCE):
        play(device, depth, pages, range(100, 104), host)


def test_the_oracle_tells_pictures_and_places_apart():
    """Else nothing above would show that one was swapped or lost."""
    entry = next(e for e in scene(0) if len({i.picture.digest for i in e.request.prompt.insets}) > 1)
    request, table = entry.request, table_of(SPEC)
    prompt, (first, second) = request.prompt, request.prompt.insets
    others = [
        replace(prompt, insets=(replace(first, picture=second.picture), replace(second, picture=first.picture))),
        replace(prompt, insets=(first,)),
        replace(prompt, insets=(second,)),
        replace(prompt, insets=(first, replace(second, picture=picture(99)))),
    ]
    hidden = {answer(SPEC, table, replace(request, prompt=p)).hidden[0] for p in [prompt, *others]}
    assert len(hidden) == 5
    filler = list(prompt.ids)
    filler[first.at] ^= 1
    same = replace(request, prompt=replace(prompt, ids=tuple(filler)))
    assert answer(SPEC, table, same) == answer(SPEC, table, request), "filler is not read"


def answers_of_micro(depth, pages):
    """What the micro model on the rehearsing CPU device says, and how often it read an inset again."""
    model = Moondream(read_config(micro_config()), micro_tensors(micro_config(), end_bias=-30.0))
    table = build_table(Templates.of(model.config).rules())
    config = EngineConfig(depth=depth, max_rows=4, page_size=16, pages=pages, lookahead=4)
    clock, mailbox = SimClock(), ThreadMailbox()
    device = Refereed(HostDevice(model, table, config, HostDeviceConfig(threads=1, poison=True)), table)
    entries = [
        replace(e, request=replace(e.request, program="text", sampling=replace(e.request.sampling, max_tokens=30)))
        for e in mix(model.config, 1, 5, insets=True, spread=2)
    ]
    try:
        stage = Stage(Engine(device, table, config, TableMasks(), mailbox, clock), mailbox, clock)
        heard = stage.play(entries)
    finally:
        device.close()
    assert all(one.finish.error is None for one in heard.values())
    again = sum(bool(p.insets) and p.start.left != p.start.left_next for step in device.steps for p in step.prefills)
    return {id: one.tokens for id, one in heard.items()}, again


def test_real_arithmetic_is_the_same_to_the_last_bit_whatever_the_depth_and_pages():
    right, never = answers_of_micro(1, 100)
    again, often = answers_of_micro(3, 18)
    assert again == right and {len(tokens) for tokens in right.values()} == {30}
    assert never == 0 and often > 0
