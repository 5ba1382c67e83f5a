"""What no compiler of the tests says of the sources."""

import pathlib
import re
import unittest

import shell

ROOT = pathlib.Path(__file__).resolve().parents[2]

NO_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'""",
                     re.DOTALL)
CONDITIONAL = re.compile(r"(?<!auto)&&|\|\||\?")
BRACKETS = re.compile(r"\([^()]*\)|\[[^][]*\]|\{[^{}]*\}")


def code(source: str) -> str:
    """The source without comments and texts; every character stays at its place."""
    return NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def begin(text: str, end: int) -> int:
    """The place of the bracket around what ends at `end`, or of the end of the statement before it."""
    depth = 0
    for at in range(end - 1, -1, -1):
        if text[at] in ")]}":
            ends_block = text[at] == "}" and not re.match(r"\s*[:?,.)&|]", text[at + 1:at + 200])
            if depth == 0 and ends_block:
                return at
            depth += 1
        elif text[at] in "([{;" and depth == 0:
            return at
        elif text[at] in "([{":
            depth -= 1
    return -1


def outermost(text: str) -> str:
    """The text without what is in brackets."""
    while (rest := BRACKETS.sub(" ", text)) != text:
        text = rest
    return text


def after_bracket(text: str, at: int) -> str:
    """What follows the bracket that is opened at `at`."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[end + 1:end + 200].lstrip()
    return ""


def is_awaited_always(text: str, at: int) -> bool:
    """Whether GCC 14 awaits what is awaited at `at` although what stands before it decides whether to."""
    conditional = False
    while True:
        opened = begin(text, at)
        before = outermost(text[opened + 1:at])
        bracket = text[opened] if opened >= 0 else ";"
        if bracket == ";" and (around := begin(text, opened)) >= 0 and text[around] == "(":  # if (...; here), for
            opened, bracket = around, "("
        if bracket in ";{}":
            conditional |= bool(CONDITIONAL.search(before))
            return conditional and not re.match(r"\s*(const )?(auto|bool)( |&&? )\w+ =\s", before)
        conditional |= bool(CONDITIONAL.search(before.rsplit(",", 1)[-1]))
        word = re.search(r"(\w*)[\])}>]?\s*$", text[max(opened - 80, 0):opened])
        if word[1] in ("if", "constexpr"):
            return False
        is_group = bracket == "(" and (not word[0].strip() or word[1] in ("return", "co_return", "co_await"))
        if conditional and not (is_group and re.match(r"[);:?]|&&|\|\|", after_bracket(text, opened))):
            return True
        at = opened


class Coroutines(unittest.TestCase):
    """GCC 14 evaluates a co_await behind &&, || or ? whatever stands before it, where the awaited task is destroyed at
    the end of the expression: in conditions of loops and switches, in arguments, behind co_return, in assignments. It
    is right in the condition of an if, and where a variable is initialised without a conversion, which auto and bool
    tell."""

    def awaits(self, text: str) -> list[bool]:
        return [is_awaited_always(text, found.start()) for found in re.finditer(r"\bco_await\b", text)]

    def test_nothing_is_awaited_conditionally_where_gcc_awaits_it_always(self) -> None:
        files = [path for folder in ("src", "include", "tools", "tests", "examples")
                 for path in (ROOT / folder).rglob("*.[ch]pp")]
        self.assertGreater(len(files), 500)
        wrong, count = [], 0
        for path in files:
            text = code(path.read_text())
            for found in re.finditer(r"\bco_await\b", text):
                count += 1
                if is_awaited_always(text, found.start()):
                    line = text.count("\n", 0, found.start())
                    wrong.append(f"{path.relative_to(ROOT)}:{line + 1}: {path.read_text().splitlines()[line].strip()}")
        self.assertGreater(count, 500)
        self.assertEqual(wrong, [])

    def test_what_is_looked_for_is_found(self) -> None:
        for wrong in ("while (a && co_await b) {}", "for (; a || co_await b;) {}", "for (;; a && co_await b) {}",
                      "do {} while (a && co_await b);", "switch (a ? 1 : co_await b) {}",
                      "co_return a ? b : co_await c;", "co_return a && (co_await b).has_value();",
                      "use(a && co_await b);", "if (use(1, a && co_await b)) c();",
                      "const auto x = use(a ? b : co_await c);", "x |= a && co_await b;", "x = a ? co_await b : c;",
                      "Other x = a ? co_await b : c;", "X x{a && co_await b};",
                      "co_return a ? Result<>{} : co_await b;", "co_await b(a ? 1 : co_await c);",
                      "if ((a && co_await b) == c) d();"):
            self.assertIn(True, self.awaits("{ a(); " + wrong), wrong)

    def test_what_gcc_gets_right_is_not(self) -> None:
        for right in ("if (a && co_await b) c();", "if (auto x = a(); x && !co_await b(x)) c();",
                      "while (co_await a) {}", "else if (a && use(co_await b)) c();",
                      "if (!(a && co_await b)) c();", "if (a || (b && co_await c)) d();",
                      "if (a && !(x = co_await b)) c();", "while (a && b) co_await c;",
                      "if (a && b) co_return co_await c;", "const auto x = a ? co_await b : c();",
                      "bool x = a && (co_await b).ok();", "co_await b(a ? 1 : 2);", "use(a ? b : c, co_await d);",
                      "auto t = [](T&& x) -> Task<void> { co_await x; };", "for (auto&& x : co_await a) {}"):
            self.assertNotIn(True, self.awaits("{ a(); " + right), right)


class Layout(unittest.TestCase):
    """What clang-format and the layers of the modules (docs/architecture.md) leave to be looked at."""

    SOURCES = [path for folder in ("src", "include", "cuda", "tools", "tests", "examples")
               for path in sorted((ROOT / folder).rglob("*"))
               if path.suffix in (".cpp", ".hpp", ".cu", ".cuh", ".h", ".c")]

    def test_lines_have_120_columns(self):
        for path in self.SOURCES:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                self.assertLessEqual(len(line), 120, f"{path.relative_to(ROOT)}:{number}")

    def test_modules_include_what_others_offer(self):
        """A module's own headers lie in src/MODULE; other modules include those in src/MODULE/detail alone. Scenarios
        look into what they break."""
        modules = {path.name for path in (ROOT / "src").iterdir() if path.is_dir()} - {"scenarios"}
        for path in self.SOURCES:
            place = path.relative_to(ROOT).parts
            own = place[1] if place[0] == "src" else place[0]
            if place[0] not in ("src", "cuda") or own == "scenarios":
                continue
            for included in re.findall(r'#include "([^"]+)"', path.read_text()):
                module, _, rest = included.partition("/")
                if module in modules and module != own:
                    self.assertTrue(rest.startswith("detail/"), f"{path.relative_to(ROOT)} includes {included}")


class Json(unittest.TestCase):
    """nlohmann::json throws for text that is not UTF-8, unless it is told to replace it: a peer's text would end the program."""

    # Numbers of their own; a header of a checkpoint refuses such text.
    ELSEWHERE = {"src/checkpoint/header.cpp", "src/core/trace.cpp", "tools/train/trainer.cpp", "tools/cohive-train.cpp", "tools/cohive-bench.cpp",
                 "tools/cohive-bootstrap.cpp"}

    def test_whatever_peers_send_is_printed(self):
        for path in [*ROOT.glob("src/**/*.cpp"), *ROOT.glob("tools/**/*.cpp")]:
            name = str(path.relative_to(ROOT))
            if name not in self.ELSEWHERE and not name.startswith("tools/bench/"):
                with self.subTest(file=name):
                    self.assertNotIn(".dump()", code(path.read_text()))


if __name__ == "__main__":
    shell.main()
