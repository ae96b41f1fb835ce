"""Sphinx configuration: `python -m sphinx -W -n docs out/docs` builds the site.

The reference is generated: the API from docstrings (autodoc), the pages named in `generated.PAGES` from the package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import tna_onnx

sys.path.insert(0, str(Path(__file__).parent))
from generated import PAGES  # beside this file

project = "tna-onnx"
version = release = tna_onnx.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["Thumbs.db", "README.md"]

html_theme = "furo"
html_title = f"tna-onnx {version}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
smartquotes = False  # `--flag` in running text keeps its dashes

myst_enable_extensions = ["deflist"]  # the glossary
myst_heading_anchors = 3  # links to headings, as on GitHub: data.md#labels

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
default_role = "code"  # docstrings write `name`, as Markdown does
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Source"]
nitpick_ignore_regex = [(r"py:.*", r".*")]  # types of NumPy, ONNX and the package's inner modules have no page here


def _escape(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `names`: what reStructuredText would take for marks stays as it is."""
    for k, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
        lines[k] = "".join(parts)


def _generate(_app: Any, page: str, source: list[str]) -> None:
    """Put what the package says of itself in place of `<!-- generated -->`."""
    if page in PAGES:
        source[0] = source[0].replace("<!-- generated -->", PAGES[page]())


def _stay_inside(app: Any, page: str, source: list[str]) -> None:
    """Links out of docs/ work on GitHub; the site has no page there, so their text is all that is left of them."""
    folder, root = Path(app.srcdir, page).parent, Path(app.srcdir).resolve()

    def text_of(link: re.Match[str]) -> str:
        return link[0] if (folder / link[2]).resolve().is_relative_to(root) else link[1]

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", text_of, source[0])


def setup(app: Any) -> None:
    """Connect the hooks above."""
    app.connect("autodoc-process-docstring", _escape)
    app.connect("source-read", _stay_inside)
    app.connect("source-read", _generate)
