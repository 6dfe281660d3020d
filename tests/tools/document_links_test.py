"""Checks that every relative link of the documents leads to a file, and every anchor to a heading. Pages that sources name in
comments and messages, such as docs/verify.md#heading, count too."""
import pathlib
import re
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MADE = {".git", "adapters", "build", "data", "models", "runs"}  # folders at the root that are not part of the project
LINK = re.compile(r"\]\(<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)")
NAMED = re.compile(r"(?<![\w/.-])docs/[\w-]+\.md(?:#[\w-]+|, \\?\"[^\"\\]+)?")  # docs/a.md, docs/a.md#b, docs/a.md, "B"
SOURCES = {".cpp", ".h", ".cu", ".py", ".cmake", ".txt", ".yaml", ".toml", ".sbatch", ".js", ""}
INVENTED = {"tests/runtime/text/prepare/prepare_test.cpp", "tests/tools/document_links_test.py"}  # pages that tests make up


def files():
    """Returns the files of the project."""
    entries = [path for path in SOURCE.iterdir() if path.name not in MADE]
    return [path for entry in entries for path in ([entry] if entry.is_file() else entry.rglob("*")) if path.is_file()]


def prose(text):
    """Returns the text of a page without its code and comments; line numbers stay."""
    blank = lambda match: "\n" * match[0].count("\n")
    text = re.sub(r"^( *)(```+|~~~+).*?^ *\2`*$", blank, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)


def anchor_of(heading):
    """Returns the anchor that GitHub makes of a heading."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # a link is its text
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text):
    """Returns the anchors of a page: those of its headings, and those that are written as HTML."""
    found, numbers = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)), {}
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", prose(text), re.MULTILINE):
        anchor = anchor_of(heading)
        number = numbers.get(anchor, 0)
        numbers[anchor] = number + 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def links(text):
    """Returns line and target of each link of a page."""
    text = re.sub(r"`[^`\n]+`", lambda code: "x" * len(code[0]), prose(text))
    return [(text.count("\n", 0, match.start()) + 1, match[1]) for match in LINK.finditer(text)]


class DocumentLinks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = files()
        cls.pages = {path: path.read_text() for path in cls.files if path.suffix == ".md"}
        cls.anchors = {path: anchors(text) for path, text in cls.pages.items()}

    def problem(self, page, target):
        """Returns what is wrong with a link of a page; empty when nothing is."""
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            return "no such file"
        if anchor and anchor not in self.anchors.get(file, ()):
            return "no such heading"
        return ""

    def test_of_pages_lead_somewhere(self):
        checked, broken = 0, []
        for page, text in self.pages.items():
            for line, target in links(text):
                if re.match(r"[a-z]+:", target):
                    continue
                checked += 1
                if problem := self.problem(page, target):
                    broken.append(f"{page.relative_to(SOURCE)}:{line}: {target}: {problem}")
        self.assertGreater(checked, 200)
        self.assertEqual(broken, [], "\n" + "\n".join(broken))

    def test_of_sources_lead_somewhere(self):
        broken, root = [], SOURCE / "README.md"
        for path in self.files:
            if path.suffix not in SOURCES or path.stat().st_size > 1 << 20 or path.relative_to(SOURCE).as_posix() in INVENTED:
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            for match in NAMED.finditer(text) if ".md" in text else ():
                page, _, title = match[0].partition(", ")
                if problem := self.problem(root, f"{page}#{anchor_of(title)}" if title else page):
                    line = text.count("\n", 0, match.start()) + 1
                    broken.append(f"{path.relative_to(SOURCE)}:{line}: {match[0]}: {problem}")
        self.assertEqual(broken, [], "\n" + "\n".join(broken))

    def test_every_page_is_reached_from_the_readme(self):
        seen, left = set(), [SOURCE / "README.md"]
        while left:
            page = left.pop()
            if page not in seen:
                seen.add(page)
                left += [file for _, target in links(self.pages[page])
                         if (file := (page.parent / target.partition("#")[0]).resolve()) in self.pages]
        lost = [path.name for path in self.pages if path.parent == SOURCE / "docs" and path not in seen]
        self.assertEqual(lost, [])

    def test_anchors_are_those_of_github(self):
        page = "# `plan`: which, and why?\n## Twice\n```\n# no heading\n```\n## Twice\n## [A link](x.md) - end_of\n"
        self.assertEqual(anchors(page), {"plan-which-and-why", "twice", "twice-1", "a-link---end_of"})
        self.assertEqual(links("`[a](b)` [c](d.md#e)\n[![f](g.png)](h)"), [(1, "d.md#e"), (2, "g.png"), (2, "h")])


if __name__ == "__main__":
    unittest.main()
