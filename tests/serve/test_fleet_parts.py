"""The parts of a fleet that need no Ray: its settings, how many engines there are to be, its metrics and adapters."""

import ast
import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gapless.cli.main import main
from gapless.errors import InvalidAdapter, InvalidRequest
from gapless.serve.fleet import engine_options, front_options, gpus_of, places_of, read_fleet, target_of
from gapless.serve.fleet_adapters import FleetAdapters
from gapless.serve.fleet_health import check_generates
from gapless.serve.fleet_metrics import front_families, merged
from gapless.serve.ray_run import with_replicas
from gapless.serve.scaling import QueueAndBubble, Told, idle_share, wanted

SERVE = Path(__file__).resolve().parents[2] / "src" / "gapless" / "serve"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("GAPLESS_CONFIG", "GAPLESS_MODEL", "GAPLESS_API_KEYS"):
        monkeypatch.delenv(name, raising=False)


def test_ray_is_imported_by_its_own_files_alone():
    for path in SERVE.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
        names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        rays = {name for name in names if name.partition(".")[0] == "ray"}
        assert not rays or path.name in ("ray_app.py", "ray_router.py"), path


def test_an_engine_has_a_gpu_and_glint_has_none():
    server, fleet = read_fleet({"model": "vikhyatk/moondream2"})
    assert (gpus_of(server, fleet), server.device, fleet.most) == (1.0, "cuda", 1)
    assert engine_options(server, fleet)["ray_actor_options"] == {"num_cpus": 4.0, "num_gpus": 1.0}
    assert engine_options(server, fleet)["num_replicas"] == 1
    server, fleet = read_fleet({"model": "glint"})
    assert (gpus_of(server, fleet), server.device) == (0.0, "cpu")
    server, fleet = read_fleet({"model": "glint", "fleet": {"gpus": 1}})
    assert server.device == "cuda" and target_of(server, fleet) == 48


def test_settings_become_options_of_both_deployments(tmp_path):
    told = {
        "min_replicas": 1,
        "max_replicas": 4,
        "fronts": 2,
        "affinity_slack": 5,
        "most_idle": 0.5,
        "target_requests": 7,
    }
    args = {"model": "glint", "max_requests": 10, "drain_timeout": 3, "adapters": {"moon": "glint/moon"}, "fleet": told}
    server, fleet = read_fleet(args)
    engine, front = engine_options(server, fleet), front_options(server, fleet)
    scaling = engine["autoscaling_config"]
    assert "num_replicas" not in engine
    assert [scaling[name] for name in ("min_replicas", "max_replicas", "target_ongoing_requests")] == [1, 4, 7.0]
    assert scaling["policy"]["policy_kwargs"] == {"most_idle": 0.5}
    assert engine["user_config"] == {"adapters": {"moon": "glint/moon"}}
    assert engine["request_router_config"]["request_router_kwargs"] == {"slack": 5}
    assert engine["max_ongoing_requests"] == 10 and engine["graceful_shutdown_timeout_s"] > 3
    assert places_of(server, fleet) == 20 and front["num_replicas"] == 2 and front["max_ongoing_requests"] >= 20


def test_what_is_on_this_machine_is_named_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "cats").mkdir()
    (tmp_path / "keys").write_text("# ours\nabc\n")
    args = {"model": "model", "adapters": {"cats": "cats", "moon": "glint/moon"}, "api_keys_file": "keys"}
    server, _ = read_fleet(args | {"fleet": {"adapters_folder": str(tmp_path)}})
    assert server.model == str(tmp_path / "model")
    assert server.adapters == {"cats": str(tmp_path / "cats"), "moon": "glint/moon"}
    assert server.keys() == ("abc",) and server.api_keys_file is None and "abc" not in repr(server)
    assert server.max_adapters == 8


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"fleet": {"min_replicas": 3, "max_replicas": 2}}, "max_replicas is 2"),
        ({"fleet": {"min_replicas": 0}}, "there is no max_replicas"),
        ({"fleet": {"replicas": 2}}, "fleet.replicas: .*min_replicas"),
        ({"fleet": 3}, "fleet must hold settings"),
        ({"device": "cuda:1"}, "say cuda or auto"),
        ({"device": "cpu", "fleet": {"gpus": 1}}, "leave one of them out"),
        ({"max_request": 2}, "^there is no setting 'max_request'; did you mean max_requests"),
        ({"fleet": {"most_idle": 2}}, "fleet.most_idle"),
    ],
)
def test_what_cannot_be_is_told_by_its_name(args, words):
    with pytest.raises(InvalidRequest, match=words):
        read_fleet(args)


@pytest.mark.parametrize(
    ("now", "held", "waiting", "idle", "number"),
    [
        (1, 10, 0, 0.1, 1),  # as wanted
        (1, 11, 0, 0.1, 2),  # more than one should hold
        (1, 35, 0, 0.1, 4),
        (2, 8, 0, 0.1, 1),  # one is enough
        (2, 8, 3, 0.1, 3),  # rows are short although the number looks fine
        (1, 35, 0, 0.9, 1),  # GPUs idle: something else is slow
        (2, 0, 2, 0.9, 2),  # never fewer while somebody waits
        (2, 8, 0, 0.9, 1),
        (2, 0, 0, 1.0, 0),
        (0, 1, 0, 0.0, 1),
    ],
)
def test_how_many_engines(now, held, waiting, idle, number):
    assert wanted(now, held, 10, waiting, idle) == number


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(1, 20), st.floats(0, 500), st.floats(1, 64), st.floats(0, 50), st.floats(0, 1), st.floats(0, 200))
def test_more_to_do_never_means_fewer_engines(now, held, target, waiting, idle, more):
    number = wanted(now, held, target, waiting, idle)
    assert wanted(now, held + more, target, waiting, idle) >= number
    assert wanted(now, held, target, waiting + more, idle) >= number
    assert number <= now or idle <= 0.6


def test_the_policy_reads_what_replicas_told():
    told = {"waiting": {"a": 2.0, "b": 0.0}, "idle": {"a": 0.0, "b": 0.4}}
    config = SimpleNamespace(target_ongoing_requests=10)
    ctx = SimpleNamespace(aggregated_metrics=told, target_num_replicas=2, total_num_requests=12.0, config=config)
    assert QueueAndBubble()(ctx) == (3, {})
    assert QueueAndBubble(most_idle=0.1)(ctx) == (2, {})
    ctx.aggregated_metrics = None
    assert QueueAndBubble()(ctx) == (2, {})
    assert Told(1.0, 0.5).as_dict() == {"waiting": 1.0, "idle": 0.5}
    assert [idle_share(*spent) for spent in ((0, 0), (1, 4), (9, 4), (-1, 4))] == [0.0, 0.75, 0.0, 1.0]


def test_metrics_of_engines_stand_side_by_side():
    texts = {
        name: "# HELP x_total Things.\n# TYPE x_total counter\n# HELP t Times.\n"
        f'x_total{{kind="k"}} {count}\n# TYPE t histogram\nt_bucket{{le="1"}} 1\nt_bucket{{le="+Inf"}} 2\n'
        "t_sum 3\nt_count 2\n"
        for name, count in (("b", 2), ("a", 1))
    }
    own = front_families({"passed": 3, "lost": 1, "broken": 2}, 4, 9, 2, "front")
    text = merged(texts, own).decode()
    samples = {
        (s.name, *sorted(s.labels.values())): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }
    assert samples["x_total", "a", "k"] == 1 and samples["x_total", "b", "k"] == 2
    assert samples["t_bucket", "+Inf", "b"] == 2 and samples["t_count", "a"] == 2
    assert samples["gapless:fleet_attempts_total", "front", "lost"] == 1
    assert samples["gapless:fleet_broken_answers_total", "front"] == 2
    assert samples["gapless:fleet_engines", "front"] == 2 and samples["gapless:fleet_places", "front"] == 9
    assert text.count("# TYPE x_total counter") == 1


class Shelf:
    """An engine that remembers what it was asked to load."""

    def __init__(self):
        self.loaded, self.calls = {}, []
        self.desk = SimpleNamespace(context=SimpleNamespace(name="glint"))

    async def load_adapter(self, name, path):
        self.calls.append((name, path))
        if name == "broken":
            raise InvalidAdapter("it is broken")
        self.loaded[name] = path

    def unload_adapter(self, name):
        del self.loaded[name]


def test_an_adapter_that_one_engine_knows_is_found_by_the_others(tmp_path, caplog):
    for name in ("cats", "dogs", "broken"):
        (tmp_path / name).mkdir()
    for name in ("given", "glint"):
        (tmp_path / name).mkdir()
    engine = Shelf()

    async def all_of_it():
        adapters = FleetAdapters(engine, tmp_path, {})
        await adapters.find(("cats", "../cats", "glint", "nobody", "", "a" * 99))
        await adapters.find(("cats", "broken"))
        assert engine.calls == [("cats", str(tmp_path / "cats")), ("broken", str(tmp_path / "broken"))]
        await adapters.find_all()
        assert sorted(engine.loaded) == ["cats", "dogs", "given"]
        await asyncio.gather(*(adapters.find(("dogs",)) for _ in range(5)))
        assert len(engine.calls) == 5  # the broken one again

    asyncio.run(all_of_it())
    assert "broken" in caplog.text


def test_a_name_of_the_configuration_wins_over_the_folders_and_leaves_it_to_it(tmp_path, caplog):
    shared, own = tmp_path / "shared", tmp_path / "cats"
    (shared / "cats").mkdir(parents=True)
    own.mkdir()
    engine = Shelf()

    async def all_of_it():
        adapters = FleetAdapters(engine, shared, {"cats": str(own)})
        await adapters.find_all()
        await adapters.find(("cats",))
        assert engine.calls == []
        await adapters.give({})  # an engine that begins now has the folder's
        assert engine.loaded == {"cats": str(shared / "cats")}
        await adapters.give({"cats": str(own)})
        assert engine.loaded == {"cats": str(own)}
        await FleetAdapters(engine, tmp_path / "unmounted", {}).find_all()

    asyncio.run(all_of_it())
    assert "unmounted is not there" in caplog.text


def test_a_wrong_adapter_ends_an_engine_that_begins_and_none_that_runs(tmp_path, caplog):
    for name in ("one", "broken", "two"):
        (tmp_path / name).mkdir()
    paths = {name: str(tmp_path / name) for name in ("one", "broken", "two")}
    engine = Shelf()

    async def all_of_it():
        with pytest.raises(InvalidAdapter, match="it is broken"):
            await FleetAdapters(engine, None, {}).give(paths)
        adapters = FleetAdapters(engine, None, {})
        await adapters.give({"one": paths["one"]})
        await adapters.give(paths)
        assert sorted(engine.loaded) == ["one", "two"]
        await adapters.give({"broken": "glint/none"} | {"two": paths["two"]})
        assert sorted(engine.loaded) == ["two"]

    asyncio.run(all_of_it())
    assert "the adapter broken of the configuration is passed over: it is broken" in caplog.text


def test_adapters_of_the_configuration_come_and_go(tmp_path):
    for name in ("one", "two", "new"):
        (tmp_path / name).mkdir()
    paths = {name: str(tmp_path / name) for name in ("one", "two", "new")}
    engine = Shelf()
    engine.loaded["one"] = paths["one"]

    async def all_of_it():
        adapters = FleetAdapters(engine, None, {"one": paths["one"]})
        await adapters.give({"one": paths["one"], "two": paths["two"]})
        assert engine.calls == [("two", paths["two"])]
        await adapters.give({"two": paths["new"]})
        assert engine.loaded == {"two": paths["new"]}

    asyncio.run(all_of_it())


@pytest.mark.parametrize(
    ("status", "late", "counts", "error"),
    [
        (200, False, [5, 5], None),
        (503, False, [5, 9], "the answer is 503: b'gone'"),
        (200, True, [5, 6], None),
        (200, True, [5, 5], "no token was generated within 0.01 seconds"),
    ],
)
def test_an_engine_is_healthy_if_tokens_come(status, late, counts, error):
    async def probe():
        await asyncio.sleep(60 if late else 0)
        return status, b"gone"

    async def tokens():
        return counts.pop(0)

    checking = check_generates(probe, tokens, 0.01 if late else 30)
    if error is None:
        asyncio.run(checking)
    else:
        with pytest.raises(RuntimeError, match=error):
            asyncio.run(checking)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replicas", "2"], "give --ray too"),
        (["--ray", "--replicas", "many"], "write a number, or two like 1:4"),
        (["--ray", "--replicas", "3:2"], "max_replicas is 2"),
        (["--ray", "--port", "0"], "take no free port"),
        (["--ray", "--device", "cuda:0"], "say cuda or auto"),
    ],
)
def test_a_fleet_that_cannot_be_is_told_before_ray_is_looked_for(words, said, monkeypatch, capsys):
    monkeypatch.setattr("gapless.cli.serve.NEEDED_BY_RAY", ())
    assert main(["serve", *words]) > 0
    assert said in capsys.readouterr().err


def test_the_extra_is_named_where_ray_is_missing(monkeypatch, capsys):
    monkeypatch.setattr("gapless.cli.serve.NEEDED_BY_RAY", ("no_such_package",))
    assert main(["serve", "--ray"]) == 1
    assert "[ray]" in capsys.readouterr().err
    assert with_replicas({"fleet": {"gpus": 1}}, "1:4")["fleet"] == {"gpus": 1, "min_replicas": 1, "max_replicas": 4}
    assert with_replicas({"port": 1}, None) == {"port": 1}
