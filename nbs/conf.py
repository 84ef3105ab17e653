"Sphinx settings. Pages are notebooks that `_ext/nbstage.py` staged; nothing is executed, and nothing is fetched."
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
from nbsource import PROJECT, lines_of

project, author = PROJECT["name"], f"the {PROJECT['name']} authors"
html_title = project
extensions = ["myst_nb", "sphinx.ext.linkcode", "nbdocs"]
exclude_patterns = ["_extra"]

# pages: stored outputs, exported source folded, `$math$` as MathML
nb_execution_mode = "off"
nb_render_markdown_format = "gfm"
nb_code_prompt_show = "Source"
nb_code_prompt_hide = "Source"
nb_ipywidgets_js = {}
myst_enable_extensions = ["attrs_block", "colon_fence", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
smartquotes_action = "D"  # dashes only
suppress_warnings = ["misc.highlighting_failure"]  # cells with `%magic`

# names: a reference to one of ours that has no entry is an error; types of others stay plain
nitpicky = True
nitpick_ignore_regex = [("py:.*", rf"(?!{project}\.).*")]
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_theme_options = {
    "top_of_page_buttons": [],
    "light_css_variables": {"color-brand-primary": "#1f4e79", "color-brand-content": "#1f5f99"},
    "dark_css_variables": {"color-brand-primary": "#8ec1f0", "color-brand-content": "#79b4ea"},
}
html_static_path, html_css_files, html_favicon = ["_static"], ["site.css"], "_static/favicon.svg"
html_extra_path = ["../_proc/_extra"]
html_show_sourcelink, html_copy_source, html_show_copyright = False, False, False
pygments_style, pygments_dark_style = "friendly", "github-dark"


def linkcode_resolve(domain: str, info: dict) -> str | None:
    "Where the source of a name stands in the repository."
    found = lines_of(info["module"], info["fullname"])
    return f"{PROJECT['urls']['Repository']}/blob/main/{found[0].as_posix()}#L{found[1]}-L{found[2]}" if found else None
