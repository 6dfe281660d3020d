"""Checks that no two headers define a type of one name in one namespace. Where both definitions are linked
into a program one takes the other's functions without a word, such as those of a vector of the type."""
import collections
import pathlib
import re
import unittest

SOURCE = pathlib.Path(__file__).parent.parent.parent
FOLDERS = ("mesh", "tensor_parallel", "context_parallel", "expert_parallel", "fsdp", "runtime", "tools", "benchmarks")
TYPE = re.compile(r"^(?:(?:inline )?namespace ([\w:]+) \{|(?:struct|class|enum class) (\w+)[^;{]*\{)", re.MULTILINE)


def types(text):
    """Returns the types that a header defines outside of others, each with the namespaces that were opened before it."""
    opened, names = [], []
    for namespace, name in TYPE.findall(text):
        if namespace:
            opened.append(namespace)
        else:
            names.append("::".join([*opened, name]))
    return names


class Names(unittest.TestCase):
    def test_of_types_are_defined_once(self):
        files = collections.defaultdict(list)
        for path in (path for folder in FOLDERS for path in (SOURCE / folder).rglob("*.h")):
            for name in types(path.read_text()):
                files[name].append(path.relative_to(SOURCE).as_posix())
        self.assertGreater(len(files), 300)
        self.assertEqual({name: of for name, of in files.items() if len(of) > 1}, {})

    def test_of_a_definition_are_seen(self):
        self.assertEqual(types("namespace n {\nstruct A {\n  struct Inner {\n  };\n};\nclass B;\nclass C final : public A {\nenum class D { E };\n"),
                         ["n::A", "n::C", "n::D"])


if __name__ == "__main__":
    unittest.main()
