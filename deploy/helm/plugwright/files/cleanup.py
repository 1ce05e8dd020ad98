"""After `helm uninstall`: takes resources off the nodes, then everything that made this possible off the cluster.

Arguments: NAMESPACE NAME HOURS DAEMONSET,… RESOURCE…, NAME that of CronJob, ServiceAccount, binding and ClusterRole.
Nobody can delete both a right to delete and the binding that gives it: so the ClusterRole is made the owner of the
others and deleted last, and the garbage collector does the rest. Until that is done, the CronJob starts us again.
"""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

from lightkube import ApiError, Client, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.batch_v1 import CronJob
from lightkube.resources.core_v1 import ServiceAccount
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding
from lightkube.types import CascadeType, PatchType


def main() -> None:
    namespace, name, hours, daemon_sets, *resources = sys.argv[1:]
    file = os.environ.get("KUBECONFIG")
    client = Client(KubeConfig.from_file(file) if file else KubeConfig.from_service_account(), namespace=namespace)
    since = metadata(client.get(CronJob, name)).creationTimestamp
    code = remove(client, daemon_sets.split(","), resources)
    if code and since and datetime.now(UTC) - since < timedelta(hours=float(hours)):
        sys.exit(code)
    leave(client, name)


def remove(client: Client, daemon_sets: list[str], resources: list[str]) -> int:
    flags = [flag for resource in resources for flag in ("--resource", resource)]
    command = ["plugwright", "node", "remove", "--stale", "--all-nodes", "--wait", *flags]
    with subprocess.Popen(command) as removing:
        while not any(exists(client, each) for each in daemon_sets):
            try:
                return removing.wait(timeout=5)
            except subprocess.TimeoutExpired:
                continue
        removing.terminate()
    sys.stderr.write("installed again: nothing is to be removed\n")
    return 0


def exists(client: Client, daemon_set: str) -> bool:
    try:
        return metadata(client.get(DaemonSet, daemon_set)).deletionTimestamp is None
    except ApiError as error:
        if error.status.code == 404:
            return False
        raise


def metadata(thing: ClusterRole | CronJob | DaemonSet) -> ObjectMeta:
    assert thing.metadata is not None
    return thing.metadata


def leave(client: Client, name: str) -> None:
    role = client.get(ClusterRole, name)
    owner = {"apiVersion": role.apiVersion, "kind": role.kind, "name": name, "uid": metadata(role).uid}
    for kind in (ServiceAccount, ClusterRoleBinding, CronJob):
        client.patch(kind, name, {"metadata": {"ownerReferences": [owner]}}, patch_type=PatchType.MERGE)
    client.delete(ClusterRole, name, cascade=CascadeType.BACKGROUND)


if __name__ == "__main__":
    main()
