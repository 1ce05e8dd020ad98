"""Containers of pods, each with one thing that a real API server refuses, defaults, or takes as it is."""

from typing import Any

__all__ = ["CONTAINER_SPECS"]

Json = dict[str, Any]
EXEC: Json = {"exec": {"command": ["true"]}}
EMPTY = [{"name": "data", "emptyDir": {}}]
CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}]
MOUNT = {"name": "data", "mountPath": "/data"}


def main(**members: Any) -> Json:
    return {"containers": [{"name": "main", "image": "busybox", **members}]}


def mounted(*mounts: Json, volumes: Any = EMPTY, **members: Any) -> Json:
    return {**main(volumeMounts=list(mounts), **members), "volumes": volumes}


def env(**variable: Any) -> Json:
    return main(env=[variable])


def value_from(**source: Any) -> Json:
    return main(env=[{"name": "A", "valueFrom": source}])


def port(**members: Any) -> Json:
    return main(ports=[members])


def probe(**members: Any) -> Json:
    return main(livenessProbe=members)


def resources(**members: Any) -> Json:
    return main(resources=members)


def limits(**amounts: Any) -> Json:
    return resources(limits={name.replace("__", "/").replace("_", "-"): amount for name, amount in amounts.items()})


def security(**members: Any) -> Json:
    return main(securityContext=members)


def init(**members: Any) -> Json:
    return {**main(), "initContainers": [{"name": "init", "image": "busybox", **members}]}


CONTAINER_SPECS: dict[str, Json] = {
    "container: nothing but name and image": main(),
    "container: no name": {"containers": [{"image": "a"}]},
    "container: no image": {"containers": [{"name": "a"}]},
    "container: name with capitals": main(name="Main"),
    "container: name of 64 characters": main(name="a" * 64),
    "container: two of one name": {"containers": [{"name": "a", "image": "a"}, {"name": "a", "image": "b"}]},
    "container: init of the same name": {**main(), "initContainers": [{"name": "main", "image": "a"}]},
    "container: image with a space before it": main(image=" busybox"),
    "container: image with a tag": main(image="busybox:1.36"),
    "container: image with a digest": main(image=f"busybox@sha256:{'0' * 64}"),
    "container: image of a registry with a port": main(image="registry:5000/a"),
    "container: image tagged latest": main(image="registry:5000/a:latest"),
    "container: pull policy unknown": main(imagePullPolicy="Sometimes"),
    "container: pull policy empty": main(imagePullPolicy=""),
    "container: pull policy kept": main(imagePullPolicy="Never"),
    "container: termination message policy unknown": main(terminationMessagePolicy="Lost"),
    "container: termination message kept": main(
        terminationMessagePolicy="FallbackToLogsOnError", terminationMessagePath="/x"
    ),
    "container: command and arguments": main(
        command=["sh", "-c"], args=["true"], workingDir="/x", tty=True, stdin=True
    ),
    "container: empty command": main(command=[], args=[]),
    "port: protocol defaulted": port(containerPort=80),
    "port: zero": port(containerPort=0),
    "port: too large": port(containerPort=70000),
    "port: negative": port(containerPort=-1),
    "port: host port too large": port(containerPort=80, hostPort=70000),
    "port: protocol unknown": port(containerPort=80, protocol="ICMP"),
    "port: SCTP": port(containerPort=80, protocol="SCTP", name="a"),
    "port: name too long": port(containerPort=80, name="a-name-of-sixteen"),
    "port: name with capitals": port(containerPort=80, name="Web"),
    "port: name of digits": port(containerPort=80, name="80"),
    "port: name with hyphens": port(containerPort=80, name="a--b"),
    "port: two of one name": main(ports=[{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]),
    "port: host port twice": main(ports=[{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}]),
    "port: host network defaults it": {**port(containerPort=80), "hostNetwork": True},
    "port: host network with another one": {**port(containerPort=80, hostPort=81), "hostNetwork": True},
    "env: no name": env(value="x"),
    "env: name with an equals sign": env(name="A=B", value="x"),
    "env: name with letters beyond ASCII": env(name="Ä", value="x"),
    "env: name that begins with a digit": env(name="1A", value="x"),
    "env: empty value": env(name="A", value=""),
    "env: value and source": main(
        env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    ),
    "env: source without a kind": value_from(),
    "env: two sources": value_from(fieldRef={"fieldPath": "metadata.name"}, secretKeyRef={"name": "a", "key": "b"}),
    "env: field defaulted": value_from(fieldRef={"fieldPath": "metadata.name"}),
    "env: field unknown": value_from(fieldRef={"fieldPath": "metadata.nothing"}),
    "env: field not for variables": value_from(fieldRef={"fieldPath": "metadata.labels"}),
    "env: label": value_from(fieldRef={"fieldPath": "metadata.labels['a']"}),
    "env: label with a bad name": value_from(fieldRef={"fieldPath": "metadata.labels['a b']"}),
    "env: field empty": value_from(fieldRef={"fieldPath": ""}),
    "env: resource": value_from(resourceFieldRef={"resource": "limits.cpu"}),
    "env: resource unknown": value_from(resourceFieldRef={"resource": "limits.gpu"}),
    "env: resource with a bad divisor": value_from(resourceFieldRef={"resource": "limits.cpu", "divisor": "7"}),
    "env: resource empty": value_from(resourceFieldRef={"resource": ""}),
    "env: config map key": value_from(configMapKeyRef={"name": "a", "key": "b", "optional": True}),
    "env: config map key with a slash": value_from(configMapKeyRef={"name": "a", "key": "b/c"}),
    "env: config map without a name": value_from(configMapKeyRef={"key": "b"}),
    "env: secret without a key": value_from(secretKeyRef={"name": "a", "key": ""}),
    "envFrom: config map": main(envFrom=[{"prefix": "A_", "configMapRef": {"name": "a"}}]),
    "envFrom: nothing": main(envFrom=[{}]),
    "envFrom: two": main(envFrom=[{"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]),
    "envFrom: bad name": main(envFrom=[{"configMapRef": {"name": "A_b"}}]),
    "envFrom: no name": main(envFrom=[{"secretRef": {}}]),
    "envFrom: bad prefix": main(envFrom=[{"prefix": "a=", "secretRef": {"name": "b"}}]),
    "mount: of no volume": main(volumeMounts=[MOUNT]),
    "mount: of a volume": mounted(MOUNT),
    "mount: no path": mounted({"name": "data", "mountPath": ""}),
    "mount: path twice": mounted(MOUNT, MOUNT),
    "mount: absolute subPath": mounted({**MOUNT, "subPath": "/a"}),
    "mount: subPath that leaves the volume": mounted({**MOUNT, "subPath": "../a"}),
    "mount: subPath and subPathExpr": mounted({**MOUNT, "subPath": "a", "subPathExpr": "$(A)"}),
    "mount: propagation unknown": mounted({**MOUNT, "mountPropagation": "Both"}),
    "mount: bidirectional without privileges": mounted({**MOUNT, "mountPropagation": "Bidirectional"}),
    "mount: recursively read-only but writable": mounted({**MOUNT, "recursiveReadOnly": "Enabled"}),
    "mount: recursively read-only": mounted({**MOUNT, "recursiveReadOnly": "IfPossible", "readOnly": True}),
    "mount: and a device": mounted(MOUNT, volumes=CLAIM, volumeDevices=[{"name": "data", "devicePath": "/dev/x"}]),
    "device: of no volume": main(volumeDevices=[{"name": "data", "devicePath": "/dev/x"}]),
    "device: of an empty directory": {
        **main(volumeDevices=[{"name": "data", "devicePath": "/dev/x"}]),
        "volumes": EMPTY,
    },
    "device: of a claim": {**main(volumeDevices=[{"name": "data", "devicePath": "/dev/x"}]), "volumes": CLAIM},
    "device: path that goes up": {
        **main(volumeDevices=[{"name": "data", "devicePath": "/dev/../x"}]),
        "volumes": CLAIM,
    },
    "device: no path": {**main(volumeDevices=[{"name": "data", "devicePath": ""}]), "volumes": CLAIM},
    "probe: no handler": probe(periodSeconds=1),
    "probe: two handlers": probe(**EXEC, tcpSocket={"port": 80}),
    "probe: defaults": probe(**EXEC),
    "probe: http defaults": probe(httpGet={"port": 80}),
    "probe: http scheme unknown": probe(httpGet={"port": 80, "scheme": "ftp"}),
    "probe: http header with a space": probe(httpGet={"port": 80, "httpHeaders": [{"name": "a b", "value": "c"}]}),
    "probe: port zero": probe(tcpSocket={"port": 0}),
    "probe: port by a bad name": probe(tcpSocket={"port": "Web"}),
    "probe: grpc": probe(grpc={"port": 80}),
    "probe: empty command": probe(exec={}),
    "probe: negative delay": probe(**EXEC, initialDelaySeconds=-1),
    "probe: negative times": probe(**EXEC, timeoutSeconds=-1, periodSeconds=-1, failureThreshold=-1),
    "probe: liveness that succeeds twice": probe(**EXEC, successThreshold=2),
    "probe: readiness that succeeds twice": main(readinessProbe={**EXEC, "successThreshold": 2}),
    "probe: readiness with a grace period": main(readinessProbe={**EXEC, "terminationGracePeriodSeconds": 2}),
    "probe: grace period of zero": probe(**EXEC, terminationGracePeriodSeconds=0),
    "probe: startup that succeeds twice": main(startupProbe={**EXEC, "successThreshold": 2}),
    "lifecycle: no handler": main(lifecycle={"preStop": {}}),
    "lifecycle: two handlers": main(lifecycle={"postStart": {**EXEC, "sleep": {"seconds": 1}}}),
    "lifecycle: sleep": main(lifecycle={"preStop": {"sleep": {"seconds": 1}}}),
    "lifecycle: sleep past the grace period": main(lifecycle={"preStop": {"sleep": {"seconds": 31}}}),
    "lifecycle: http defaults": main(lifecycle={"postStart": {"httpGet": {"port": "web"}}}),
    "lifecycle: stop signal without an os": main(lifecycle={"stopSignal": "SIGUSR1"}),
    "lifecycle: stop signal unknown": {**main(lifecycle={"stopSignal": "SIGWHAT"}), "os": {"name": "linux"}},
    "resources: requests from limits": limits(cpu="1", memory="1Gi", example_com__gpu=2),
    "resources: canonical quantities": limits(cpu="1500m", memory="1024Mi", ephemeral_storage="1e3"),
    "resources: negative": limits(cpu="-1"),
    "resources: negative request": resources(requests={"memory": "-1"}),
    "resources: part of a device": limits(example_com__gpu="1.5"),
    "resources: request above the limit": resources(limits={"cpu": "1"}, requests={"cpu": "2"}),
    "resources: request without a limit": resources(requests={"example.com/gpu": 1}),
    "resources: request other than the limit": resources(
        limits={"example.com/gpu": 2}, requests={"example.com/gpu": 1}
    ),
    "resources: unknown name": limits(gpu=1),
    "resources: name with a bad domain": resources(limits={"-a/gpu": 1}),
    "resources: pods": limits(pods=1),
    "resources: no quantity": limits(cpu="lots"),
    "resources: huge pages": limits(cpu="1", hugepages_2Mi="4Mi"),
    "resources: huge pages alone": limits(hugepages_2Mi="4Mi"),
    "resources: part of a huge page": limits(cpu="1", hugepages_2Mi="3Mi"),
    "resources: huge pages without a limit": resources(requests={"cpu": "1", "hugepages-2Mi": "2Mi"}),
    "resources: claim that the pod does not have": resources(claims=[{"name": "gpu"}]),
    "resources: claim twice": {
        **resources(claims=[{"name": "gpu"}, {"name": "gpu"}]),
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}],
    },
    "resources: claim with a bad request": {
        **resources(claims=[{"name": "gpu", "request": "A"}]),
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}],
    },
    "resources: claim without a name": resources(claims=[{"name": ""}]),
    "resize: policy unknown": main(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "Later"}]),
    "resize: resource unknown": main(resizePolicy=[{"resourceName": "gpu", "restartPolicy": "NotRequired"}]),
    "resize: resource twice": main(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2),
    "security: user negative": security(runAsUser=-1),
    "security: group too large": security(runAsGroup=2**31),
    "security: seccomp type unknown": security(seccompProfile={"type": "Strict"}),
    "security: seccomp without its profile": security(seccompProfile={"type": "Localhost"}),
    "security: seccomp profile elsewhere": security(seccompProfile={"type": "Localhost", "localhostProfile": "/a"}),
    "security: AppArmor type unknown": security(appArmorProfile={"type": "Strict"}),
    "security: AppArmor without its profile": security(appArmorProfile={"type": "Localhost"}),
    "security: proc mount unknown": security(procMount="Some"),
    "security: proc unmasked as a host user": security(procMount="Unmasked"),
    "security: privileged": security(privileged=True),
    "security: privileged without escalation": security(privileged=True, allowPrivilegeEscalation=False),
    "security: administrator without escalation": security(
        allowPrivilegeEscalation=False, capabilities={"add": ["CAP_SYS_ADMIN"]}
    ),
    "security: kept": security(readOnlyRootFilesystem=True, runAsNonRoot=True, capabilities={"drop": ["ALL"]}),
    "init: probe": init(livenessProbe=EXEC),
    "init: lifecycle": init(lifecycle={"preStop": EXEC}),
    "init: sidecar with a probe": init(restartPolicy="Always", startupProbe=EXEC),
    "init: restart policy unknown": init(restartPolicy="Sometimes"),
    "init: defaults": init(ports=[{"containerPort": 80}], resources={"limits": {"cpu": "1"}}),
    "restart: policy of a container unknown": main(restartPolicy="Sometimes"),
    "restart: rules without a policy": main(
        restartPolicyRules=[{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]
    ),
    "restart: rules": main(
        restartPolicy="Never",
        restartPolicyRules=[{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}],
    ),
    "restart: rule with an unknown action": main(
        restartPolicy="Never", restartPolicyRules=[{"action": "Wait", "exitCodes": {"operator": "In", "values": [1]}}]
    ),
    "restart: rule with an unknown operator": main(
        restartPolicy="Never",
        restartPolicyRules=[{"action": "Restart", "exitCodes": {"operator": "Is", "values": [1]}}],
    ),
    "restart: rule without exit codes": main(restartPolicy="Never", restartPolicyRules=[{"action": "Restart"}]),
}
