"""A Sphinx builder that writes the inventory of a site and no page."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.dummy import DummyBuilder
from sphinx.util.inventory import InventoryFile


class InventoryBuilder(DummyBuilder):
    """Reads all pages, resolves no reference, and saves what can be referred to."""

    name = "inventory"

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """Return the address that the page has in the site."""
        return f"{docname}.html"

    def write_documents(self, docnames: Set[str]) -> None:
        """Write nothing: references may lead to inventories that are not there yet."""

    def finish(self) -> None:
        """Save the inventory."""
        InventoryFile.dump(str(Path(self.outdir) / "objects.inv"), self.env, self)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the builder."""
    app.add_builder(InventoryBuilder)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
