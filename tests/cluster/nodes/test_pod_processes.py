"""Pods whose containers run as processes: started in order, started again, ended; and what their status says."""

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from tests.cluster.embedding import Lab, embedded, served

from plugwright.apiserver.kinds import CONFIG_MAPS
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object

STAY = "trap 'exit 0' TERM; sleep 1000 & wait"


def container(script: str, name: str = "main", **more: object) -> Object:
    return {"name": name, "image": "busybox:1", "command": ["/bin/sh", "-c", script], **more}


def waits(reason: str) -> Callable[[Object], bool]:
    return lambda shown: bool(shown["state"].get("waiting", {}).get("reason") == reason)


def config_map(lab: Lab, name: str, **data: str) -> None:
    lab.writer.create(ResourcePath(CONFIG_MAPS, "default", name), {"metadata": {"name": name}, "data": data}, "test")


async def text(lab: Lab, name: str, container: str = "main", **options: object) -> str:
    return b"".join([part async for part in lab.read_log(name, container, **options)]).decode()


async def test_a_container_that_ends_again_and_again_waits_longer_each_time() -> None:
    async with embedded(processes=True) as lab:
        lab.create("p", containers=[container("echo run; exit 3")])
        shown = await lab.container("p", lambda shown: waits("CrashLoopBackOff")(shown) and shown["restartCount"] == 2)
        uid = (lab.pod("p") or {})["metadata"]["uid"]
        message = f"back-off 200ms restarting failed container=main pod=p_default({uid})"
        assert shown["state"]["waiting"]["message"] == message
        assert shown["lastState"]["terminated"]["exitCode"] == 3
        assert shown["lastState"]["terminated"]["reason"] == "Error"
        assert lab.status("p")["phase"] == "Running"
        assert ("BackOff", f"Back-off restarting failed container main in pod p_default({uid})") in lab.events("p")
        assert await text(lab, "p") == await text(lab, "p", previous=True) == "run\n"


async def test_on_failure_restarts_until_it_succeeds(tmp_path: Path) -> None:
    script = f"test -e {tmp_path}/second && exit 0; touch {tmp_path}/second; exit 1"
    async with embedded(processes=True) as lab:
        lab.create("p", containers=[container(script)], restartPolicy="OnFailure")
        status = await lab.phase("p", "Succeeded")
        (shown,) = status["containerStatuses"]
        assert (shown["restartCount"], shown["state"]["terminated"]["reason"]) == (1, "Completed")
        assert shown["lastState"]["terminated"]["exitCode"] == 1


async def test_a_container_has_a_restart_policy_of_its_own() -> None:
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    again = container("exit 42", restartPolicy="Never", restartPolicyRules=rules)
    async with embedded(processes=True) as lab:
        lab.create("p", containers=[again], restartPolicy="Never")
        await lab.container("p", waits("CrashLoopBackOff"))
        lab.create("q", containers=[container("exit 4", restartPolicy="Never")])
        await lab.phase("q", "Failed")


async def test_containers_wait_for_an_init_container_that_fails() -> None:
    async with embedded(processes=True) as lab:
        lab.create("p", initContainers=[container("exit 1", "first")], containers=[container(STAY)])
        await lab.container("p", waits("CrashLoopBackOff"), "first")
        status = lab.status("p")
        assert status["phase"] == "Pending"
        assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


async def test_init_containers_end_one_after_the_other_before_the_others_begin(tmp_path: Path) -> None:
    inits = [container(f"echo {name} >> {tmp_path}/order", name) for name in ("first", "second")]
    async with embedded(processes=True) as lab:
        lab.create("p", initContainers=inits, containers=[container(f"cat {tmp_path}/order")], restartPolicy="Never")
        await lab.phase("p", "Succeeded")
        assert await text(lab, "p") == "first\nsecond\n"


async def test_a_sidecar_is_restarted_and_ends_with_the_containers_it_is_for(tmp_path: Path) -> None:
    restarted = f"test -e {tmp_path}/again && {{ {STAY}; }}; touch {tmp_path}/again; exit 1"
    sidecar = container(restarted, "beside", restartPolicy="Always")
    main = container(f"while ! test -e {tmp_path}/end; do sleep 0.02; done")
    async with embedded(processes=True) as lab:
        lab.create("p", initContainers=[sidecar], containers=[main], restartPolicy="Never")
        await lab.container("p", lambda shown: shown["restartCount"] == 1 and "running" in shown["state"], "beside")
        (tmp_path / "end").touch()
        status = await lab.phase("p", "Succeeded")
        assert status["initContainerStatuses"][0]["state"]["terminated"]
        assert ("Killing", "Stopping container beside") in lab.events("p")


async def test_a_container_that_is_deleted_may_end_by_itself() -> None:
    script = "trap 'echo bye; exit 7' TERM; echo ready; sleep 1000 & wait"
    async with embedded(processes=True) as lab:
        lab.create("p", containers=[container(script)])
        await lab.phase("p")
        followed = lab.read_log("p", follow=True)
        assert await anext(followed) == b"ready\n"
        revision = lab.store.revision
        lab.delete("p")
        assert [part async for part in followed] == [b"bye\n"]
        await lab.gone("p")
        (ended,) = [
            change.object["status"]
            for change in await lab.store.changes(revision)
            if change.type == "MODIFIED" and change.object.get("status", {}).get("phase") == "Failed"
        ]
        assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
        assert ("Killing", "Stopping container main") in lab.events("p")


async def test_a_pod_past_its_deadline_has_failed() -> None:
    async with embedded(processes=True) as lab:
        stubborn = container("sleep 1000")
        lab.create("p", containers=[stubborn], activeDeadlineSeconds=1, terminationGracePeriodSeconds=1)
        status = await lab.phase("p", "Failed")
        assert (status["reason"], status["containerStatuses"][0]["state"]["terminated"]["exitCode"]) == (
            "DeadlineExceeded",
            143,
        )
        text = "Pod was active on the node longer than the specified deadline"
        assert status["message"] == text
        assert ("DeadlineExceeded", text) in lab.events("p")


async def test_a_pod_that_is_not_run_has_a_deadline_too() -> None:
    async with embedded() as lab:
        lab.create("p", activeDeadlineSeconds=1)
        status = await lab.phase("p", "Failed")
        assert status["reason"] == "DeadlineExceeded"
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


async def test_variables_come_from_the_pod_and_from_config_maps() -> None:
    env: list[Object] = [
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "SELF", "value": "$(NODE)/$(MODEL) $$(NODE)"},
        {"name": "MODEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "model"}}},
        {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "other", "key": "x", "optional": True}}},
    ]
    main = container("echo $SELF $A_model ${NONE-unset} $0", env=env, args=["$(MODEL)"])
    main["envFrom"] = [{"prefix": "A_", "configMapRef": {"name": "settings"}}]
    async with embedded(processes=True) as lab:
        config_map(lab, "settings", model="x1")
        lab.create("p", containers=[main], restartPolicy="Never")
        await lab.phase("p", "Succeeded")
        assert await text(lab, "p") == "node-1/$(MODEL) $(NODE) x1 unset x1\n"


@pytest.mark.parametrize("processes", [True, False])
async def test_a_container_waits_for_what_it_refers_to(processes: bool) -> None:
    main = container(STAY, envFrom=[{"configMapRef": {"name": "late"}}])
    async with embedded(processes=processes) as lab:
        lab.create("p", containers=[main])
        shown = await lab.container("p", waits("CreateContainerConfigError"))
        assert shown["state"]["waiting"]["message"] == 'configmap "late" not found'
        await lab.cluster.until(lambda: ("Failed", 'Error: configmap "late" not found') in lab.events("p"))
        config_map(lab, "late", a="1")
        await lab.phase("p")


@pytest.mark.parametrize("processes", [True, False])
async def test_a_volume_that_cannot_be_set_up_keeps_the_containers_waiting(processes: bool) -> None:
    async with embedded(processes=processes) as lab:
        volumes = [{"name": "settings", "configMap": {"name": "late"}}]
        main = container(STAY, volumeMounts=[{"name": "settings", "mountPath": "/settings"}])
        lab.create("p", containers=[main], volumes=volumes)
        failed = ("FailedMount", 'MountVolume.SetUp failed for volume "settings" : configmap "late" not found')
        await lab.cluster.until(lambda: failed in lab.events("p"))
        assert (await lab.container("p", waits("ContainerCreating")))["restartCount"] == 0
        lab.create("q", containers=[main], volumes=[{"name": "settings", "nfs": {"server": "s", "path": "/"}}])
        await lab.cluster.until(lambda: any("does not emulate" in message for _, message in lab.events("q")))
        config_map(lab, "late", a="1")
        await lab.phase("p")


async def test_volumes_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from the machine")
    volumes = [
        {"name": "settings", "configMap": {"name": "settings", "items": [{"key": "model", "path": "a/model"}]}},
        {"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
        {"name": "shared", "emptyDir": {}},
    ]
    mounts = [
        {"name": name, "mountPath": f"/plugwright-{name}", "readOnly": name == "host"}
        for name in ("settings", "host", "shared")
    ]
    write = container("echo hello > /plugwright-shared/x", "first", volumeMounts=mounts)
    script = "cat /plugwright-settings/a/model /plugwright-shared/x /plugwright-host/given; touch /plugwright-host/no"
    async with embedded(processes=True) as lab:
        config_map(lab, "settings", model="x1\n", other="no")
        main = container(f"cd /plugwright-shared; {script} 2>/dev/null", volumeMounts=mounts)
        lab.create("p", initContainers=[write], containers=[main], volumes=volumes, restartPolicy="Never")
        await lab.phase("p", "Failed")
        assert await text(lab, "p") == "x1\nhello\nfrom the machine"
    assert not (tmp_path / "no").exists()


async def test_the_last_message_is_in_the_status() -> None:
    async with embedded(processes=True) as lab:
        said = container("echo -n no tape > /run/why; exit 1", terminationMessagePath="/run/why")
        silent = container("echo last words; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
        lab.create("p", containers=[said], restartPolicy="Never")
        lab.create("q", containers=[silent], restartPolicy="Never")
        for name, message in (("p", "no tape"), ("q", "last words\n")):
            status = await lab.phase(name, "Failed")
            assert status["containerStatuses"][0]["state"]["terminated"]["message"] == message


async def test_a_container_without_a_command_is_not_created() -> None:
    async with embedded(processes=True) as lab:
        lab.create("p", containers=[{"name": "main", "image": "busybox:1"}])
        shown = await lab.container("p", waits("CreateContainerError"))
        assert "no command specified" in shown["state"]["waiting"]["message"]


async def test_an_entrypoint_is_that_of_the_image_where_it_is_known() -> None:
    async with embedded(processes=True) as lab:
        image = "registry.example.com/x/plugwright:1.2"
        lab.create("p", containers=[{"name": "main", "image": image, "args": ["--version"]}], restartPolicy="Never")
        await lab.phase("p", "Succeeded")
        assert "plugwright" in await text(lab, "p")


async def test_a_container_whose_log_cannot_be_written_waits(tmp_path: Path) -> None:
    async with embedded(processes=True, state=tmp_path) as lab:
        blocked = lab.cluster.directory("node-1") / "logs"
        blocked.write_text("a file")
        lab.create("p", containers=[container(STAY)])
        shown = await lab.container("p", waits("CreateContainerError"))
        assert "Not a directory" in shown["state"]["waiting"]["message"]
        blocked.unlink()
        await lab.phase("p")


@asynccontextmanager
async def api_client(kubeconfig: Path, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    cluster = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]
    trusted = ssl.create_default_context(cafile=cluster["certificate-authority"])
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=cluster["server"], verify=trusted, headers=headers) as client:
        yield client


async def test_a_follower_gets_each_line_when_it_is_written_and_may_leave(tmp_path: Path) -> None:
    script = f"echo one; while ! test -e {tmp_path}/go; do sleep 0.02; done; echo two; {STAY}"
    async with embedded(processes=True) as lab, served(lab, tmp_path) as kubeconfig:
        lab.create("p", containers=[container(script)])
        await lab.phase("p")
        async with api_client(kubeconfig, lab.cluster.token) as api:
            url = "/api/v1/namespaces/default/pods/p/log?follow=true"
            async with api.stream("GET", url) as answer, aclosing(answer.aiter_lines()) as lines:  # type: ignore[type-var]
                assert await anext(lines) == "one"
                (tmp_path / "go").touch()
                assert await anext(lines) == "two"
            async with api.stream("GET", url) as answer:
                lab.delete("p")
                assert [line async for line in answer.aiter_lines()] == ["one", "two"]
