"""Notebooks as pages: `nbstage.py docs` stages nbs/ into _proc/ for Sphinx, `nbstage.py readme` writes README.md.

A page is called as its notebook without the number. Each exported name gets an entry below its cell.
"""
import ast
import json
import re
import shutil
import sys
from pathlib import Path
from textwrap import indent
from urllib.parse import urljoin

from nbdev.process import NBProcessor
from nbsource import PROJECT, ROOT, SYMBOLS, definitions, entry, exported, prose, value_of

NBS, OUT = ROOT / "nbs", ROOT / "_proc"
SITE = PROJECT["urls"]["Documentation"]
SECTIONS = {"tutorials": "Tutorials", "explanation": "Explanation"}  # folder of nbs/ -> caption
REFERENCE = {0: "Reference: core", 18: "Transforms and models", 23: "Losses, optimizers, schedules", 30: "Data", 40: "The loop",
             60: "Tools", 80: "Views"}  # number of the first notebook -> caption
DROPPED = {"hide", "default_exp", "exporti"}
TAGS = {("echo", "false"): "remove-input", ("output", "false"): "remove-output", ("code-fold", ""): "hide-input"}
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n*")
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]*?)(?:\d+[a-z]*_)?([^)/\s]+)\.ipynb(?=[)#])")  # ](folder/00_name.ipynb


def notebooks() -> dict[str, Path]:
    "Page name -> notebook, in the order of the table of contents."
    paths = [p.relative_to(NBS) for p in NBS.rglob("*.ipynb")]
    paths = [p for p in paths if not any(part[0] in "._" for part in p.parts)]
    paths.sort(key=lambda p: (p.stem != "quickstart", p.as_posix()))
    return {re.sub(r"(^|/)\d+[a-z]*_(?=[^/]*$)", r"\1", p.with_suffix("").as_posix()): NBS / p for p in paths}


def visible(path: Path) -> list:
    "The cells of a notebook that a reader sees, each with its `directives_`."
    cells = [c for c in NBProcessor(path).nb.cells if c.source]
    return [c for c in cells if not DROPPED & c.directives_.keys() and c.directives_.get("include") != "false"]


def plain(path: Path) -> str:
    "A notebook as Markdown: code in fences, text outputs indented, pictures and widgets left out."
    parts, base = [], SITE + path.relative_to(NBS).as_posix()
    for cell in visible(path):
        if cell.cell_type == "markdown":
            parts.append(LINK.sub(lambda m: f"]({urljoin(base, m[1] + m[2])}.html", cell.source))
        elif cell.directives_.get("echo") != "false":
            parts.append(f"```python\n{cell.source}\n```")
        for out in cell.get("outputs", []):
            data = out.get("data", {})
            rich = any(mime.startswith(("image/", "application/")) for mime in data)
            words = "".join(out.get("text", "") or ("" if rich else data.get("text/plain", "")))
            parts += [indent(words.rstrip(), "    ")] * bool(words)
    return "\n\n".join(parts) + "\n"


def module_of(path: Path) -> str:
    "The module that a notebook exports, or an empty string."
    names = [c.directives_["default_exp"] for c in NBProcessor(path).nb.cells if "default_exp" in c.directives_]
    return f"{PROJECT['name']}.{names[0]}" if names else ""


def markdown(source: str) -> dict:
    "A notebook cell of text."
    return dict(cell_type="markdown", metadata={}, source=source)


def staged(path: Path) -> list[dict]:
    "The cells of a page: source of exported cells folded, followed by an entry for each public name."
    cells, module = [], module_of(path)
    for cell in visible(path):
        how = cell.directives_
        if cell.cell_type != "code":
            cells.append(markdown(LINK.sub(r"](\1\2.ipynb", cell.source)))
            continue
        folded = "export" in how and how.get("code-fold") != "false"
        tags = [tag for (key, value), tag in TAGS.items() if how.get(key) == value] + ["hide-input"] * folded
        kept = {key: cell[key] for key in ("cell_type", "source", "outputs", "execution_count")}
        cells.append(kept | dict(metadata=dict(tags=tags)))
        for home in [how[key] for key in ("export", "exports") if key in how]:
            cells += map(markdown, entries(cell.source, f"{PROJECT['name']}.{home}" if home else module))
    if module and cells:
        cells.insert(1, markdown(f"```{{py:module}} {module}\n```"))
    return cells


def entries(source: str, module: str) -> list[str]:
    "An entry for each public name that a cell defines, in its order; a method under the module of its class."
    tree, made = ast.parse(source), []
    for name, node in definitions(tree).items():
        cls, _, last = name.rpartition(".")
        home = next((m for m, names in SYMBOLS.items() if cls in names), "" if cls else module)
        if home and node in tree.body and last[0] != "_":
            made.append(entry(source, node, name, home))
    return made


def summary(name: str, node: ast.AST) -> str:
    "First line of a docstring, or the value of a name if it is short, for a table."
    if isinstance(node, ast.Assign | ast.AnnAssign):
        words = value_of(name, node).replace("|", r"\|")
        return f"`{words}`" if len(words) < 90 else ""
    return prose(ast.get_docstring(node) or "").partition("\n")[0].replace("|", r"\|")


def api(pages: dict[str, Path]) -> str:
    "The page that lists every name of every module's `__all__`, modules in the order of their notebooks."
    homes = {module_of(path): page for page, path in pages.items()}
    parts = ["# API", "> Every public name, module by module."]
    for module in sorted(filter(exported, SYMBOLS), key=lambda m: [*homes, m].index(m)):
        own = {name: SYMBOLS[module][name] for name in exported(module) if name in SYMBOLS[module]}
        rows = [f"| {{py:obj}}`{name} <{module}.{name}>` | {summary(name, node)} |" for name, node in own.items()]
        parts += [f"## {module}", f"Explained in []({homes[module]}.ipynb)." if module in homes else ""]
        parts += ["\n".join(["| name | what it is |", "|---|---|", *rows])] * bool(rows)
        parts += [", ".join(f"`{name}`" for name in exported(module) if name not in own)]
    return "\n\n".join(parts)


def contents(pages: dict[str, Path]) -> str:
    "The hidden tables of contents at the end of the front page, which make the sidebar."
    groups = {caption: [] for caption in [*SECTIONS.values(), *REFERENCE.values()]}
    for page, path in pages.items():
        folder, number = page.rpartition("/")[0], re.match(r"\d+", path.stem)
        if folder:
            groups[SECTIONS[folder]].append(page)
        elif number:
            groups[REFERENCE[max(n for n in REFERENCE if n <= int(number[0]))]].append(page)
    groups[REFERENCE[0]].insert(0, "api")
    table = "```{{toctree}}\n:caption: {}\n:hidden:\n\n{}\n```"
    return "\n\n".join(table.format(caption, "\n".join(group)) for caption, group in groups.items() if group)


def stage() -> None:
    "Writes every page, the API page, and a Markdown twin of each page (`core.html.md`) into _proc/."
    shutil.rmtree(OUT, ignore_errors=True)
    pages = notebooks()
    for page, path in pages.items():
        cells = staged(path) + [markdown(contents(pages))] * (page == "index")
        kernel = dict(name="python3", display_name="python3", language="python")
        book = dict(cells=cells, metadata=dict(kernelspec=kernel), nbformat=4, nbformat_minor=4)
        write(f"{page}.ipynb", json.dumps(book))
        write(f"_extra/{page}.html.md", PICTURE.sub("", plain(path)))
    write("api.md", api(pages))
    shutil.copytree(NBS / "images", OUT / "images")


def write(name: str, words: str) -> None:
    "A file in _proc/."
    (OUT / name).parent.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(words, encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["docs"]:
            stage()
        case ["readme"]:
            words = plain(NBS / "index.ipynb").replace("](images/", "](nbs/images/")
            (ROOT / "README.md").write_text(words, encoding="utf-8")
        case _:
            sys.exit(__doc__)
