"""Config maps and secrets: keys, sizes, requirements of each type of secret, and immutability."""

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import datetime

from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, config_key_errors

__all__ = ["CONFIG_MAPS", "SECRETS"]

_LARGEST = 1024 * 1024  # octets of all values
_IMMUTABLE = "Forbidden: field is immutable when `immutable` is set"
_SERVICE_ACCOUNT_NAME = "kubernetes.io/service-account.name"
_JSON_KEYS = {"kubernetes.io/dockercfg": ".dockercfg", "kubernetes.io/dockerconfigjson": ".dockerconfigjson"}
_BASIC_AUTH_KEYS = ("username", "password")
_SSH_KEY, _TLS_KEYS = "ssh-privatekey", ("tls.crt", "tls.key")
_BEGINNING_OF_PEM = b"-----BEGIN "


def _validate_keys(field: str, values: Mapping[str, str]) -> Iterator[FieldError]:
    for key in sorted(values):
        for error in config_key_errors(key):
            yield FieldError(f"{field}[{key}]", f'Invalid value: "{key}": {error}')


def _validate_size(field: str, size: int) -> Iterator[FieldError]:
    if size > _LARGEST:
        yield FieldError(field, f"Too long: may not be more than {_LARGEST} bytes", "FieldValueTooLong")


def _decoded(values: Mapping[str, str]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in values.items()}


def _validate_config_map(config_map: Object) -> Iterator[FieldError]:
    data, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    yield from _validate_keys("data", data)
    for key in sorted(data.keys() & binary.keys()):
        yield FieldError(f"data[{key}]", f'Invalid value: "{key}": duplicate of key present in binaryData')
    yield from _validate_keys("binaryData", binary)
    texts = sum(len(value.encode()) for value in data.values())
    yield from _validate_size("", texts + sum(map(len, _decoded(binary).values())))


def _validate_immutable(before: Object, after: Object) -> Iterator[FieldError]:
    if not before.get("immutable"):
        return
    if not after.get("immutable"):
        yield FieldError("immutable", _IMMUTABLE, "FieldValueForbidden")
    for field in ("data", "binaryData"):
        if (before.get(field) or {}) != (after.get(field) or {}):
            yield FieldError(field, _IMMUTABLE, "FieldValueForbidden")


def _data_count(content: Object, _now: datetime) -> int:
    return len(content.get("data") or {}) + len(content.get("binaryData") or {})


CONFIG_MAPS = Kind(
    plural="configmaps",
    name="ConfigMap",
    short_names=("cm",),
    validate=_validate_config_map,
    validate_update=_validate_immutable,
    columns=(NAME, Column("Data", _data_count, type="integer"), AGE),
)


def _prepare_secret(secret: Object) -> Object:
    """Converts `stringData`, which is write-only, to data."""
    texts = {key: base64.b64encode(value.encode()).decode() for key, value in (secret.get("stringData") or {}).items()}
    data = {**(secret.get("data") or {}), **texts}
    rest = {name: value for name, value in secret.items() if name not in ("data", "stringData")}
    return {**rest, **({"data": data} if data else {}), "type": secret.get("type") or "Opaque"}


def _validate_secret(secret: Object) -> Iterator[FieldError]:
    data = secret.get("data") or {}
    yield from _validate_keys("data", data)
    values = _decoded(data)
    yield from _validate_size("data", sum(map(len, values.values())))
    yield from _validate_type(secret, values)


def _validate_type(secret: Object, values: Mapping[str, bytes]) -> Iterator[FieldError]:
    match secret["type"]:
        case "kubernetes.io/service-account-token":
            if not (secret["metadata"].get("annotations") or {}).get(_SERVICE_ACCOUNT_NAME):
                yield _required(f"metadata.annotations[{_SERVICE_ACCOUNT_NAME}]")
        case "kubernetes.io/basic-auth":
            if not any(key in values for key in _BASIC_AUTH_KEYS):
                yield from (_required(f"data[{key}]") for key in _BASIC_AUTH_KEYS)
        case "kubernetes.io/ssh-auth":
            if not values.get(_SSH_KEY):
                yield _required(f"data[{_SSH_KEY}]")
        case "kubernetes.io/tls":
            yield from (_required(f"data[{key}]") for key in _TLS_KEYS if key not in values)
        case name if name in _JSON_KEYS:
            yield from _validate_docker_config(_JSON_KEYS[name], values)


def _validate_docker_config(key: str, values: Mapping[str, bytes]) -> Iterator[FieldError]:
    if key not in values:
        yield _required(f"data[{key}]")
        return
    try:
        is_object = isinstance(json.loads(values[key]), dict | None)
        error = "" if is_object else "json: cannot unmarshal it into Go value of type map[string]interface {}"
    except ValueError as invalid:
        error = str(invalid)
    if error:
        yield FieldError(f"data[{key}]", f'Invalid value: "<secret contents redacted>": {error}')


def _required(field: str) -> FieldError:
    return FieldError(field, "Required value", "FieldValueRequired")


def _validate_secret_update(before: Object, after: Object) -> Iterator[FieldError]:
    if before["type"] != after["type"]:
        yield FieldError("type", f'Invalid value: "{after["type"]}": field is immutable')
    yield from _validate_immutable(before, after)


def _secret_warnings(secret: Object) -> Iterator[str]:
    """Warnings about a certificate or key; a mismatch between the two is not noticed."""
    values = _decoded(secret.get("data") or {})
    if secret["type"] != "kubernetes.io/tls":
        return
    for key, part in zip(_TLS_KEYS, ("certificate", "key"), strict=True):
        if _BEGINNING_OF_PEM not in values.get(key, b""):
            yield f"tls: failed to find any PEM data in {part} input"
            return


SECRETS = Kind(
    plural="secrets",
    name="Secret",
    prepare_for_create=_prepare_secret,
    prepare_for_update=lambda before, after: _prepare_secret({**after, "type": after.get("type") or before["type"]}),
    validate=_validate_secret,
    validate_update=_validate_secret_update,
    warnings=_secret_warnings,
    columns=(
        NAME,
        Column("Type", lambda secret, _: secret["type"]),
        Column("Data", _data_count),
        AGE,
    ),
    selectable_fields=frozenset({"type"}),
)
