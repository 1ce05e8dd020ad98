"""Claims on `plugwright up`, as real processes and over TLS: from a manifest to the container's environment."""

from pathlib import Path
from typing import Any

import pytest
from lightkube import codecs
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Event, Pod
from tests.cluster.up.clusters import RuntimeDirectory

create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")

CONFIG = """\
resources:
  - name: mock/gpu
    serve: {api}
    mock: {{count: 4, model: Mock-A100, memory: 40Gi, numa: 2}}
"""
MANIFEST = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: {name}, namespace: default}}
spec:
  spec:
    devices:
      requests:
        - name: gpus
          exactly:
            deviceClassName: gpu.mock
            count: 2
            selectors:
              - cel:
                  expression: device.capacity["gpu.mock"].memory.compareTo(quantity("{memory}")) >= 0
      constraints: [{{requests: [gpus], matchAttribute: resource.kubernetes.io/numaNode}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  resourceClaims: [{{name: gpus, resourceClaimTemplateName: {name}}}]
  containers: [{{name: main, image: demo, resources: {{claims: [{{name: gpus}}]}}}}]
"""


@pytest.mark.parametrize("mode", ["dra", "both"])
async def test_a_pod_gets_the_devices_of_its_claim(mode: str, tmp_path: Path) -> None:
    config = tmp_path / "plugwright.yaml"
    config.write_text(CONFIG.format(api=mode))
    async with RuntimeDirectory(tmp_path).up("-c", config) as up:
        with up.client as api:
            for content in codecs.load_all_yaml(MANIFEST.format(name="pair", memory="40Gi")):
                api.create(content)
            _until(api, "pair", lambda pod: pod.status.phase == "Running")
            (visible,) = [line for line in api.log("pair", namespace="default") if "VISIBLE" in line]
            # With both APIs, the first device is kept for pods that request the extended resource.
            first, second = {"dra": (0, 1), "both": (2, 3)}[mode]
            assert visible.startswith(f"env MOCK_VISIBLE_DEVICES=mock-{first}-")
            assert f",mock-{second}-" in visible
            for content in codecs.load_all_yaml(MANIFEST.format(name="huge", memory="80Gi")):
                api.create(content)
            _until(api, "huge", lambda pod: "cannot allocate all claims" in str(pod.status.conditions))
            events = api.list(Event, namespace="default", fields={"reason": "FailedAllocation"})
            why = [event.message or "" for event in events if (event.involvedObject.name or "").startswith("huge-")]
            assert "request gpus: 2 devices requested, at most 0 found together" in why[0]
            assert "excluded by a selector" in why[0]


def _until(api: Any, name: str, fact: Any) -> None:
    for _, pod in api.watch(Pod, namespace="default", fields={"metadata.name": name}, server_timeout=60):
        if pod.status and fact(pod):
            return
    raise AssertionError(f"{name} never was so")
