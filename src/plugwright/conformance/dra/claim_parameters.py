"""The driver's own parameters, written by users into claims and classes: read from a file, and added to claims."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from plugwright.errors import ConfigError

__all__ = ["opaque_config", "read_parameters"]


def read_parameters(path: Path) -> dict[str, Any]:
    """One object in JSON or YAML; raises ConfigError for anything else."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the parameters {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the parameters in {path} must be an object, got {type(content).__name__}")
    return content


def opaque_config(driver: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """An entry of an allocation's config, for all requests of the claim."""
    return {"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": dict(parameters)}}
