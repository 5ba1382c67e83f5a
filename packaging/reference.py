#!/usr/bin/env python3
"""Writes docs/reference: every option of every program from its --help, every environment variable, every metric from
what running programs serve, every class of the Python package from its docstrings (python_reference.py).

Usage: reference.py FOLDER-OF-PROGRAMS [FOLDER]. The pages are kept beside the other documents, because they are read where
nothing has been built, too; a test compares them with the programs. Needs nothing but Python; a swarm of a node, a
trainer and a monitor runs for some seconds on this machine.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from manual import Help
from python_reference import python_page

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("cohive-bootstrap", "cohive-train", "cohive-monitor", "cohive-dht", "cohive-bench")
PATIENCE = 60  # seconds
NOTE = "<!-- Written by packaging/reference.py: change the sources, and run it again. -->"

# ---- Options

KINDS = {"TEXT": "text", "INT": "whole number", "UINT": "whole number", "FLOAT": "number", "TIME": "time", "FILE": "file",
         "RATE": "bytes per second", "PERIOD": "time or epochs", "JSON": "JSON",
         "NAME=VALUE": "name and value"}
CHECKS = {"POSITIVE": "above 0", "NONNEGATIVE": "0 or more"}


class Option:
    """An option or argument, from its line of --help: `--name,-n TEXT:{a,b} ... (Env:VARIABLE) Excludes: --other`."""

    def __init__(self, signature, text):
        self.text = text
        self.variable = (re.search(r"\(Env:(\w+)\)", signature) or [None, ""])[1]
        others = {word: re.search(rf"{word}:((?: --[\w-]+)+)", signature) for word in ("Excludes", "Needs")}
        names, _, value = re.sub(r" \(Env:\w+\)| (?:Excludes|Needs):(?: --[\w-]+)+", "", signature).partition(" ")
        self.names = [re.sub(r"\{\w+\}$", "", name) for name in names.split(",")]
        self.value = self.describe(value)
        self.remarks = [f"{ {'Excludes': 'not with', 'Needs': 'with'}[word]} `{found[1].strip()}`"
                        for word, found in others.items() if found]

    @staticmethod
    def describe(value):
        value = value.removesuffix(" REQUIRED")
        many, value = value.endswith(" ..."), value.removesuffix(" ...")
        if not value:
            return ""
        kind, _, check = value.partition(":")
        if limits := re.fullmatch(r"\w+ in \[(\S+) - (\S+)\]", check):
            least, most = (f"{float(limit):g}" if "." in limit or "e" in limit else limit for limit in limits.groups())
            return f"{KINDS[kind]}, {least} to {most}"
        if check.startswith("{"):
            return " or ".join(f"`{choice}`" for choice in check.strip("{}").split(","))
        described = ", ".join(filter(None, [KINDS[kind], CHECKS.get(check, check)]))
        return f"{described}, one or more" if many else described

    def row(self):
        names = ", ".join(f"`{name}`" for name in self.names)
        variable = f"`{self.variable}`" if self.variable else ""
        text = "; ".join([self.text, *self.remarks])
        return f"| {names} | {self.value} | {variable} | {cell(text)} |"


def cell(text):
    """Text of a table: what looks like markup is text."""
    return re.sub(r"([|*<>])", r"\\\1", text)


def tables(described, level):
    lines = []
    for heading, entries in described.groups:
        if heading in ("Subcommands", "Examples"):
            continue
        options = [Option(*entry) for entry in entries]
        if level > 2:  # of a subcommand
            options = [option for option in options if "--help" not in option.names]
        if not options:
            continue
        lines += ["", f"{'#' * level} {heading}", "", "| option | value | variable | |", "|---|---|---|---|"]
        lines += [option.row() for option in options]
    return lines


def program_page(binary):
    top = Help(binary)
    name = Path(binary).name
    lines = [f"# {name}", "", NOTE, "", cell(top.about), "", f"`{top.usage}`", "", *top.footer]
    examples = [signature for heading, entries in top.groups if heading == "Examples" for signature, _ in entries]
    lines += ["", "```sh", *examples, "```", *tables(top, 2)]
    for command in top.subcommands():
        described = Help(binary, command)
        lines += ["", f"## {name} {command}", "", cell(described.about), "", f"`{described.usage}`", *tables(described, 3)]
    return "\n".join(lines) + "\n"


# ---- Environment

VARIABLES = {
    "INITIAL_PEERS": "addresses of a swarm, separated by commas or spaces; where no `--initial-peers` is given",
    "PL_INITIAL_PEERS": "the same, under the name that HivemindStrategy has; looked at last",
    "COHIVE_LOG_LEVEL": "levels of the log, in programs of yours that use the library, too",
    "NO_COLOR": "set to anything: the log has no colours",
    "TERM": "`dumb`: the log has no colours",
    "JOURNAL_STREAM": "set by systemd: lines of the log carry their priority",
    "XDG_RUNTIME_DIR": "where the file is by which processes of one machine meet",
    "LOCAL_RANK": "set by torchrun: which process of this machine this is; rank 0 is the peer",
    "LOCAL_WORLD_SIZE": "set by torchrun: how many they are",
    "MASTER_PORT": "set by torchrun: what tells the groups of one machine from each other",
    "COHIVE_LOCAL_MEETING": "the file by which processes of one machine meet, if not where the ones above say",
    "TMPDIR": "the folder of the file without a name in which a text from a pipe is kept; `/tmp` where it is not set",
}


SETTINGS = """Every option of a program has a variable of its own, which the page of the program names: `COHIVE_<PROGRAM>_<OPTION>`, and
for options of a subcommand `COHIVE_<PROGRAM>_<SUBCOMMAND>_<OPTION>`. Those of the log are the same for all programs. A list is
separated by commas, addresses by spaces, too, and a flag is `true` or `false`. A variable that is empty counts as not set. One of that form that is no option,
or whose value is in quotes, as docker's `--env-file` leaves them, ends the program with exit code 2.

In a file (`--config FILE`, [TOML](https://toml.io)) the name of an option without its dashes is the key, `metrics-address = "127.0.0.1:9464"`;
options of a subcommand stand under `[serve]`, say. `_` and `-` are alike. A text is in quotes, a flag is `true` or `false`, a list is
`["a", "b"]`; an empty list is none, whatever the variable says. A key that is no option, or sets an option twice, ends the program
with exit code 2. A flag goes before the file, and the file before the variable.

A number is decimal, and zeros before it change nothing: `0512` is 512 (TOML itself refuses such zeros, and has `10_000` and `0x200`).
What is none, or is out of the range of an option, ends the program with exit code 2, wherever it stands.

Besides, programs look at:""".splitlines()


def variables_of_sources():
    """Names in the sources that ask the environment."""
    names = set()
    for path in [*ROOT.glob("src/**/*.cpp"), *ROOT.glob("tools/**/*.cpp")]:
        text = path.read_text()
        if "getenv" in text:
            names |= set(re.findall(r'"([A-Z][A-Z_]{3,})"', text))
        if "temp_directory_path(" in text:  # which looks at it
            names.add("TMPDIR")
    return names


def environment_page(binaries):
    lines = ["# Variables and files", "", NOTE, "", *SETTINGS, "", "| variable | |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
    shared = {option.variable: option for binary in binaries for heading, entries in Help(binary).groups if heading == "Log"
              for option in (Option(*entry) for entry in entries)}
    lines += ["", "## The log of every program", "", "| variable | option | |", "|---|---|---|"]
    lines += [f"| `{name}` | `{option.names[0]}` | {cell(option.text)} |" for name, option in shared.items()]
    return "\n".join(lines) + "\n"


# ---- Metrics

OPEN = {"run_id", "peer", "method", "version", "revision", "compiler", "aes"}  # labels of which no list of values can be given
RUN = "cohive_run"  # the run of the swarm below, which is a part of some values
MODULES = {"process": "The process", "core": "Event loop and log", "transport": "Transport", "p2p": "Peers and connections", "rpc": "Calls",
           "dht": "DHT", "averaging": "Averaging", "train": "Training", "swarm": "A run, as cohive-monitor serve sees it"}


class Metric:
    def __init__(self, kind, text):
        self.kind, self.text, self.labels = kind, text, {}


def metrics_in(text):
    """What a page of metrics says: name -> Metric."""
    found = {}
    for line in text.splitlines():
        if help_line := re.match(r"# HELP (\w+) (.*)", line):
            found[help_line[1]] = Metric("", help_line[2])
        elif type_line := re.match(r"# TYPE (\w+) (\w+)", line):
            found[type_line[1]].kind = type_line[2]
        elif sample := re.match(r"(\w+)\{(.*)\} ", line):
            name = sample[1] if sample[1] in found else re.sub(r"_(bucket|sum|count)$", "", sample[1])
            for label, value in re.findall(r'(\w+)="([^"]*)"', sample[2]):
                if label != "le":
                    found[name].labels.setdefault(label, set()).add(value.replace(RUN, "RUN"))
    return found


def merged(pages):
    found = {}
    for page in pages:
        for name, metric in page.items():
            known = found.setdefault(name, Metric(metric.kind, metric.text))
            for label, values in metric.labels.items():
                known.labels.setdefault(label, set()).update(values)
    return found


def literal(text):
    return "".join(re.findall(r'"([^"]*)"', text))


def metrics_of_sources():
    """Names that the sources register, with their help."""
    found = {}
    for path in [*ROOT.glob("include/**/*.hpp"), *ROOT.glob("src/**/*.[ch]pp"), *ROOT.glob("tools/**/*.cpp")]:
        text = path.read_text()
        constants = {name: literal(value) for name, value in re.findall(r'char\* (k\w+) =\s*((?:"[^"]*"\s*)+);', text)}
        for name, text_of in re.findall(r'(?:counter|gauge|histogram|Series)[({]\s*"((?:cohive|process)_\w+)",\s*((?:"[^"]*"\s*)+|k\w+)', text):
            found[name] = constants.get(text_of) or literal(text_of)
    return found


def read(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


def scraped(binaries):
    """The metrics of a small swarm, in which a trainer has ended an epoch if there is one."""
    binaries = {Path(binary).name: binary for binary in binaries}
    environment = {name: value for name, value in os.environ.items() if "INITIAL_PEERS" not in name}
    processes, pages = [], []

    def start(name, *arguments):
        processes.append(subprocess.Popen([binaries[name], *arguments, "--json", "--metrics-address", "127.0.0.1:0"], env=environment,
                                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return json.loads(processes[-1].stdout.readline())

    def wait_for(url, *words):
        give_up = time.monotonic() + PATIENCE
        while True:
            page = read(url)
            missing = [word for word in words if word not in page]
            if not missing:
                return metrics_in(page)
            if time.monotonic() > give_up:
                raise TimeoutError(f"{url} does not tell {missing}")
            time.sleep(0.05)

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.write_text("In the beginning was the Word, and the Word was with others. " * 200)
        try:
            node = start("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0")
            joining = ["--initial-peers", *node["initial_peers"]]
            trained = "cohive-train" in binaries
            if trained:
                small = ["--width", "16", "--layers", "1", "--context", "16", "--target-batch-size", "256", "--matchmaking-time", "1"]
                trainer = start("cohive-train", "--text", text, "--host-maddrs", "/ip4/127.0.0.1/tcp/0", *small, *joining)
                pages.append(wait_for(trainer["metrics"].split()[0], f'\ncohive_train_epoch{{run_id="{RUN}"}} 1'))
            monitor = start("cohive-monitor", "serve", "--interval", "0.1", *joining)
            told = ["cohive_swarm_trainer_loss{", "cohive_swarm_trainer_reachable{"] if trained else ["\ncohive_swarm_epoch"]
            pages.append(wait_for(monitor["metrics"], *told))
            pages.append(wait_for(node["metrics"], "\ncohive_dht_nodes"))
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    return merged(pages)


def labels_text(labels):
    return "; ".join(f"`{label}`" if label in OPEN else f"`{label}`: " + ", ".join(f"`{value}`" for value in sorted(values))
                     for label, values in sorted(labels.items()))


def metrics_page(found):
    lines = ["# Metrics", "", NOTE, "", "What `/metrics` of the programs tells ([watching](../watching.md)): name, type, labels with their values where "
             "these are known beforehand,", "and what it counts. Durations are in seconds, sizes in bytes. [`monitoring`](../../monitoring) has alerts "
             "and dashboards.", ""]
    module_of = {name: "process" if name.startswith("process_") else name.split("_")[1] for name in found}
    module_of = {name: module if module in MODULES else "process" for name, module in module_of.items()}
    for module, title in MODULES.items():
        lines += [f"## {title}", "", "| metric | type | labels | |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {metric.kind} | {labels_text(metric.labels)} | {cell(metric.text)} |"
                  for name, metric in sorted(found.items()) if module_of[name] == module]
        lines.append("")
    return "\n".join(lines)


def metrics_in_page(text):
    """The rows of metrics_page: name -> (type, labels, help)."""
    return {row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", text, flags=re.MULTILINE)}


def main():
    binaries = [path for name in PROGRAMS if (path := Path(sys.argv[1], name).resolve()).exists()]
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/reference"
    folder.mkdir(parents=True, exist_ok=True)
    for binary in binaries:
        (folder / f"{binary.name}.md").write_text(program_page(binary))
    (folder / "python.md").write_text(python_page())
    (folder / "environment.md").write_text(environment_page(binaries))
    (folder / "metrics.md").write_text(metrics_page(scraped(binaries)))


if __name__ == "__main__":
    main()
