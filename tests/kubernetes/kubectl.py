"""`kubectl` inside the cluster's namespaces, as an administrator."""

import json
from pathlib import Path
from typing import Any

from tests.kubernetes.enclosure import Enclosure

__all__ = ["Kubectl", "KubectlFailed", "Object"]

Object = dict[str, Any]  # what the API server sends; tests read it as they find it


class KubectlFailed(Exception):
    """kubectl ended with an error; the text is its own."""


class Kubectl:
    def __init__(self, enclosure: Enclosure, program: Path, kubeconfig: Path) -> None:
        self._enclosure, self.program = enclosure, program
        self.environment = {"KUBECONFIG": str(kubeconfig), "HOME": str(enclosure.state / "home")}

    def __call__(self, *arguments: str | Path, given: str = "") -> str:
        """What kubectl prints."""
        done = self._enclosure.run(self.program, *arguments, given=given, env=self.environment)
        if done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def get(self, kind: str, name: str) -> Object | None:
        """The object, or None if there is none of that name."""
        text = self("get", kind, name, "--output=json", "--ignore-not-found")
        return dict(json.loads(text)) if text else None

    def every(self, kind: str, *arguments: str) -> list[Object]:
        return list(json.loads(self("get", kind, "--output=json", *arguments))["items"])

    def end_clean_ups(self) -> None:
        """Ends the clean-up jobs of earlier releases, for a test that compares all pods of the node.

        Also deletes the slices of ended drivers, which the kubelet keeps for 30 s.
        """
        self("delete", "cronjobs,jobs", "--all", "--all-namespaces", "--cascade=foreground", "--wait", "--timeout=60s")
        self("delete", "resourceslices", "--all")

    def create(self, *objects: Object) -> None:
        self("create", "--filename=-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def replace(self, path: str, document: Object) -> None:
        """Writes an object, or its status, to its path in the API."""
        self("replace", f"--raw={path}", "--filename=-", given=json.dumps(document))

    def works(self, *arguments: str) -> bool:
        """Whether the call ends well."""
        try:
            self(*arguments)
        except KubectlFailed:
            return False
        return True
