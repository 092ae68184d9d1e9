"""A Sphinx extension that finds objects by their public names.

A docstring names an object as its module sees it. The pages document it as the package exports it:
`DataLoader.once` in the module loaderx.dataloader is loaderx.DataLoader.once.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.reference | None:
    """Return a reference to what the package exports under this name, if anything."""
    if node.get("refdomain") != "py":
        return None
    known = (
        env.domains["py"]
        .data["objects"]
        .get(f"{app.config.project}.{node['reftarget']}")
    )
    if known is None:
        return None
    return make_refnode(
        app.builder, node["refdoc"], known.docname, known.node_id, content
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to what Sphinx does not find by itself."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
