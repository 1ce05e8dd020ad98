"""Writes the address of the repository into what a release publishes: [project.urls] of the package, home of the chart,
and the page that its alerts link to.

    python3 deploy/repository_urls.py https://github.com/OWNER/NAME [DIRECTORY]

The release workflow runs it with its own repository. It is the one place that makes addresses; it needs no package.
"""

import sys
from pathlib import Path

__all__ = ["main"]

_PACKAGE_MARK = "# [project.urls]: "
_CHART_MARK = "# home and sources: "
_RUNBOOKS = "docs/operations.md"  # default of the chart's metrics.prometheusRule.runbooks


def main(repository: str, directory: Path) -> None:
    if not repository.startswith("https://"):
        sys.exit(f"the repository must be an https:// address, got {repository!r}")
    urls = {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    _replace(directory / "pyproject.toml", _PACKAGE_MARK, f"[project.urls]\n{table}")
    chart = f"home: {repository}\nsources: [{repository}]\n"
    _replace(directory / "deploy/helm/plugwright/Chart.yaml", _CHART_MARK, chart)
    values = directory / "deploy/helm/plugwright/values.yaml"
    if values.exists():
        _replace(values, f"    runbooks: {_RUNBOOKS}", f"    runbooks: {repository}/blob/main/{_RUNBOOKS}\n")


def _replace(path: Path, mark: str, text: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    [index] = [number for number, line in enumerate(lines) if line.startswith(mark)]
    path.write_text("".join([*lines[:index], text, *lines[index + 1 :]]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "."))
