"""The `scale` subresource: an object's actual and wanted number of replicas, as read and written by `kubectl scale`."""

from plugwright.apiserver.errors import bad_request, invalid
from plugwright.apiserver.kinds import Kind
from plugwright.apiserver.kinds.pod_templates import selector_text
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import invalid as invalid_field

__all__ = ["scale_of", "scaled"]

_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(content: Object) -> Object:
    """The Scale of a stored object."""
    metadata, spec = content["metadata"], content["spec"]
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in _METADATA if name in metadata},
        "spec": {"replicas": spec.get("replicas", 1)},
        "status": {
            "replicas": int((content.get("status") or {}).get("replicas") or 0),
            "selector": selector_text(spec.get("selector")),
        },
    }


def scaled(kind: Kind, content: Object, scale: object) -> Object:
    """The object with the replicas of a Scale."""
    if not isinstance(scale, dict) or not isinstance(scale.get("spec") or {}, dict):
        raise bad_request("the body must be an object of kind Scale")
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        error = invalid_field("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(kind, str(content["metadata"]["name"]), [error])
    return {**content, "spec": {**content["spec"], "replicas": replicas}}
