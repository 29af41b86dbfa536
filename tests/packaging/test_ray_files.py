"""The files for clusters: settings that exist, names that fit each other, and Ray's own schemas if it is installed."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from gapless.serve.fleet import ENGINE, FleetSettings, engine_options, places_of, read_fleet

ROOT = Path(__file__).resolve().parents[2]
RAY = ROOT / "packaging" / "ray"
BUILDER = "gapless.serve.ray_app:app_builder"
SERVE_KEYS = {"proxy_location", "http_options", "applications"}
APP_KEYS = {"name", "route_prefix", "import_path", "args", "deployments", "runtime_env"}
NO_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'ray[serve]>=2.60,<3'")


def loaded(name):
    return yaml.safe_load((RAY / name).read_text())


def services():
    return {
        "serve.yaml": loaded("serve.yaml"),
        "rayservice.yaml": yaml.safe_load(loaded("rayservice.yaml")["spec"]["serveConfigV2"]),
    }


@pytest.fixture(autouse=True)
def no_file_of_keys(monkeypatch):
    for name in ("GAPLESS_CONFIG", "GAPLESS_API_KEYS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_what_is_served_can_be_built(name):
    told = services()[name]
    assert set(told) == SERVE_KEYS and len(told["applications"]) == 1
    (app,) = told["applications"]
    assert set(app) <= APP_KEYS and app["import_path"] == BUILDER and app["route_prefix"] == "/"
    server, fleet = read_fleet({key: value for key, value in app["args"].items() if key != "api_keys_file"})
    assert told["http_options"]["request_timeout_s"] > server.request_timeout
    assert engine_options(server, fleet)["ray_actor_options"]["num_gpus"] == 1
    assert fleet.most > 1 and places_of(server, fleet) > server.max_requests


def test_both_serve_the_same_and_the_sample_names_all_that_can_be_set():
    one, other = (services()[name]["applications"][0]["args"] for name in ("serve.yaml", "rayservice.yaml"))
    assert {k: v for k, v in one.items() if k != "fleet"} | {"api_keys_file": "/etc/gapless/api-keys"} == {
        k: v for k, v in other.items() if k != "fleet"
    }
    assert other["fleet"].items() <= one["fleet"].items()
    text = (RAY / "serve.yaml").read_text()
    section = text[text.index("      fleet:") : text.index("    # Adapters can come")]
    named = set(re.findall(r"^ +#?([a-z_]+): ", section, flags=re.M))
    assert named == set(FleetSettings.model_fields) - {"cpus"}
    assert f"name: {ENGINE}" in text


def test_defaults_in_the_sample_are_those():
    fleet = services()["serve.yaml"]["applications"][0]["args"]["fleet"]
    own = {"max_replicas", "fronts", "gpus", "version"}
    fields = FleetSettings.model_fields
    assert {k: v for k, v in fleet.items() if k not in own} == {k: fields[k].default for k in fleet if k not in own}


def test_the_kubernetes_manifest_fits_itself():
    manifest = loaded("rayservice.yaml")
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    cluster = manifest["spec"]["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    args = services()["rayservice.yaml"]["applications"][0]["args"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"] == args["fleet"]["max_replicas"]
    pods = [cluster["headGroupSpec"]["template"]["spec"], group["template"]["spec"]]
    for pod in pods:
        (container,) = pod["containers"]
        resources = container["resources"]
        assert resources["requests"] == resources["limits"] and container["image"] == "gapless-ray:0.1.0"
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert services()["rayservice.yaml"]["http_options"]["port"] in [p["containerPort"] for p in container["ports"]]
        assert {"livenessProbe", "readinessProbe"} <= set(container)
    worker = pods[1]["containers"][0]["resources"]["limits"]
    assert worker["nvidia.com/gpu"] == "1" and pods[1]["terminationGracePeriodSeconds"] > args["drain_timeout"]
    assert all(isinstance(value, str) for value in cluster["headGroupSpec"]["rayStartParams"].values())
    assert cluster["authOptions"] == {"mode": "token"}
    extra = re.search(r'"ray\[serve\]>=([\d.]+),', (ROOT / "pyproject.toml").read_text())[1]
    assert cluster["rayVersion"].startswith(extra)


def test_the_cluster_file_fits_the_others():
    cluster = loaded("cluster.yaml")
    assert (
        cluster["docker"]["image"]
        == loaded("rayservice.yaml")["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0][
            "image"
        ]
    )
    assert cluster["max_workers"] == len(cluster["provider"]["worker_ips"])
    sources = [source for source in cluster["file_mounts"].values() if not source.startswith("~")]
    assert sources and all((ROOT / source).is_file() for source in sources)
    assert "ARG EXTRA=serve" in (ROOT / "Dockerfile").read_text() and '".[$EXTRA]"' in (ROOT / "Dockerfile").read_text()
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    assert sum("RAY_AUTH_MODE=token ray start" in command for command in commands) == 2


@pytest.mark.slow
@NO_RAY
@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_ray_reads_the_serve_files(name):
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(services()[name])
    assert schema.applications[0].import_path == BUILDER
    full = (
        (RAY / "serve.yaml").read_text().replace("    #deployments:", "    deployments:").replace("    #  ", "      ")
    )
    given = ServeDeploySchema.model_validate(yaml.safe_load(full)).applications[0].deployments
    assert given[0].name == ENGINE and given[0].user_config["adapters"]


@pytest.mark.slow
@NO_RAY
def test_rays_launcher_reads_the_cluster_file():
    import jsonschema
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(loaded("cluster.yaml"), schema)
