"""The site: `bin/docs` builds it.  It needs nothing from the network, neither to be built nor to be read."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "supervisor"), str(HERE.parent / "hooks")]

from ftrun import __version__  # noqa: E402

project = "ftrun"
author = "the authors of ftrun"
release = version = __version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# An option is written with two hyphens, and a path with dots: as it is typed.
smartquotes = False
highlight_language = "text"

html_theme = "furo"
html_title = f"ftrun {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
