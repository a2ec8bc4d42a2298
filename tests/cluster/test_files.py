"""The files in cluster/: each follows a schema that rejects unknown keys, and none lacks the token or runs as root."""

import copy
import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from helpers import deployment_schemas as schemas
from helpers.project import ROOT, shell
from raysum.config.loading import load_config

CLUSTER = ROOT / "cluster"
YAML = sorted(path.relative_to(CLUSTER).as_posix() for path in CLUSTER.rglob("*.y*ml"))
KUBERAY = [name for name in YAML if name.startswith("kuberay/")]
RAY_UP = [name for name in YAML if name.startswith("ray-up/")]
DOCKERFILES = sorted((CLUSTER / "docker").iterdir())
# Mappings with keys of the user's own: names of nodes, services, variables, folders, resources.
FREE = {"available_node_types", "resources", "file_mounts", "env_vars", "environment", "services", "secrets", "volumes"}
FREE |= {"stringData", "x-ray"}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def check(name: str, document: dict[str, Any]) -> None:
    """Raises an exception if the document has an unknown key or a value of a wrong type."""
    if name.startswith("kuberay/"):
        check_kuberay(document)
    elif name.startswith("ray-up/"):
        check_ray_up(document)
    else:
        CHECKS[name](document)


def check_kuberay(document: dict[str, Any]) -> None:
    resource = schemas.KINDS[document["kind"]].model_validate(document)
    if isinstance(resource, schemas.RayService):
        check_serve(yaml.safe_load(resource.spec.serveConfigV2))
    elif not isinstance(resource, schemas.Secret):
        job = resource.spec if isinstance(resource, schemas.RayJob) else resource.spec.jobTemplate
        check_runtime_environment(yaml.safe_load(job.runtimeEnvYAML))


def check_runtime_environment(values: dict[str, Any]) -> None:
    from ray.runtime_env import RuntimeEnv

    assert set(values) <= RuntimeEnv.known_fields
    assert RuntimeEnv(**values).env_vars()["RAY_AUTH_MODE"] == "token"


def check_serve(values: dict[str, Any]) -> None:
    """Ray's schema of Serve ignores unknown keys at several levels."""
    from ray.serve.schema import ServeDeploySchema

    from raysum.serve.config import ServeConfig

    ServeDeploySchema.model_validate(values)
    assert not (unknown := [*unknown_keys(values, ServeDeploySchema)]), unknown
    for application in values["applications"]:
        check_runtime_environment(application["runtime_env"])
        config = ServeConfig.model_validate(application["args"])
        assert callable(resolve_name(application["import_path"]))
        assert config.host == values["http_options"]["host"]


def unknown_keys(values: Any, model: type[BaseModel]) -> Iterator[str]:
    for key, value in values.items():
        field = model.model_fields.get(key)
        if field is None:
            yield f"{model.__name__}.{key}"
            continue
        annotations = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = next((one for one in annotations if isinstance(one, type) and issubclass(one, BaseModel)), None)
        for one in value if isinstance(value, list) else [value]:
            if inner and isinstance(one, dict):
                yield from unknown_keys(one, inner)


def check_ray_up(document: dict[str, Any]) -> None:
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(document, schema)
    kind = document["provider"]["type"]
    provider = schemas.PROVIDERS[kind].model_validate(document["provider"])
    if isinstance(provider, schemas.AwsProvider):
        permissions = {"GroupName": "g", "IpPermissions": provider.security_group.IpPermissions}
        check_aws("AuthorizeSecurityGroupIngress", permissions)
    for node in document.get("available_node_types", {}).values():
        if kind == "aws":
            check_aws("RunInstances", node["node_config"] | {"MinCount": 1, "MaxCount": 1})
        else:
            schemas.GcpNode.model_validate(node["node_config"])


@cache
def ec2() -> Any:
    from botocore.session import get_session

    return get_session().get_service_model("ec2")


def check_aws(operation: str, parameters: dict[str, Any]) -> None:
    """botocore has the parameters of each AWS request."""
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(parameters, ec2().operation_model(operation).input_shape)
    assert not report.has_errors(), report.generate_report()


CHECKS = {
    "job-env.yaml": check_runtime_environment,
    "prometheus.yml": schemas.Prometheus.model_validate,
    "compose/prometheus.yml": schemas.Prometheus.model_validate,
    "compose/compose.yaml": schemas.Compose.model_validate,
    "grafana/provisioning/datasources/prometheus.yaml": schemas.DataSources.model_validate,
    "grafana/provisioning/dashboards/raysum.yaml": schemas.Dashboards.model_validate,
}


def mappings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all mappings with fixed keys."""
    if isinstance(value, dict):
        # `resources` is free in `ray up`, where its keys are in capitals, and fixed in a pod.
        if value and not (path and path[-1] in FREE and not {"requests", "limits"} & value.keys()):
            yield path
        for key, one in value.items():
            if key != "x-ray":
                yield from mappings(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from mappings(one, (*path, index))


def follow(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def misspelt(document: Any, path: tuple[Any, ...], key: str) -> Any:
    document = copy.deepcopy(document)
    values = follow(document, path)
    values[key + "z"] = values.pop(key)
    return document


def embedded(document: dict[str, Any]) -> tuple[tuple[str, ...], str] | None:
    """The place and name of the YAML text within a resource of KubeRay."""
    spec = document.get("spec", {})
    if "serveConfigV2" in spec:
        return ("spec",), "serveConfigV2"
    if "jobTemplate" in spec:
        return ("spec", "jobTemplate"), "runtimeEnvYAML"
    return (("spec",), "runtimeEnvYAML") if "runtimeEnvYAML" in spec else None


@pytest.mark.parametrize("name", YAML)
def test_a_file_follows_its_schema(name):
    for document in documents(name):
        check(name, document)


@pytest.mark.parametrize("name", YAML)
def test_a_misspelt_key_is_found_at_every_level(name):
    cases = 0
    for document in documents(name):
        for path in mappings(document):
            for key in follow(document, path):
                cases += 1
                with pytest.raises(Exception):  # noqa: B017 - each schema has its own class
                    check(name, misspelt(document, path, key))
                    pytest.fail(f"{name}: {key}z at {path} is accepted")
    assert cases


@pytest.mark.parametrize("name", [name for name in KUBERAY if name != "kuberay/secrets.yaml"])
def test_a_misspelt_key_in_embedded_yaml_is_found(name):
    (document,) = documents(name)
    path, field = embedded(document)
    outer = follow(document, path)
    inner = yaml.safe_load(outer[field])
    for place in mappings(inner):
        for key in follow(inner, place):
            outer[field] = yaml.safe_dump(misspelt(inner, place, key))
            with pytest.raises(Exception):  # noqa: B017 - each schema has its own class
                check(name, document)
                pytest.fail(f"{name}: {key}z at {place} is accepted")


def test_jobs_of_kuberay_have_the_environment_of_submitted_jobs():
    expected = yaml.safe_load((CLUSTER / "job-env.yaml").read_text())
    jobs = [document["spec"] for name in KUBERAY for document in documents(name) if document["kind"] == "RayJob"]
    jobs += [document["spec"]["jobTemplate"] for document in documents("kuberay/evaluate.yaml")]
    assert len(jobs) == 4 and all(yaml.safe_load(job["runtimeEnvYAML"]) == expected for job in jobs)


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_fills_the_defaults_of_a_cluster_and_every_node_has_the_token(name):
    from ray.autoscaler._private.util import prepare_config, validate_config

    (document,) = documents(name)
    validate_config(prepare_config(copy.deepcopy(document)))
    assert document["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"
    assert "--env RAY_AUTH_MODE=token" in document["docker"]["run_options"]
    assert not re.search(r"dashboard-host", (CLUSTER / name).read_text())


def test_services_of_compose_authenticate_and_listen_on_loopback_only():
    services = documents("compose/compose.yaml")[0]["services"]
    for service in (services[name] for name in ("head", "worker", "job")):
        assert service["environment"]["RAY_AUTH_MODE"] == "token" and service["secrets"] == ["ray-token"]
    assert all("127.0.0.1:" in port for service in services.values() for port in service.get("ports", ()))
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    secrets = documents("compose/compose.yaml")[0]["secrets"].values()
    assert {f"/cluster/compose/{Path(secret['file']).name}" for secret in secrets} <= set(ignored)


def test_versions_of_ray_and_raysum_are_those_of_the_package():
    setup, pins = (ROOT / "setup.cfg").read_text(), (ROOT / "constraints.txt").read_text()
    ray, own = re.search(r"^ray==(\S+)", pins, re.MULTILINE)[1], re.search(r"^version = (\S+)", setup, re.MULTILINE)[1]
    text = "\n".join(path.read_text() for path in CLUSTER.rglob("*") if path.is_file() and path.suffix != ".json")
    assert {*re.findall(r"rayproject/ray:([\d.]+)", text), *re.findall(r'rayVersion: "([\d.]+)"', text)} == {ray}
    assert {*re.findall(r"raysum:([\d.]+)-c", text)} == {own}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_pins_its_base_and_runs_as_a_user(path):
    lines = re.sub(r"\\\n", " ", path.read_text()).splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    kinds = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "USER", "ENV", "CMD"}
    assert {kind for kind, _ in steps} <= kinds  # a misspelt instruction
    bases = [value for kind, value in steps if kind == "FROM"]
    assert all(re.fullmatch(r"[\w/.-]+:[\w.-]*\d+\.\d+\.\d+[\w.-]*", base) for base in bases), bases
    assert [value for kind, value in steps if kind == "USER"][-1] not in ("root", "0")
    assert not [
        value for kind, value in steps if kind in ("ENV", "ARG") and re.search("(?i)(secret|key|password)", value)
    ]
    assert not [value for kind, value in steps if kind == "RUN" and re.search(r"(curl|wget).*\|", value)]
    copied = [part for kind, value in steps if kind == "COPY" for part in value.split()[1:-1]]
    assert all((ROOT / part).exists() for part in copied)
    assert "https://" not in path.read_text()  # the index is an argument


def test_the_slurm_script_is_valid_bash_and_uses_options_that_ray_has():
    script = CLUSTER / "slurm" / "train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    from ray.scripts.scripts import start
    from ray.scripts.symmetric_run import symmetric_run

    known = {option for command in (start, symmetric_run) for one in command.params for option in one.opts}
    call = re.search(r"ray symmetric-run(.*?)\s-- ", text, re.DOTALL)[1]
    used = set(re.findall(r"--[a-z-]+", call))
    assert {"--address", "--min-nodes"} <= used <= known
    assert not used & {"--head", "--port", "--block", "--node-ip-address"}  # symmetric-run refuses these
    assert re.search(r"RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=(\d+)", text)[1] == "600"
    assert "RAY_AUTH_MODE=token" in text


def test_the_readme_names_every_file_and_its_trainings_have_valid_settings():
    text = (CLUSTER / "README.md").read_text()
    links = {(CLUSTER / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", text)}
    assert all(link.exists() for link in links)
    unnamed = {"job-env.yaml", "README.md"} | {"compose/prometheus.yml"}  # used in commands, or by a named file
    files = {path for path in CLUSTER.rglob("*") if path.is_file() and "provisioning" not in path.parts}
    files = {path for path in files if path.relative_to(CLUSTER).as_posix() not in unnamed and path.suffix != ".pyc"}
    assert {path for path in files if not {path, path.parent} & links and path.name not in text} == set()
    trainings = re.findall(r"train(?:.sbatch)? pht (.*)", text)
    assert len(trainings) == 3
    for settings in trainings:
        assert load_config("pht", settings.split()).train.workers in (2, 4, 8)


def test_the_sizes_in_the_readme_are_those_of_the_presets():
    rows = re.findall(
        r"^\| `(\S+)` \| \d+ M \| ([\d,]+) \| \S+ \| ([\d,]+) \|", (CLUSTER / "README.md").read_text(), re.M
    )
    assert rows
    for preset, tokens, steps in rows:
        train = load_config(preset, []).train
        assert (tokens, steps) == (f"{train.batch_tokens * train.micro_batches:,}", f"{train.steps:,}")


def test_no_file_has_a_secret():
    for path in CLUSTER.rglob("*"):
        if path.is_file():
            assert not re.search(r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|\b[0-9a-f]{64}\b", path.read_text()), path
    for secret in documents("kuberay/secrets.yaml"):
        assert not any(secret["stringData"].values())


@pytest.mark.parametrize("name", KUBERAY)
def test_a_resource_follows_the_full_definition_of_kuberay(name):
    """RAYSUM_KUBERAY_CRDS is a folder with the YAML files of ray-operator/config/crd/bases in KubeRay's repository."""
    if not (folder := os.environ.get("RAYSUM_KUBERAY_CRDS")):
        pytest.skip("set RAYSUM_KUBERAY_CRDS to a folder with KubeRay's CRDs")
    rules = full_definitions(folder)
    for document in documents(name):
        if document["kind"] in rules:
            jsonschema.validate(document, rules[document["kind"]])
            for path in [path for path in mappings(document) if path]:
                broken = misspelt(document, path, next(iter(follow(document, path))))
                if path[-1] not in ("metadata", "requests", "limits", "rayStartParams"):
                    with pytest.raises(jsonschema.ValidationError):
                        jsonschema.validate(broken, rules[document["kind"]])


@cache
def full_definitions(folder: str) -> dict[str, Any]:
    rules = {}
    for path in Path(folder).glob("*.yaml"):
        definition = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
        (version,) = (one for one in definition["versions"] if one["name"] == "v1")
        rules[definition["names"]["kind"]] = forbid_unknown(version["schema"]["openAPIV3Schema"])
    return rules


def forbid_unknown(schema: Any) -> Any:
    """The schema without keys that it does not list, as the API server checks it."""
    if isinstance(schema, list):
        return [forbid_unknown(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: forbid_unknown(value) for key, value in schema.items()}
    if (
        isinstance(schema.get("properties"), dict)
        and "additionalProperties" not in schema
        and schema.get("type") == "object"
    ):
        schema["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    return schema


def test_a_step_on_many_gpus_is_projected():
    done = shell("python cluster/projection.py pht-1 8", ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^launches of \d{3} kernels +\d+\.\d\d ms$", done.stdout, re.MULTILINE)
    assert re.search(r"^pht-1 on 8 GPUs: [1-9]", done.stdout, re.MULTILINE)
