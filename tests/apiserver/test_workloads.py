"""Deployments and the like by HTTP: defaults, rules, scale, and the sentences about what is not served."""

from pathlib import Path

import pytest
from tests.apiserver.serving import Api, Json

from plugwright.apiserver.kinds.jobs import NOT_EMULATED_IN_JOBS
from plugwright.apiserver.kinds.not_served import KINDS_NOT_SERVED, kinds_page
from plugwright.apiserver.kinds.without_effect import KINDS_WITHOUT_EFFECT

PAGE = Path(__file__).parents[2] / "docs" / "cluster-limits.md"
APPS, BATCH = "/apis/apps/v1/namespaces/default", "/apis/batch/v1/namespaces/default"
LABELS = {"app": "web"}
TEMPLATE: Json = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "demo"}]}}
DEPLOYMENT: Json = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}}
ADVICE = "use `plugwright join` with a real API server"


async def test_a_deployment_gets_the_defaults_of_a_real_cluster(api: Api) -> None:
    created = (await api("POST", f"{APPS}/deployments", DEPLOYMENT)).body
    spec = created["spec"]
    assert (spec["replicas"], spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (1, 10, 600)
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    assert "tolerations" not in spec["template"]["spec"]
    assert created["metadata"]["generation"] == 1
    again = await api.patch(f"{APPS}/deployments/web", {"spec": {"paused": True}})
    assert again.body["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"selector": None}, "spec.selector: Required value"),
        ({"selector": {"matchLabels": {"app": "other"}}}, "`selector` does not match template `labels`"),
        ({"replicas": -1}, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        ({"strategy": {"type": "Blue"}}, 'spec.strategy.type: Unsupported value: "Blue"'),
        ({"strategy": {"rollingUpdate": {"maxSurge": "x"}}}, "must be an integer or percentage"),
        ({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}, "may not be 0 when `maxSurge` is 0"),
        (
            {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}},
            'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"',
        ),
        (
            {"template": {"metadata": {"labels": LABELS}, "spec": {"containers": []}}},
            "spec.template.spec.containers: Required value",
        ),
    ],
)
async def test_a_deployment_that_a_real_cluster_refuses_is_refused(api: Api, spec: object, text: str) -> None:
    assert isinstance(spec, dict)
    answer = await api("POST", f"{APPS}/deployments", {**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], **spec}})
    assert answer.code == 422
    assert text in answer.body["message"]


async def test_the_selector_is_immutable(api: Api) -> None:
    await api("POST", f"{APPS}/deployments", DEPLOYMENT)
    labels = {"app": "other"}
    change = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}
    answer = await api.patch(f"{APPS}/deployments/web", {"spec": change})
    assert "field is immutable" in answer.body["message"]


async def test_scale_is_read_and_written(api: Api) -> None:
    await api("POST", f"{APPS}/deployments", DEPLOYMENT)
    scale = (await api("GET", f"{APPS}/deployments/web/scale")).body
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 1})
    assert scale["status"]["selector"] == "app=web"
    assert (await api.patch(f"{APPS}/deployments/web/scale", {"spec": {"replicas": 4}})).body["spec"]["replicas"] == 4
    await api("PUT", f"{APPS}/deployments/web/scale", {**scale, "spec": {"replicas": 2}})
    assert (await api("GET", f"{APPS}/deployments/web")).body["spec"]["replicas"] == 2
    for bad in ({"spec": {"replicas": -1}}, {"spec": {"replicas": "x"}}):
        assert (await api.patch(f"{APPS}/deployments/web/scale", bad)).code == 422


async def test_a_job_selects_its_own_pods_alone(api: Api) -> None:
    template = {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}
    job = (await api("POST", f"{BATCH}/jobs", {"metadata": {"name": "sum"}, "spec": {"template": template}})).body
    own = job["spec"]["selector"]["matchLabels"]
    assert own == {"batch.kubernetes.io/controller-uid": job["metadata"]["uid"]}
    assert job["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "sum"
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["backoffLimit"]) == (1, 1, 6)


@pytest.mark.parametrize("name", ["podFailurePolicy", "successPolicy"])
async def test_a_job_that_asks_for_what_is_not_emulated_is_refused(api: Api, name: str) -> None:
    template = {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}
    job = {"metadata": {"name": "sum"}, "spec": {"template": template, name: {"rules": [{"action": "FailJob"}]}}}
    answer = await api("POST", f"{BATCH}/jobs", job)
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert f"plugwright does not emulate {name}; {ADVICE}" in answer.body["message"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"schedule": "often"}, "spec.schedule: Invalid value"),
        ({"schedule": "* * * * *", "timeZone": "Nowhere/Here"}, "unknown time zone Nowhere/Here"),
        ({"schedule": "* * * * *", "concurrencyPolicy": "Maybe"}, "spec.concurrencyPolicy: Unsupported value"),
    ],
)
async def test_a_cron_job_without_a_time_is_refused(api: Api, spec: dict[str, str], text: str) -> None:
    job = {"spec": {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}}
    content = {"metadata": {"name": "tick"}, "spec": {"jobTemplate": job, **spec}}
    answer = await api("POST", f"{BATCH}/cronjobs", content)
    assert answer.code == 422
    assert text in answer.body["message"]


async def test_services_get_addresses_of_their_own(api: Api) -> None:
    path = "/api/v1/namespaces/default/services"
    specs = [{"ports": [{"port": 80}]}, {"ports": [{"port": 80}], "type": "NodePort"}]
    found = [
        (await api("POST", path, {"metadata": {"name": f"s{number}"}, "spec": spec})).body["spec"]
        for number, spec in enumerate(specs)
    ]
    assert found[0]["clusterIP"] != found[1]["clusterIP"]
    assert all(spec["clusterIP"].startswith("10.") for spec in found)
    assert found[0]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert 30000 <= found[1]["ports"][0]["nodePort"] < 32768
    kept = await api.patch(f"{path}/s0", {"spec": {"selector": LABELS}})
    assert kept.body["spec"]["clusterIP"] == found[0]["clusterIP"]
    assert (await api("POST", path, {"metadata": {"name": "none"}, "spec": {}})).code == 422


@pytest.mark.parametrize("kind", KINDS_NOT_SERVED, ids=lambda kind: kind.plural)
async def test_a_kind_that_is_not_served_is_refused_with_a_sentence(api: Api, kind: object) -> None:
    group, plural, name, namespaced = kind[:4]  # type: ignore[index]
    root = f"/apis/{group}/v1" if group else "/api/v1"
    listed = {one["name"]: one for one in (await api("GET", root)).body["resources"]}
    assert listed[plural]["kind"] == name
    path = f"{root}/namespaces/default/{plural}" if namespaced else f"{root}/{plural}"
    for method, full in (("GET", path), ("POST", path), ("GET", f"{path}/x")):
        answer = await api(method, full, {})
        assert answer.code == 404
        assert answer.body["message"] == f"plugwright does not emulate {name} objects; {ADVICE}"


async def test_role_bindings_name_a_role_that_cannot_change(api: Api) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    }
    created = (await api("POST", path, binding)).body
    assert created["roleRef"]["apiGroup"] == "rbac.authorization.k8s.io"
    assert "apiGroup" not in created["subjects"][0]
    assert (await api.patch(f"{path}/b", {"roleRef": {"name": "edit"}})).code == 422


def test_the_page_of_limits_lists_what_is_not_served() -> None:
    text = PAGE.read_text().partition("<!-- not served -->")[2].partition("<!-- end -->")[0]
    assert " ".join(text.split()) == f"{kinds_page()}."


@pytest.mark.parametrize("name", NOT_EMULATED_IN_JOBS)
def test_the_page_of_limits_names_what_jobs_do_not_have(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text()


def test_the_page_of_limits_names_every_kind_without_effect() -> None:
    text = PAGE.read_text().partition("Stored without effect")[2].partition("Refused,")[0]
    named = {kind.name.removesuffix("Binding") for kind in KINDS_WITHOUT_EFFECT}
    assert all(name in text for name in named)
