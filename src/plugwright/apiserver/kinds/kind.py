"""A kind of API object: its names, and the strategy by which its objects are written, checked and printed.

As in kube-apiserver, generic code (registry, handlers, discovery, schema) calls the kind and never compares kinds. The
defaults here are those of a kind without special rules.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from plugwright.apiserver import kubernetes_fields, validation
from plugwright.apiserver.kubernetes_fields import ObjectType
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object, ObjectLookup
from plugwright.apiserver.validation import FieldError

__all__ = ["Kind"]


def _unchanged(content: Object) -> Object:
    return content


def _replacement(_before: Object, after: Object) -> Object:
    return after


def _valid(_content: Object) -> Iterator[FieldError]:
    yield from ()


def _valid_update(_before: Object, _after: Object) -> Iterator[FieldError]:
    yield from ()


def _admitted(_content: Object, _objects: ObjectLookup) -> str | None:
    return None


def _valid_among(_content: Object, _objects: ObjectLookup) -> Iterator[FieldError]:
    yield from ()


def _no_warnings(_content: Object) -> Iterator[str]:
    yield from ()


def _no_grace(_content: Object, _requested: int | None) -> int:
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    # Names, as in discovery and paths.
    plural: str
    name: str
    group: str = ""
    version: str = "v1"
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    has_status: bool = False
    subresources: tuple[str, ...] = ()  # besides status
    since: tuple[int, int] = (0, 0)  # first minor version of Kubernetes that serves it by default

    # Creating and updating. `prepare` functions fill in defaults; they can change the metadata of their argument.
    prepare_for_create: Callable[[Object], Object] = _unchanged
    prepare_for_update: Callable[[Object, Object], Object] = _replacement  # of the stored object and the new one
    prepare_status: Callable[[Object], Object] = _unchanged
    # For a new object: fills in values that depend on other objects, and returns why it is rejected, or None.
    admit: Callable[[Object, ObjectLookup], str | None] = _admitted
    name_errors: Callable[[str], Iterator[str]] = validation.dns_subdomain_errors
    validate: Callable[[Object], Iterator[FieldError]] = _valid
    validate_create: Callable[[Object], Iterator[FieldError]] = _valid  # what only a new object must not have
    # What other objects decide about a new one.
    validate_among: Callable[[Object, ObjectLookup], Iterator[FieldError]] = _valid_among
    validate_update: Callable[[Object, Object], Iterator[FieldError]] = _valid_update
    validate_status: Callable[[Object], Iterator[FieldError]] = _valid
    admitted_fields: frozenset[str] = frozenset()  # fields of the spec filled in by admission
    warnings: Callable[[Object], Iterator[str]] = _no_warnings  # about a valid object
    allow_create_on_update: bool = False
    allow_unconditional_update: bool = True  # without the version that the writer read
    default_objects: tuple[tuple["Kind", str], ...] = ()  # kinds and names created in every new object of this kind

    # Deleting.
    grace_period: Callable[[Object, int | None], int] = _no_grace  # seconds, from the object and the client's request
    protected_names: frozenset[str] = frozenset()
    protection: str = ""  # the message that rejects the deletion of one of those
    deletes_contents: bool = False  # a controller first deletes the objects in the namespace of this name
    returns_deleted_object: bool = False  # not a Status

    # Objects stored under another kind and served under other names: conversions, and the kind.
    stored_as: "Kind | None" = None
    to_stored: Callable[[Object], Object] = _unchanged
    from_stored: Callable[[Object], Object] = _unchanged

    # Reading.
    columns: tuple[Column, ...] = (NAME, AGE)
    selectable_fields: frozenset[str] = frozenset()  # besides metadata.name and, with a namespace, metadata.namespace
    computed_fields: Mapping[str, Callable[[Object], object]] = field(default_factory=dict)  # selectable too

    def __post_init__(self) -> None:
        """Rejects a kind without fields during the import, because later each of its requests would fail."""
        for name in (self.name, f"{self.name}List"):
            if kubernetes_fields.object_type(self.api_version, name) is None:
                raise LookupError(
                    f"kubernetes_fields.txt has no {name} of {self.api_version}: add its Go type to `roots` in "
                    "tests/kubernetes/kubernetes_types/main.go, then write the table again with "
                    "PLUGWRIGHT_REWRITE_FIELDS=1 python -m pytest tests/kubernetes/test_kubernetes_types.py"
                )

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name in messages and keys of the store: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> "Kind":
        """The kind under which the objects are stored."""
        return self.stored_as or self

    @property
    def root(self) -> str:
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def is_served_by(self, release: str) -> bool:
        major, minor = release.split(".")[:2]
        return (int(major), int(minor)) >= self.since

    def without_admitted(self, content: Object, sent: Object) -> Object:
        """The object without the fields that admission has added to its spec, which belong to no manager."""
        added = self.admitted_fields - (sent.get("spec") or {}).keys()
        if not added:
            return content
        return {**content, "spec": {name: value for name, value in content["spec"].items() if name not in added}}

    def without_status(self, content: Object) -> Object:
        """The object without the part that only its status subresource writes."""
        if not self.has_status or "status" not in content:
            return content
        return {name: value for name, value in content.items() if name != "status"}

    @property
    def object_type(self) -> ObjectType:
        """The fields of the kind."""
        found = kubernetes_fields.object_type(self.api_version, self.name)
        assert found is not None  # checked when the kind was created
        return found
