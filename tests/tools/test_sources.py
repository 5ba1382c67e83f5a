"""What no compiler of the tests says of the sources."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def closing(text: str, begin: int) -> int:
    """The place of the parenthesis that closes the one before `begin`."""
    depth = 1
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


class Coroutines(unittest.TestCase):
    """GCC 14 evaluates a co_await behind &&, || or ? whatever stands before it, in conditions of loops and behind
    co_return. It is right in an if and in an initialisation."""

    awaited = re.compile(r"(&&|\|\||\?|:(?!:)).*\bco_await\b", re.DOTALL)

    def conditions(self, text: str):
        for loop in re.finditer(r"\b(while|for)\s*\(", text):
            condition = text[loop.end():closing(text, loop.end())]
            if loop[1] == "while":
                yield loop.start(), condition
            elif condition.count(";") == 2:
                yield loop.start(), condition.split(";")[1]
        for value in re.finditer(r"\bco_return\b([^;]*);", text):
            yield value.start(), value[1]

    def test_nothing_is_awaited_conditionally_where_gcc_awaits_it_always(self) -> None:
        files = [path for folder in ("src", "include", "tools", "tests", "examples")
                 for path in (ROOT / folder).rglob("*.[ch]pp")]
        self.assertGreater(len(files), 500)
        wrong = []
        for path in files:
            text = re.sub(r"//[^\n]*", "", path.read_text())
            wrong += [f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, at) + 1}: {' '.join(condition.split())}"
                      for at, condition in self.conditions(text)
                      if re.search(r"&&|\|\||\?", condition) and self.awaited.search(condition)]
        self.assertEqual(wrong, [])

    def test_what_is_looked_for_is_found(self) -> None:
        found = [bool(self.awaited.search(condition)) for _, condition in self.conditions(
            "while (a && co_await b) {} for (;c || co_await d;) {} "
            "co_return e ? f : co_await g; while (co_await h) {}")]
        self.assertEqual(found, [True, True, False, True])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
