"""The official Python clients with the embedded cluster, each in an environment of its own, from PyPI.

`scripts/python_client.py` is the session; every version must see the same.
"""

import json
from pathlib import Path

import pytest
from tests.cluster.embedding import embedded, served
from tests.kubernetes.client_programs import ANOTHER_VERSION, Client
from tests.kubernetes.virtual_environments import InstallFailed, python_with

SCRIPT = Path(__file__).parent / "scripts" / "python_client.py"
SYNCHRONOUS = ("31.0.0", "32.0.1", "33.1.0", "34.1.0", "35.0.0", "36.0.3", "37.0.2")
ASYNCHRONOUS = ("31.1.1", "32.3.2", "33.3.0", "34.3.3", "35.0.1", "36.1.0")
CLIENTS = [  # the module, the package and its version
    *(("kubernetes", "kubernetes", version) for version in SYNCHRONOUS),
    ("kubernetes.aio", "kubernetes", SYNCHRONOUS[-1]),
    *(("kubernetes_asyncio", "kubernetes_asyncio", version) for version in ASYNCHRONOUS),
]
ALWAYS = (CLIENTS[0], CLIENTS[6], CLIENTS[-1])
APPLIED = {"n": "0", "default": "1", "json": "1", "strategic": "1", "applied": "1"}
SEEN = {
    "makes_a_namespace": ["Active"],
    "reads_the_cluster": ["node-1", ["True"], "1", True],
    "runs_a_pod_and_watches_it": ["Pending", "Running", True, "node-1"],
    "replaces_a_pod_and_writes_its_status": [{"note": "replaced"}, True, "stays"],
    "reads_and_follows_a_log": ["one\ntwo\nthree\n", "three\n", ["one", "two", "three"]],
    "lists_in_pages": [[["page-0", "page-1"], ["page-2", "page-3"], ["page-4"]], []],
    "watches_from_a_version_with_a_timeout": [[["ADDED", "watched"], ["DELETED", "watched"]], []],
    "patches_in_every_way": [
        {"n": "0", "default": "1"},
        {"n": "0", "default": "1", "json": "1"},
        {**APPLIED, "merge": "1"},
        APPLIED,
        ["python"],
    ],
    "replaces_at_its_version_alone": [{"n": "replaced"}, [409, "Conflict"]],
    "raises_refusals": [
        [404, "NotFound"],
        [422, "Invalid"],
        [409, "AlreadyExists"],
        [404, "NotFound"],
        [403, "Forbidden"],
        [400, "BadRequest"],
    ],
    "keeps_secrets": ["Opaque", {"key": "c2VjcmV0", "user": "bWU="}],
    "writes_and_lists_events": ["Tried", True],
    "writes_events_of_the_newer_group": ["n", "n", "stays"],
    "leads_by_a_lease": ["you", True],
    "knows_priority_classes": [1000, "PreemptLowerPriority"],
    "claims_devices": "ExactCount",
    "is_dynamic": [["speaks", "stays", "urgent"], "3", True, 404],
    "deletes_with_options": [[409, "Conflict"], ["Success", "Success"], []],
    "removes_the_namespace": "DELETED",
}


@pytest.mark.parametrize(
    ("module", "package", "version"),
    [
        pytest.param(*client, id=f"{client[0]}-{client[2]}", marks=[] if client in ALWAYS else [ANOTHER_VERSION])
        for client in CLIENTS
    ],
)
async def test_a_client_reads_writes_watches_and_deletes(
    module: str, package: str, version: str, tmp_path: Path
) -> None:
    try:
        python = python_with(package, version)
    except InstallFailed as error:
        pytest.skip(f"needs {package} {version} of PyPI: {error}")
    async with embedded(limit=240, processes=True) as lab, served(lab, tmp_path) as kubeconfig:
        await lab.offered()
        ended = await Client(python, kubeconfig).ended(SCRIPT, module, kubeconfig, "python")
    seen = dict(json.loads(line) for line in ended.out.splitlines())
    assert seen == SEEN, ended.error
    assert ended.code == 0
