#!/usr/bin/env python3
"""Makes a manual page and a completion for bash from what a program says with --help.

Usage: manual.py PROGRAM VERSION FOLDER. Writes FOLDER/NAME.1 and FOLDER/NAME. Needs nothing but Python.
"""

import re
import subprocess
import sys
from pathlib import Path

ABOUT = """.SH EXIT STATUS
0: done, or stopped by SIGINT, SIGTERM or SIGHUP. 1: the swarm cannot be reached, the work failed, or an output is not whole. 2: wrong flags, files or
addresses; the line on stderr says what to do.
"""


class Help:
    """The text of --help in its parts."""

    def __init__(self, program, *subcommand):
        def shown(flag):
            return subprocess.run([program, *subcommand, flag], check=True, capture_output=True, text=True).stdout

        text = shown("--help")
        if "--help-all" in text:
            text = shown("--help-all")
        self.about = text.partition("\n")[0]
        self.usage = re.search(r"^Usage: (.*)$", text, flags=re.MULTILINE)[1]
        self.groups = []  # (heading, [(names and value, explanation)])
        self.footer = []
        for line in text.splitlines():
            if re.match(r"\S.*:$", line) and not line.startswith("Usage:"):
                self.groups.append((line[:-1], []))
            elif self.groups and (entry := re.match(r"  (\S.*?)(?:  +(.*))?$", line)):
                self.groups[-1][1].append([entry[1], entry[2] or ""])
            elif self.groups and self.groups[-1][1] and line.startswith(" " * 10):
                last = self.groups[-1][1][-1]
                last[1] = f"{last[1]} {line.strip()}".strip()
            elif self.groups and line.strip():
                self.footer.append(line)

    def entries(self, wanted):
        return [entry for heading, entries in self.groups if (heading == "Subcommands") == wanted for entry in entries]

    def options(self):
        for signature, _ in self.entries(False):
            names = re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", signature.split(" ")[0])
            if names:
                yield names, signature

    def subcommands(self):
        return [signature.split()[0] for signature, _ in self.entries(True)]


def roff(text):
    """Text of a manual page: backslashes, dashes and leading dots mean something there."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def section(heading, entries):
    lines = [f".SH {heading.upper()}"]
    for signature, text in entries:
        lines += [".TP", f".B {roff(signature)}", roff(text) or "\\&"]
    return lines


def manual(name, version, top, subcommands):
    lines = [f'.TH {name.upper()} 1 "" "cohive {version}" "cohive"', ".SH NAME", f"{roff(name)} \\- {roff(top.about)}",
             ".SH SYNOPSIS", roff(top.usage)]
    for heading, entries in top.groups:
        lines += section(heading, entries)
    for command, described in subcommands.items():
        lines += [f'.SH "{name.upper()} {command.upper()}"', roff(described.about + "."), ".PP", roff(described.usage)]
        for _, entries in described.groups:
            lines += section("", entries)[1:]
    if top.footer:
        lines += [".SH SETTINGS", *(roff(line) for line in top.footer)]
    return "\n".join(lines) + "\n" + ABOUT


def words_after(options):
    """Cases of bash: what can follow an option."""
    cases = []
    for names, signature in options:
        choice = re.search(r"\{([\w,-]+)\}", signature)
        pattern = "|".join(names)
        if choice and "TEXT" in signature:
            cases.append(f'    {pattern}) COMPREPLY=($(compgen -W "{choice[1].replace(",", " ")}" -- "$word")); return ;;')
        elif " FILE" in signature or re.search(r"-(path|file|dir|text|data|save|summary|compare)$|-checkpoint$", names[-1]):
            cases.append(f'    {pattern}) COMPREPLY=($(compgen -f -- "$word")); return ;;')
        elif re.search(r" (TEXT|INT|UINT|FLOAT|TIME|RATE|PERIOD|JSON)", signature):
            cases.append(f"    {pattern}) return ;;")
    return cases


def completion(name, top, subcommands):
    flags = " ".join(flag for names, _ in top.options() for flag in names if flag.startswith("--"))
    function = "_" + name.replace("-", "_")
    options = [*top.options(), *(option for described in subcommands.values() for option in described.options())]
    cases = dict.fromkeys(words_after(options))
    lines = [f"# Completion of {name} for bash, made from its --help.", f"{function}() {{",
             '  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} flags="' + flags + '" known',
             "  COMPREPLY=()", '  case "$before" in', *cases, "  esac"]
    if subcommands:
        lines += [f'  local commands="{" ".join(subcommands)}"', '  for known in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do',
                  '    case "$known" in']
        for command, described in subcommands.items():
            own = " ".join(flag for names, _ in described.options() for flag in names if flag.startswith("--"))
            lines.append(f'      {command}) flags="{own}" commands= ;;')
        lines += ["    esac", "  done", '  flags="$flags $commands"']
    lines += ['  COMPREPLY=($(compgen -W "$flags" -- "$word"))', "}", f"complete -o default -F {function} {name}"]
    return "\n".join(lines) + "\n"


def main():
    program, version, folder = sys.argv[1:]
    name = Path(program).name
    top = Help(program)
    subcommands = {command: Help(program, command) for command in top.subcommands()}
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, name + ".1").write_text(manual(name, version, top, subcommands))
    Path(folder, name).write_text(completion(name, top, subcommands))


if __name__ == "__main__":
    main()
