"""The page docs/reference/python.md: every class and function of the Python package, from signatures and docstrings.

reference.py writes it. Needs nothing but Python; reads the sources and imports none of them.
"""

import ast
import re
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "python/cohive"
NOTE = "<!-- Written by packaging/reference.py: change the docstrings, and run it again. -->"
ABOUT = (
    "How to begin, and what to know of each part, is in [cohive in Python](../python.md). Names, keywords and defaults "
    "are those of hivemind 1.1.12 wherever it has them."
)
# Heading, what it is about, and names: of the package `cohive`, or MODULE.NAME, with :FILE where the module only passes
# it on.
SECTIONS = [
    ("Training", "`import cohive`. These need torch.", "Optimizer GradScaler LocalOptimizer"),
    (
        "Local steps",
        "`from cohive.local_sgd import ...`, with the names of torchft.",
        "local_sgd.Manager local_sgd.LocalSGD local_sgd.DiLoCo",
    ),
    (
        "Lightning",
        "`from cohive.lightning import ...`, or `cohive.pytorch_lightning` for the package of that name.",
        "lightning.HivemindStrategy:_strategy lightning.HiveMindScheduler:_strategy",
    ),
    (
        "Transformers",
        "`from cohive.transformers import ...`.",
        "transformers.CollaborativeCallback transformers.NoOpScheduler",
    ),
    (
        "Swarm and DHT",
        "`import cohive`. These need nothing but Python.",
        """DHT start_bootstrap join_line get_dht_time DHTExpiration ValueWithExpiration DHTNode DHTID PeerID Multiaddr
        Future CohiveError""",
    ),
    (
        "Who may write what",
        "Validators of the DHT's records.",
        """RecordValidatorBase RSASignatureValidator SchemaValidator CompositeValidator DHTRecord BytesWithPublicKey
        RSAPrivateKey RSAPublicKey""",
    ),
    (
        "Averaging",
        "These need torch.",
        """DecentralizedAverager StepControl AveragingStage AveragingMode AllreduceException GradientAverager
        PowerSGDGradientAverager TrainingAverager TrainingStateAverager ProgressTracker""",
    ),
    (
        "Compression",
        "These need torch.",
        """CompressionBase CompressionInfo TensorRole NoCompression Float16Compression ScaledFloat16Compression
        Uniform8BitQuantization Quantile8BitQuantization BlockwiseQuantization SizeAdaptiveCompression
        RoleAdaptiveCompression PerTensorCompression serialize_torch_tensor deserialize_torch_tensor""",
    ),
]


def parsed(module):
    return ast.parse((PACKAGE / f"{module}.py").read_text())


def exported():
    """NAME -> MODULE of what `cohive` itself has."""
    for node in parsed("__init__").body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "_WHERE":
            return ast.literal_eval(node.value)
    raise ValueError("python/cohive/__init__.py has no _WHERE")


def definition(module, name):
    """The node of a class, function or constant, wherever the module has it from."""
    tree = parsed(module)
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets):
            return node
        if isinstance(node, ast.ImportFrom) and node.level and any(one.name == name for one in node.names):
            return definition(node.module, name)
    raise ValueError(f"python/cohive/{module}.py has no {name}")


# ---- Text


def escaped(text):
    """Text of a page: ``code`` is `code`, and what else looks like markup is text."""
    parts = re.split(r"(``.+?``|`.+?`)", " ".join(text.split()))
    plain = [part if part.startswith("`") else re.sub(r"([*<>|_\[\]])", r"\\\1", part) for part in parts]
    return "".join("`" + part.strip("`") + "`" if part.startswith("`") else part for part in plain)


def split(docstring):
    """Paragraphs and examples of a docstring, its parameters, and what it raises."""
    at = re.search(r"^:\w", docstring, flags=re.MULTILINE)
    body, fields = (docstring[: at.start()], docstring[at.start() :]) if at else (docstring, "")
    found = re.findall(r"^:(\w+)(?: ([\w.]+))?: ((?:.|\n(?!:))*)", fields, flags=re.MULTILINE)
    parameters = [(name, text) for kind, name, text in found if kind == "param"]
    raises = [(name, text) for kind, name, text in found if kind == "raises"]
    lines, examples = [], False
    for paragraph in body.strip("\n").split("\n\n"):
        if paragraph.strip() == "::":
            examples = True
        elif examples and paragraph.startswith(" "):
            lines += ["```python", textwrap.dedent(paragraph), "```", ""]
        else:
            examples = paragraph.rstrip().endswith("::")
            lines += [escaped(re.sub(r"::$", ":", paragraph.strip())), ""]
    return lines, parameters, raises


def signature(function, skip_self):
    """(name, default or None, kind) of each parameter, as it is called."""
    told = function.args
    positional = [*told.posonlyargs, *told.args]
    defaults = [None] * (len(positional) - len(told.defaults)) + [ast.unparse(one) for one in told.defaults]
    found = [(one.arg, default) for one, default in zip(positional, defaults)]
    found = found[1:] if skip_self else found
    if told.vararg:
        found.append(("*" + told.vararg.arg, None))
    elif told.kwonlyargs:
        found.append(("*", None))
    keywords = zip(told.kwonlyargs, told.kw_defaults)
    found += [(one.arg, None if default is None else ast.unparse(default)) for one, default in keywords]
    if told.kwarg:
        found.append(("**" + told.kwarg.arg, None))
    return found


def called(name, parameters):
    return f"{name}({', '.join(one if default is None else f'{one}={default}' for one, default in parameters)})"


def table(documented, parameters):
    defaults = dict((name.lstrip("*"), default) for name, default in parameters)
    shown = {name: f"`{default}` " if default is not None else "" for name, default in defaults.items()}
    rows = [f"| `{name}` | {shown.get(name, '')}| {escaped(text)} |" for name, text in documented]
    return ["| parameter | default | |", "|---|---|---|", *rows, ""] if rows else []


def has(node, decorator):
    return any(ast.unparse(one).endswith(decorator) for one in node.decorator_list)


# ---- Nodes


def function_lines(shown, node):
    parameters = signature(node, False)
    text, documented, raises = split(ast.get_docstring(node) or "")
    lines = [f"### {shown}", "", f"`{called(node.name, parameters)}`", "", *text, *table(documented, parameters)]
    return lines + [f"Raises `{name}`: {escaped(why)}.\n" for name, why in raises]


def method_line(node):
    text, documented, raises = split(ast.get_docstring(node))
    is_property = has(node, "property")
    shown = node.name if is_property else called(node.name, signature(node, not has(node, "staticmethod")))
    words = " ".join(line for line in text if line and not line.startswith("```"))
    words += "".join(f" `{name}`: {escaped(about)}." for name, about in documented)
    words += "".join(f" Raises `{name}`: {escaped(why)}." for name, why in raises)
    return f"* `{shown}`: {words}"


def class_lines(shown, node):
    made = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    parameters = signature(made, True) if made else []
    text, documented, raises = split(ast.get_docstring(node) or "")
    lines = [f"### {shown}", ""]
    if made:
        lines += [f"`{called(node.name, parameters)}`", ""]
    lines += text + table(documented, parameters) + [f"Raises `{name}`: {escaped(why)}.\n" for name, why in raises]
    functions = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    public = [one for one in functions if not one.name.startswith("_") and not has(one, ".setter")]
    methods = [one for one in public if ast.get_docstring(one)]
    return lines + [method_line(one) for one in methods] + ([""] if methods else [])


def entry_lines(shown, module, name):
    node = definition(module, name)
    if isinstance(node, ast.ClassDef):
        return class_lines(shown, node)
    if isinstance(node, ast.FunctionDef):
        return function_lines(shown, node)
    return [f"### {shown}", "", f"`{ast.unparse(node)}`", ""]


def python_page():
    where = exported()
    lines = ["# The Python package", "", NOTE, "", ABOUT, ""]
    told = set()
    for heading, about, names in SECTIONS:
        lines += [f"## {heading}", "", about, ""]
        for word in names.split():
            path, _, module = word.partition(":")
            prefix, _, name = path.rpartition(".")
            lines += entry_lines(name, module or prefix or where[name], name)
            told.add(name)
    if missing := set(where) - told:
        raise ValueError(f"packaging/python_reference.py has no section for {', '.join(sorted(missing))}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"
