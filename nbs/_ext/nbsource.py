"""The package as source text: what its modules define, and a page entry for each public name.

Source is read, not run, so a page shows defaults as they are written.
"""
import ast
import json
import re
import tokenize
import tomllib
from collections.abc import Iterator
from importlib import import_module
from io import StringIO
from pathlib import Path

from nbdev.doclinks import patch_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGE = sorted((ROOT / PROJECT["name"]).rglob("[!_]*.py"))
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE}  # module -> file
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
PROPERTIES = {"property", "cached_property"}


def definitions(tree: ast.Module) -> dict[str, ast.AST]:
    "What a module or cell defines: names, functions, classes; methods, patched or assigned ones too, as `Cls.name`."
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            stored = [n for target in targets for n in ast.walk(target) if isinstance(getattr(n, "ctx", 0), ast.Store)]
            found |= {ast.unparse(n): node for n in stored if isinstance(n, ast.Name | ast.Attribute)}
        elif isinstance(node, ast.ClassDef):
            found |= {node.name: node} | {f"{node.name}.{n.name}": n for n in node.body if isinstance(n, FUNCTIONS)}
        elif isinstance(node, FUNCTIONS):
            names = patch_name(node)
            found |= dict.fromkeys([names] if isinstance(names, str) else names, node)
    return found


SYMBOLS = {module: definitions(ast.parse(path.read_text(encoding="utf-8"))) for module, path in FILES.items()}


def exported(module: str) -> list[str]:
    "The names in a module's `__all__`, in its order. Where it is computed, the module is imported."
    node = SYMBOLS[module].get("__all__")
    try:
        return ast.literal_eval(node.value) if node else []
    except ValueError:
        return import_module(module).__all__


def lines_of(module: str, name: str) -> tuple[Path, int, int] | None:
    "File, first and last line of a name; a patched method stands in another module than its class."
    for mod in (module, *SYMBOLS):
        if node := SYMBOLS.get(mod, {}).get(name):
            return FILES[mod].relative_to(ROOT), node.lineno, node.end_lineno
    return None


def text(node: ast.AST | None) -> str:
    "Source of an expression; a dataclass `field` becomes the default it makes."
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("field"):
        words = {k.arg: k.value for k in node.keywords}
        made = words.get("default_factory")
        return f"{made.id}()" if isinstance(made, ast.Name) else text(words.get("default")) or "..." * bool(made)
    return ast.unparse(node) if node else ""


def kind_of(node: ast.AST | None) -> str:
    "Source of a type, without quotes around it."
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else text(node)


def prose(words: str) -> str:
    "A docstring as Markdown in which `<` is a letter, not the start of a tag."
    return re.sub(r"(`[^`]*`|^ {4}.*$)|<", lambda m: m[1] or r"\<", words, flags=re.M)


def maker(source: str, node: ast.AST) -> tuple[str, ast.AST | None]:
    "What takes the arguments of a call, and its source: a function, `__init__` of a class or its bases, a dataclass."
    if not isinstance(node, ast.ClassDef):
        return source, node
    kinds = [ast.unparse(n) for n in (*node.decorator_list, *node.bases)]
    init = next((n for n in node.body if getattr(n, "name", "") == "__init__"), None)
    if init or any("dataclass" in kind or kind == "NamedTuple" for kind in kinds):
        return source, init or node
    bases = [(FILES[module], names[kind]) for kind in kinds for module, names in SYMBOLS.items() if kind in names]
    made = (maker(path.read_text(encoding="utf-8"), base) for path, base in bases if isinstance(base, ast.ClassDef))
    return next((pair for pair in made if pair[1]), (source, None))


def value_of(name: str, node: ast.Assign | ast.AnnAssign) -> str:
    "Source of what a name is assigned; its own part of `A, B = 1, 2`."
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        return text(dict(zip(map(ast.unparse, target.elts), node.value.elts)).get(name, node.value))
    return text(node.value)


def arguments(node: ast.AST) -> list[tuple[str, ast.AST | None, ast.AST | None, int]]:
    "Name, type, default and last line of each argument of a function or field of a dataclass; the marks / and * too."
    if isinstance(node, ast.ClassDef):
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and "ClassVar" not in text(n.annotation)]
        fields = [n for n in fields if "init=False" not in (ast.unparse(n.value) if n.value else "")]
        return [(n.target.id, n.annotation, n.value, n.end_lineno) for n in fields]
    a = node.args
    plain = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(plain) - len(a.defaults)) + a.defaults
    rows = [(arg.arg, arg, default) for arg, default in zip(plain, defaults)]
    rows[len(a.posonlyargs):len(a.posonlyargs)] = [("/", None, None)] * bool(a.posonlyargs)
    rows += [("*" + a.vararg.arg, a.vararg, None)] if a.vararg else [("*", None, None)] * bool(a.kwonlyargs)
    rows += [(arg.arg, arg, default) for arg, default in zip(a.kwonlyargs, a.kw_defaults)]
    rows += [("**" + a.kwarg.arg, a.kwarg, None)] if a.kwarg else []
    return [(name, arg and arg.annotation, value, (value or arg).end_lineno if arg else 0) for name, arg, value in rows]


def comments(source: str) -> dict[int, tuple[str, bool]]:
    "Line -> its comment, and whether the comment has the line to itself."
    tokens = [t for t in tokenize.generate_tokens(StringIO(source).readline) if t.type == tokenize.COMMENT]
    return {t.start[0]: (prose(t.string.lstrip("# ")), not t.line[: t.start[1]].strip()) for t in tokens}


def docments(source: str, node: ast.AST) -> dict[str, str]:
    "Comment of each argument (on its last line, or on lines of its own above) and, as `return`, of the result."
    at, last = {line: name for name, _, _, line in arguments(node) if line}, node.end_lineno
    if not isinstance(node, ast.ClassDef):
        last = max(node.lineno, node.body[0].lineno - 1)
        start = node.returns.end_lineno if node.returns else max(at, default=node.lineno - 1) + 1
        at |= dict.fromkeys(range(start, last + 1), "return")
    found = {}
    for line, (words, alone) in comments(source).items():
        owner = at.get(min((n for n in at if n >= line), default=0) if alone else line)
        if owner and node.lineno <= line <= last:
            found[owner] = f"{found.get(owner, '')} {words}".strip()
    return found


def signature(node: ast.AST | None, bound: bool, typed: bool) -> str:
    "`(a, b = 1) -> c`, with defaults as they are written; types of arguments only where asked for."
    if node is None:
        return ""
    words = []
    for name, kind, value, _ in arguments(node)[bound:]:
        words.append(name + f": {kind_of(kind)}" * bool(typed and kind) + f" = {text(value)}" * bool(value))
    result = "" if getattr(node, "name", "") == "__init__" else kind_of(getattr(node, "returns", None))
    return f"({', '.join(words)})" + f" -> {result}" * bool(result)


def field_list(node: ast.AST, bound: bool, notes: dict[str, str]) -> Iterator[str]:
    "Name, type, default and docment of each argument, and the docment of the result, as Sphinx fields."
    for name, kind, value, line in arguments(node)[bound:]:
        if line:
            yield f":param {name}: {notes.get(name, '')}"
            yield f":type {name}: " + ", ".join([kind_of(kind)] * bool(kind) + [f"default {text(value)}"] * bool(value))
    if "return" in notes:
        yield f":returns: {notes['return']}"


def is_shown(node: ast.AST) -> bool:
    "Whether a part of a class is listed: a method with a docstring, public or special but not `__init__`."
    if not isinstance(node, FUNCTIONS) or not ast.get_docstring(node) or node.name == "__init__":
        return False
    again = any(ast.unparse(d).endswith((".setter", ".deleter", "overload")) for d in node.decorator_list)
    return not again and (node.name[0] != "_" or node.name.endswith("__"))


def entry(source: str, node: ast.AST, name: str, module: str) -> str:
    "The Markdown directive of a name. Types stand in the signature or, with docments, in a list; classes hold methods."
    if isinstance(node, ast.Assign | ast.AnnAssign):
        value, words = value_of(name, node), comments(source).get(node.end_lineno, ("",))[0]
        kind, words = ("attribute", f"As a method: `{value}`. {words}") if "." in name else ("data", words)
        shown = f":value: {json.dumps(value)}\n" * (len(value) < 90)
        return f":::{{py:{kind}}} {name}\n:module: {module}\n{shown}\n{words}\n:::"
    is_class, (origin, made) = isinstance(node, ast.ClassDef), maker(source, node)
    marks = {ast.unparse(d).split(".")[-1] for d in node.decorator_list}
    kind = "class" if is_class else "function" if "." not in name else "property" if marks & PROPERTIES else "method"
    bound = made is not node or kind == "method" and "staticmethod" not in marks
    notes = docments(origin, made) if made else {}
    options = [f":module: {module}"]
    if kind == "property":
        options += [f":type: {json.dumps(kind_of(node.returns))}"] * bool(node.returns)
    else:
        name += signature(made, bound, typed=not notes)
        options += [f":{mark}:" for mark in ("classmethod", "staticmethod") if mark in marks]
        options += [":async:"] * isinstance(node, ast.AsyncFunctionDef) + [":single-line-parameter-list:"] * bool(notes)
    body = [prose(ast.get_docstring(node) or "")]
    if is_class and node.bases:
        body.append("{.bases}\nBases: " + ", ".join(f"`{text(base)}`" for base in node.bases))
    body.append("\n".join(field_list(made, bound, notes)) if notes else "")
    body += [entry(source, n, f"{node.name}.{n.name}", module) for n in node.body if is_class and is_shown(n)]
    fence = ":" * (3 + is_class)
    return "\n\n".join([f"{fence}{{py:{kind}}} {name}\n" + "\n".join(options), *body, fence])
