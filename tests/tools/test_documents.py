"""What the documents say is so: links lead somewhere, flags and metrics exist, sections that comments name are there.
Blocks of code are in test_code_blocks.py, the pages of docs/reference in test_reference.py.

Usage: test_documents.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import functools
import re
import shlex
import unittest
from pathlib import Path

import shell
from shell import programs, run

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCES = [folder for folder in ("src", "include", "tests", "tools", "benchmarks", "proto", "cuda", "examples", "cmake", "monitoring",
                                 "packaging") if (ROOT / folder).is_dir()]
TEXT = {".cpp", ".hpp", ".h", ".inc", ".cu", ".cuh", ".proto", ".py", ".sh", ".cmake", ".in", ".txt", ".yml", ".yaml",
        ".json", ".js", ".html", ".css", ".service", ".toml"}


def name_of(path):
    return str(path.relative_to(ROOT))


@functools.cache
def sources(*folders):
    """Path and text of every source file."""
    files = [ROOT / "CMakeLists.txt"]
    for folder in folders or SOURCES:
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in TEXT and path.is_file()]
    return [(path, path.read_text(errors="replace")) for path in files if path != Path(__file__).resolve()]


def lines_joined(text):
    """A comment that goes on in the next line is one line."""
    return re.sub(r"[ \t]*\n[ \t]*(?://+|#+|\*)?[ \t]*", " ", text)


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


# ---- Sections, links, names of documents

NUMBER = r"(?:\d+(?:\.\d+)*|[A-Z](?:\.\d+)?)"
REFERENCE = re.compile(rf"(?:docs/(?P<path>[\w/-]+\.md)|(?P<spec>hivemind|libp2p) wire spec),? "
                       rf"(?P<rest>(?:(?:sections?|appendix|appendices|and|to|,|{NUMBER})\s*)+)")


@functools.cache
def sections_of(path):
    """Numbers of the headings: 2.3, Appendix B as B, B.4."""
    heading = re.compile(rf"^#+ (?:Appendix )?({NUMBER})\b\.? ", flags=re.MULTILINE)
    return set(heading.findall(without_code(path.read_text())))


def slug(heading):
    text = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower())
    return text.replace(" ", "-")


@functools.cache
def anchors_of(path):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", without_code(path.read_text()), flags=re.MULTILINE)}


class References(unittest.TestCase):
    def test_every_section_that_a_comment_names_exists(self):
        found = 0
        for path, text in [*sources(), *[(path, path.read_text()) for path in DOCUMENTS]]:
            for reference in REFERENCE.finditer(lines_joined(text)):
                document = ROOT / "docs" / (reference["path"] or f"wire/{reference['spec']}.md")
                with self.subTest(file=name_of(path), reference=reference[0]):
                    self.assertTrue(document.is_file(), "no such document")
                    numbers = re.findall(NUMBER, re.sub(r"sections?|appendix|appendices|and|to", " ", reference["rest"]))
                    self.assertTrue(numbers)
                    self.assertEqual(set(numbers) - sections_of(document), set())
                found += 1
        self.assertGreater(found, 50)

    def test_every_relative_link_resolves(self):
        for path in DOCUMENTS:
            for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                with self.subTest(document=name_of(path), link=target):
                    there = (path.parent / file).resolve() if file else path
                    self.assertTrue(there.exists())
                    self.assertTrue(there.is_relative_to(ROOT))
                    if anchor and there.suffix == ".md":
                        self.assertIn(anchor, anchors_of(there))

    def test_nobody_mentions_a_document_that_is_not_there(self):
        mention = re.compile(r"(?<![\w/.])((?:docs|spec|studies)/[\w/.-]+\.(?:md|png|svg|json)|[A-Z]{5,}\.md)\b")
        for path, text in [*sources(), *[(path, path.read_text()) for path in DOCUMENTS]]:
            for name in sorted(set(mention.findall(text))):
                with self.subTest(file=name_of(path), document=name):
                    self.assertTrue((ROOT / name).is_file() or (path.parent / name).is_file())

    def test_every_document_is_in_the_index(self):
        index = (ROOT / "docs/README.md").read_text()
        linked = {(ROOT / "docs" / target.partition("#")[0]).resolve() for target in re.findall(r"\]\(([^)\s]+)\)", index)}
        self.assertEqual([name_of(path) for path in DOCUMENTS if path.name != "README.md" and path not in linked], [])

    def test_every_document_is_a_page_of_the_site(self):
        pages = set(re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
        self.assertEqual({str(path.relative_to(ROOT / "docs")) for path in DOCUMENTS if path.is_relative_to(ROOT / "docs")}, pages)


# ---- Commands

@functools.cache
def flags_of(*command):
    """Flags that a program, or a subcommand of it, names in its --help."""
    shown = run(*command, "--help")
    if "--help-all" in shown.stdout:
        shown = run(*command, "--help-all")
    assert shown.returncode == 0, shown.stderr
    return frozenset(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", shown.stdout.partition("\nExamples:")[0]))


@functools.cache
def subcommands_of(program):
    _, _, listed = run(program, "--help").stdout.partition("Subcommands:\n")
    return frozenset(re.findall(r"^  ([\w-]+)", listed, flags=re.MULTILINE))


def commands_of(line):
    """The simple commands of a line of shell, as words."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    words.whitespace_split = True
    command = []
    for word in words:
        if set(word) <= set("|&;()"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def shell_lines(text):
    for block in re.findall(r"^```sh\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        yield from block.replace("\\\n", " ").splitlines()
    for code in re.findall(r"`([^`\n]+)`", without_code(text)):
        if re.match(r"(\w+=\S* )*cohive-[a-z]+ ", code):
            yield code


class Commands(unittest.TestCase):
    def check(self, command):
        program, *words = command
        flags = flags_of(program)
        for word in words:
            if word in subcommands_of(program):
                flags |= flags_of(program, word)
        for word in words:
            name = word.partition("=")[0]
            if re.match(r"--?[A-Za-z]", word):
                self.assertIn(name.replace("_", "-"), flags)

    def test_every_flag_in_a_document_exists(self):
        checked = 0
        for path in DOCUMENTS:
            for line in shell_lines(path.read_text()):
                for command in commands_of(line):
                    while command and re.match(r"\w+=|sudo$|exec$", command[0]):
                        command = command[1:]
                    if not command:
                        continue
                    with self.subTest(document=name_of(path), line=line):
                        if command[0].startswith(("tools/", "tests/")):
                            self.assertTrue((ROOT / command[0]).is_file())
                        program = Path(command[0]).name
                        if program.startswith("cohive-") and programs(program):
                            self.check([program, *command[1:]])
                            checked += 1
        self.assertGreater(checked, 10)

    def test_every_metric_in_a_document_exists(self):
        known = "".join(text for _, text in sources("src", "include"))
        for path in DOCUMENTS:
            text = path.read_text()
            for name in sorted(set(re.findall(r"\bcohive_(?:core|p2p|rpc|dht|averaging|train)_[a-z_]+[a-z]\b(?![_(*.-])", text))):
                with self.subTest(document=name_of(path), metric=name):
                    self.assertTrue(f'"{name}' in known, "no such metric")


# ---- Sentences and code

@functools.cache
def literals():
    """What the library and its programs can print: the literals of a statement, with dots for what is put between them."""
    found = []
    for _, text in sources("src", "include", "cuda", "tools", "cmake"):
        statement, end = "", 0
        for literal in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', text):
            between = text[end:literal.start()]
            if re.search(r"[;{}]", between):
                found.append(statement)
                statement = ""
            elif between.strip():
                statement += "..."
            statement += re.sub(r"\$?\{[^}]*\}", "...", literal[1].replace('\\"', '"'))
            end = literal.end()
        found.append(statement)
    for path in sorted((ROOT / "python/cohive").glob("*.py")):
        for neighbours in re.finditer(r'(?:f?"(?:[^"\\\n]|\\.)*"\s*)+', path.read_text()):
            joined = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', neighbours[0]))
            found.append(re.sub(r"%[a-z]|\{[^}]*\}", "...", joined))
    return found


def is_printed(sentence):
    """Whether the program has the sentence, with dots for what differs from one time to the next."""
    pieces = [piece.strip() for piece in sentence.split("...") if piece.strip(" .:;,'")]
    pattern = re.compile(".*".join(re.escape(piece) for piece in pieces), flags=re.DOTALL)
    return any(pattern.search(literal) for literal in literals())


class Quotes(unittest.TestCase):
    def test_troubleshooting_quotes_what_can_be_seen(self):
        """Headings of the third level are sentences in backquotes; ' ... ' separates what several layers print."""
        text = (ROOT / "docs/troubleshooting.md").read_text()
        sentences = re.findall(r"^### `(.+)`$", text, flags=re.MULTILINE)
        self.assertGreater(len(sentences), 15)
        self.assertEqual(len(sentences), len(re.findall(r"^### ", text, flags=re.MULTILINE)))
        self.assertEqual([sentence for sentence in sentences if not is_printed(sentence)], [])

    def test_made_up_sentences_are_found_out(self):
        self.assertFalse(is_printed("the flux capacitor is not charged: ..."))
        self.assertFalse(is_printed("cannot join the flux: ..."))


if __name__ == "__main__":
    shell.main()
