"""The documentation site of `make docs`. It is read from the top of the repository, so links between pages hold."""

import re

from docutils import nodes
from sphinx.application import Sphinx

__all__: list[str] = []

project = "plugwright"
author = "The plugwright authors"
copyright = "The plugwright authors, Apache-2.0"  # noqa: A001
extensions = ["myst_parser"]
include_patterns = [
    "docs/*.md",
    "reference/*.md",
    *(f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "MAINTAINERS", "ROADMAP", "SECURITY")),
]
root_doc = "docs/index"
nitpicky = True
html_theme = "furo"
html_title = "plugwright"
html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 6

_ANCHOR = re.compile(r'<a id="([^"]+)">')


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", _register_anchors)


def _register_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Lets links find the anchors that pages write as HTML, such as those of facts and rules."""
    labels = app.env.domaindata["std"]["anonlabels"]
    for raw in doctree.findall(nodes.raw):
        for name in _ANCHOR.findall(raw.astext()):
            labels[name] = (app.env.docname, name)
