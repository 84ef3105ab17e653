"Sphinx side of the pages: words that are names become links, public names need a docstring, math needs no script."
import ast
import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from nbsource import FILES, PROJECT, SYMBOLS, exported
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

log = logging.getLogger(__name__)
# docutils sets the index of `\hat m_t` as a limit below the letter
ACCENT = re.compile(r'<munderover>\s*(<mi>.</mi>)\s*(.*?)\s*(<mo stretchy="false">.</mo>)\s*</munderover>', re.S)


def link(app: Sphinx, env: BuildEnvironment, page: str, words: str, shown: nodes.Node) -> nodes.reference | None:
    "A link for `name`, `Cls.name`, `name()` or `package.module.name`, where exactly one module has that name."
    names, root = env.domains.python_domain.objects, PROJECT["name"] + "."
    name = words.removesuffix("()")
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        return None
    found = [full for full in {name, *(f"{module}.{name.removeprefix(root)}" for module in SYMBOLS)} if full in names]
    if len(found) != 1:
        return None
    return make_refnode(app.builder, page, names[found[0]].docname, names[found[0]].node_id, [shown], found[0])


class LinkNames(SphinxPostTransform):
    "Links words in backticks that are names of this package."

    default_priority = 400

    def run(self, **kwargs) -> None:
        for word in list(self.document.findall(nodes.literal)):
            if not isinstance(word.parent, nodes.reference | nodes.title):
                made = link(self.app, self.env, self.env.docname, word.astext(), word.deepcopy())
                if made:
                    word.parent.replace(word, made)


def link_type(app: Sphinx, env: BuildEnvironment, node: nodes.Element, shown: nodes.Node) -> nodes.reference | None:
    "Links a type in a signature that names a class of another module."
    return link(app, env, node["refdoc"], node["reftarget"], shown) if node.get("refdomain") == "py" else None


def check_docstrings(app: Sphinx) -> None:
    "Warns, and `-W` makes it an error, about each public function or class without a docstring."
    for module, names in SYMBOLS.items():
        for name in exported(module):
            node = names.get(name)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not ast.get_docstring(node):
                log.warning("%s has no docstring", name, location=f"{FILES[module]}:{node.lineno}")


def visit_math(self, node: nodes.math | nodes.math_block) -> None:
    "Writes MathML, which browsers show by themselves."
    block = isinstance(node, nodes.math_block)
    mathml = ACCENT.sub(r"<msub><mover>\1\3</mover>\2</msub>", tex2mathml(node.astext()))
    self.body.append(mathml.replace("<math", '<math display="block"', 1) if block else mathml)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_post_transform(LinkNames)
    app.connect("missing-reference", link_type)
    app.connect("builder-inited", check_docstrings)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    return dict(parallel_read_safe=True, parallel_write_safe=True)
