"""What a registry of charts shows: the README from the values, the icon, the images."""

import base64
import importlib.util
from collections.abc import Iterator
from types import ModuleType

import yaml
from tests.deploy.rendered import CHART, ROOT

from plugwright import __version__

METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())
VALUES = (CHART / "values.yaml").read_text()


def readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", CHART.parent / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys(values: object, path: str = "") -> Iterator[str]:
    if not isinstance(values, dict) or not values:
        yield path
        return
    for name, value in values.items():
        yield from keys(value, f"{path}.{name}" if path else name)


def test_the_readme_has_every_value_with_its_default() -> None:
    rows = {row.key: row for row in readme().rows(VALUES)}
    leaves = set(keys(yaml.safe_load(VALUES)))
    missing = {leaf for leaf in leaves if leaf not in rows and not any(leaf.startswith(f"{row}.") for row in rows)}
    assert not missing
    assert all(row in leaves or any(leaf.startswith(f"{row}.") for leaf in leaves) for row in rows)
    assert rows["mock.count"].default == "10"
    assert rows["image.tag"].meaning == "the chart's appVersion"
    assert rows["probes.watchdog"].meaning.startswith("A daemon whose event loop hangs")


def test_the_icon_is_the_file_beside_the_chart() -> None:
    kind, _, content = METADATA["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(content) == (CHART.parent / "icon.svg").read_bytes().strip()


def test_the_annotations_name_the_images_of_the_values() -> None:
    values = yaml.safe_load(VALUES)
    images = yaml.safe_load(METADATA["annotations"]["artifacthub.io/images"])
    named = [f"{values[key]['repository']}:{__version__}" for key in ("image", "toolsImage")]
    assert [image["image"] for image in images] == named


def test_the_files_of_the_project_are_there() -> None:
    for name in ("CODE_OF_CONDUCT.md", "LICENSE", "MAINTAINERS.md", "ROADMAP.md", "SECURITY.md"):
        assert (ROOT / name).stat().st_size > 500
