"""Volumes, scheduling and the other parts of pods, each with one thing that a real API server refuses or defaults."""

from typing import Any

from tests.kubernetes.differences.container_specs import EXEC, Json, main

__all__ = ["POD_SPECS"]

SELECTOR = {"matchLabels": {"a": "b"}}
ZONE = "topology.kubernetes.io/zone"
REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))


def spec(**members: Any) -> Json:
    return {**main(), **members}


def volume(name: str = "data", **source: Any) -> Json:
    return spec(volumes=[{"name": name, **source}])


def projected(**source: Any) -> Json:
    return volume(projected={"sources": [source]})


def toleration(**members: Any) -> Json:
    return spec(tolerations=[members])


def node_affinity(**requirement: Any) -> Json:
    return spec(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}})


def node_fields(**requirement: Any) -> Json:
    return spec(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [requirement]}]}}})


def pod_affinity(weight: int | None = None, part: str = "podAffinity", **term: Any) -> Json:
    if weight is None:
        return spec(affinity={part: {REQUIRED: [term]}})
    return spec(affinity={part: {PREFERRED: [{"weight": weight, "podAffinityTerm": term}]}})


def spread(**changes: Any) -> Json:
    constraint = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
    return spec(topologySpreadConstraints=[{**constraint, **changes}])


def security(**members: Any) -> Json:
    return spec(securityContext=members)


POD_SPECS: dict[str, Json] = {
    "volume: no name": spec(volumes=[{"emptyDir": {}}]),
    "volume: name with capitals": volume("Data", emptyDir={}),
    "volume: two of one name": spec(volumes=[{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]),
    "volume: two sources": volume(emptyDir={}, hostPath={"path": "/x"}),
    "volume: no source": volume(),
    "volume: negative size": volume(emptyDir={"sizeLimit": "-1"}),
    "volume: size kept": volume(emptyDir={"sizeLimit": "1024Mi", "medium": "Memory"}),
    "volume: host path defaulted": volume(hostPath={"path": "/x"}),
    "volume: host path empty": volume(hostPath={"path": ""}),
    "volume: host path that goes up": volume(hostPath={"path": "/x/../y"}),
    "volume: host path of an unknown type": volume(hostPath={"path": "/x", "type": "Pipe"}),
    "volume: config map defaulted": volume(configMap={"name": "a"}),
    "volume: config map without a name": volume(configMap={}),
    "volume: config map with a bad mode": volume(configMap={"name": "a", "defaultMode": 0o1777}),
    "volume: config map item elsewhere": volume(configMap={"name": "a", "items": [{"key": "k", "path": "/etc"}]}),
    "volume: config map item going up": volume(configMap={"name": "a", "items": [{"key": "k", "path": "../etc"}]}),
    "volume: config map item without a key": volume(configMap={"name": "a", "items": [{"path": "p"}]}),
    "volume: config map item with a bad mode": volume(
        configMap={"name": "a", "items": [{"key": "k", "path": "p", "mode": -1}]}
    ),
    "volume: secret defaulted": volume(secret={"secretName": "a"}),
    "volume: secret without a name": volume(secret={}),
    "volume: claim without a name": volume(persistentVolumeClaim={"claimName": ""}),
    "volume: downward API defaulted": volume(
        downwardAPI={"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}
    ),
    "volume: downward API without a source": volume(downwardAPI={"items": [{"path": "p"}]}),
    "volume: downward API of another field": volume(
        downwardAPI={"items": [{"path": "p", "fieldRef": {"fieldPath": "status.phase"}}]}
    ),
    "volume: downward API resource of no container": volume(
        downwardAPI={"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]}
    ),
    "volume: projected token defaulted": projected(serviceAccountToken={"path": "token"}),
    "volume: projected token for a minute": projected(serviceAccountToken={"path": "token", "expirationSeconds": 60}),
    "volume: projected twice to one path": volume(
        projected={"sources": [{"configMap": {"name": n, "items": [{"key": "k", "path": "p"}]}} for n in ("a", "b")]}
    ),
    "volume: projected source with two kinds": projected(configMap={"name": "a"}, secret={"name": "b"}),
    "volume: projected secret without a name": projected(secret={}),
    "volume: CSI": volume(csi={"driver": "example.com"}),
    "volume: CSI without a driver": volume(csi={"driver": ""}),
    "volume: NFS without a server": volume(nfs={"server": "", "path": "/x"}),
    "volume: NFS with a relative path": volume(nfs={"server": "a", "path": "x"}),
    "volume: image": volume(image={"reference": "a:1"}),
    "volume: image without a reference": volume(image={}),
    "toleration: operator defaulted": toleration(key="a", value="b"),
    "toleration: operator unknown": toleration(key="a", operator="Is"),
    "toleration: value with Exists": toleration(key="a", operator="Exists", value="b"),
    "toleration: no key with Equal": toleration(operator="Equal"),
    "toleration: effect unknown": toleration(key="a", operator="Exists", effect="Maybe"),
    "toleration: seconds without NoExecute": toleration(key="a", operator="Exists", tolerationSeconds=1),
    "toleration: bad key": toleration(key="a b", operator="Exists"),
    "toleration: bad value": toleration(key="a", value="b c"),
    "toleration: numeric operator": toleration(key="a", operator="Gt", value="1"),
    "toleration: of every NoExecute": toleration(operator="Exists", effect="NoExecute"),
    "toleration: of everything": toleration(operator="Exists"),
    "toleration: of a node not ready": toleration(
        key="node.kubernetes.io/not-ready", operator="Exists", effect="NoExecute", tolerationSeconds=5
    ),
    "affinity: no terms": spec(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}),
    "affinity: operator unknown": node_affinity(key="a", operator="Is", values=["b"]),
    "affinity: In without values": node_affinity(key="a", operator="In"),
    "affinity: Exists with values": node_affinity(key="a", operator="Exists", values=["b"]),
    "affinity: Gt with two values": node_affinity(key="a", operator="Gt", values=["1", "2"]),
    "affinity: bad key": node_affinity(key="a b", operator="Exists"),
    "affinity: bad value": node_affinity(key="a", operator="In", values=["b c"]),
    "affinity: fields": node_fields(key="metadata.name", operator="In", values=["n"]),
    "affinity: unknown field": node_fields(key="metadata.uid", operator="In", values=["n"]),
    "affinity: field with two values": node_fields(key="metadata.name", operator="In", values=["n", "m"]),
    "affinity: field with Exists": node_fields(key="metadata.name", operator="Exists"),
    "affinity: weight of zero": spec(affinity={"nodeAffinity": {PREFERRED: [{"weight": 0, "preference": {}}]}}),
    "affinity: of pods": pod_affinity(labelSelector=SELECTOR, topologyKey=ZONE),
    "affinity: of pods without a topology": pod_affinity(labelSelector=SELECTOR, topologyKey=""),
    "affinity: of pods with an unknown operator": pod_affinity(
        labelSelector={"matchExpressions": [{"key": "a", "operator": "Is"}]}, topologyKey=ZONE
    ),
    "affinity: of pods with a bad namespace": pod_affinity(labelSelector=SELECTOR, topologyKey=ZONE, namespaces=["A"]),
    "affinity: of pods with a weight of 101": pod_affinity(101, labelSelector=SELECTOR, topologyKey=ZONE),
    "affinity: away from pods with a bad key": pod_affinity(part="podAntiAffinity", topologyKey="a b"),
    "affinity: of pods by keys of labels": pod_affinity(topologyKey=ZONE, matchLabelKeys=["a"]),
    "spread: kept": spread(),
    "spread: skew of zero": spread(maxSkew=0),
    "spread: no topology": spread(topologyKey=""),
    "spread: action unknown": spread(whenUnsatisfiable="Wait"),
    "spread: twice": spec(topologySpreadConstraints=spread()["topologySpreadConstraints"] * 2),
    "spread: no domains": spread(minDomains=0),
    "spread: domains with ScheduleAnyway": spread(minDomains=1, whenUnsatisfiable="ScheduleAnyway"),
    "spread: node policy unknown": spread(nodeAffinityPolicy="Maybe"),
    "spread: selector with a bad operator": spread(
        labelSelector={"matchExpressions": [{"key": "a", "operator": "Is"}]}
    ),
    "gates: one": spec(schedulingGates=[{"name": "example.com/a"}]),
    "gates: twice": spec(schedulingGates=[{"name": "example.com/a"}, {"name": "example.com/a"}]),
    "gates: bad name": spec(schedulingGates=[{"name": "a b"}]),
    "gates: on a node": spec(schedulingGates=[{"name": "example.com/a"}], nodeName="n"),
    "claims: kept": spec(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "a"}]),
    "claims: twice": spec(resourceClaims=[{"name": "gpu", "resourceClaimName": "a"}] * 2),
    "claims: no source": spec(resourceClaims=[{"name": "gpu"}]),
    "claims: two sources": spec(
        resourceClaims=[{"name": "gpu", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]
    ),
    "claims: bad names": spec(resourceClaims=[{"name": "G", "resourceClaimName": "A"}]),
    "claims: no name": spec(resourceClaims=[{"resourceClaimName": "a"}]),
    "pod: no containers": {"containers": []},
    "pod: restart policy unknown": spec(restartPolicy="Sometimes"),
    "pod: restart policy empty": spec(restartPolicy=""),
    "pod: dns policy unknown": spec(dnsPolicy="Guess"),
    "pod: dns None without servers": spec(dnsPolicy="None"),
    "pod: dns None with no server": spec(dnsPolicy="None", dnsConfig={"searches": ["a"]}),
    "pod: dns server by name": spec(dnsConfig={"nameservers": ["dns"]}),
    "pod: four dns servers": spec(dnsConfig={"nameservers": [f"10.0.0.{n}" for n in range(4)]}),
    "pod: dns search path with a space": spec(dnsConfig={"searches": ["a b"]}),
    "pod: dns option without a name": spec(dnsConfig={"options": [{"value": "1"}]}),
    "pod: dns kept": spec(dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.1"], "options": [{"name": "a"}]}),
    "pod: deadline of zero": spec(activeDeadlineSeconds=0),
    "pod: deadline negative": spec(activeDeadlineSeconds=-1),
    "pod: grace period negative": spec(terminationGracePeriodSeconds=-1),
    "pod: grace period of zero": spec(terminationGracePeriodSeconds=0),
    "pod: hostname with capitals": spec(hostname="A"),
    "pod: subdomain with a dot": spec(subdomain="a.b"),
    "pod: node name with capitals": spec(nodeName="A"),
    "pod: node selector with a bad key": spec(nodeSelector={"a b": "c"}),
    "pod: node selector with a bad value": spec(nodeSelector={"a": "b c"}),
    "pod: priority without a class": spec(priority=5),
    "pod: priority class unknown": spec(priorityClassName="important"),
    "pod: priority class of the system": spec(priorityClassName="system-node-critical"),
    "pod: preemption policy unknown": spec(preemptionPolicy="Maybe"),
    "pod: preemption policy Never": spec(preemptionPolicy="Never"),
    "pod: service account unknown": spec(serviceAccountName="nobody"),
    "pod: service account with capitals": spec(serviceAccountName="A"),
    "pod: old name of the service account": spec(serviceAccount="default"),
    "pod: scheduler kept": spec(schedulerName="mine"),
    "pod: runtime class unknown": spec(runtimeClassName="gvisor"),
    "pod: host alias without an address": spec(hostAliases=[{"ip": "here", "hostnames": ["a"]}]),
    "pod: host alias with a bad name": spec(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a b"]}]),
    "pod: readiness gate with a bad name": spec(readinessGates=[{"conditionType": "a b"}]),
    "pod: pull secrets": spec(imagePullSecrets=[{"name": "a"}]),
    "pod: os unknown": spec(os={"name": "plan9"}),
    "pod: os empty": spec(os={"name": ""}),
    "pod: windows with a linux user": {**security(runAsUser=1), "os": {"name": "windows"}},
    "pod: linux with windows options": {**security(windowsOptions={"runAsUserName": "a"}), "os": {"name": "linux"}},
    "pod: overhead without a class": spec(overhead={"cpu": "1"}),
    "pod: resources": spec(resources={"limits": {"cpu": "1"}}),
    "pod: resources of devices": spec(resources={"limits": {"example.com/gpu": "1"}}),
    "pod: resources below its containers'": {
        **main(resources={"requests": {"cpu": "2"}}), "resources": {"requests": {"cpu": "1"}}
    },
    "pod: resources below a container's limit": {
        **main(resources={"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}), "resources": {"limits": {"cpu": "1"}}
    },
    "pod: ephemeral containers": spec(ephemeralContainers=[{"name": "debug", "image": "a"}]),
    "pod: ephemeral container with a probe": spec(
        ephemeralContainers=[{"name": "d", "image": "a", "livenessProbe": EXEC}]
    ),
    "pod: ephemeral container of nobody": spec(
        ephemeralContainers=[{"name": "d", "image": "a", "targetContainerName": "b"}]
    ),
    "pod: user negative": security(runAsUser=-1),
    "pod: groups negative": security(fsGroup=-1, runAsGroup=-1, supplementalGroups=[1, -1]),
    "pod: change policy of groups unknown": security(fsGroup=1, fsGroupChangePolicy="Maybe"),
    "pod: supplemental groups policy unknown": security(supplementalGroupsPolicy="Maybe"),
    "pod: SELinux change policy unknown": security(seLinuxChangePolicy="Maybe"),
    "pod: sysctl with a bad name": security(sysctls=[{"name": "a b", "value": "1"}]),
    "pod: sysctl twice": security(sysctls=[{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]),
    "pod: sysctl of the network on the host's": {
        **security(sysctls=[{"name": "net.a", "value": "1"}]), "hostNetwork": True
    },
    "pod: seccomp type unknown": security(seccompProfile={"type": "Strict"}),
    "pod: host processes shared": spec(hostPID=True, shareProcessNamespace=True),
    "pod: own users with host processes": spec(hostUsers=False, hostPID=True, hostIPC=True),
    "pod: host network": spec(hostNetwork=True, hostIPC=True),
    "pod: hostname override with the full name": spec(hostnameOverride="a", setHostnameAsFQDN=True),
    "pod: unknown field": spec(colour="red"),
    "pod: wrong type": spec(hostNetwork="yes"),
}  # fmt: skip
