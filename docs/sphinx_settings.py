"""The Sphinx settings of all three sites; each conf.py names its site.

The sites are joined by intersphinx over local inventories: build.py writes the inventories of both
packages before it builds a page, so that each site can refer to the other without a network.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
OUTPUT = DOCS / "_build"
PACKAGES = ("zrecord", "loaderx")
# As the header of each page calls the sites, and the folders they are built in.
SITES = {"overview": "landing", "zrecord": "zrecord", "loaderx": "loaderx"}


def settings(site: str) -> dict[str, Any]:
    """Return the configuration of a site: "zrecord", "loaderx" or "landing"."""
    others = [package for package in PACKAGES if package != site]
    return {
        "project": site if site in PACKAGES else "zrecord and loaderx",
        "author": "the zrecord and loaderx authors",
        "copyright": "the zrecord and loaderx authors, MIT licence",
        "version": _version(site),
        "release": _version(site),
        "extensions": [
            "myst_parser",
            "numpydoc",
            "sphinx.ext.autodoc",
            "sphinx.ext.autosummary",
            "sphinx.ext.intersphinx",
            "public_names",
            "inventory",
            "figures",
            "benchmarks",
        ],
        "nitpicky": True,
        # Other projects' objects have no inventory without a network.
        "nitpick_ignore_regex": [("py:.*", r"(enum|numpy)\..*")],
        "intersphinx_mapping": {
            other: (f"../{other}/", str(inventory(other))) for other in others
        },
        # In docstrings, single backticks name an object or a parameter.
        "default_role": "autolink",
        "autodoc_member_order": "bysource",
        "autodoc_typehints": "none",
        "toc_object_entries_show_parents": "hide",
        "autosummary_generate": False,
        "numpydoc_show_class_members": False,
        "numpydoc_xref_param_type": False,
        "myst_enable_extensions": ["colon_fence", "deflist"],
        "myst_heading_anchors": 3,
        "templates_path": ["../templates"],
        "html_context": {"sites": SITES, "this_site": site},
        "html_theme": "pydata_sphinx_theme",
        "html_title": "zrecord and loaderx"
        if site == "landing"
        else f"{site} {_version(site)}",
        "html_static_path": ["../static"],
        "html_css_files": ["sites.css"],
        "html_show_sourcelink": False,
        "html_copy_source": False,
        "html_show_sphinx": False,
        "html_sidebars": {"**": [] if site == "landing" else ["pages"]},
        "html_theme_options": {
            "logo": {"text": "zrecord and loaderx"},
            "navbar_align": "left",
            "navbar_center": ["sites"],
            "navigation_with_keys": False,
            "secondary_sidebar_items": [] if site == "landing" else ["page-toc"],
            "show_prev_next": site != "landing",
            "footer_start": ["copyright"],
            "footer_end": [],
        },
    }


def inventory(package: str) -> Path:
    """Return where build.py keeps the inventory of a package's site."""
    return OUTPUT / "inventories" / f"{package}.inv"


def _version(site: str) -> str:
    return version(site) if site in PACKAGES else ""
