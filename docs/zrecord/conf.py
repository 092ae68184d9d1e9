"""Sphinx configuration of the site "zrecord"."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sphinx_settings import settings

globals().update(settings("zrecord"))
