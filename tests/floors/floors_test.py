"""Every include of the program points down the floors, and tools/check_floors reports each kind that does not."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).parent.parent.parent
FLOORS = pathlib.Path(os.environ["MESHTRAIN_FLOORS"])


def run(floors, root):
    return subprocess.run([sys.executable, SOURCE / "tools/check_floors", floors, root], capture_output=True, text=True)


class Floors(unittest.TestCase):
    def test_of_the_program(self):
        result = run(FLOORS, SOURCE)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def complaint(self, files, floors="low runtime/low TRUE \nhigh runtime/high FALSE low\n"):
        """Returns the output for a repository of these files."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "floors.txt").write_text(floors)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            result = run(root / "floors.txt", root)
        self.assertEqual(result.returncode, 1 if "every include" not in result.stdout else 0, result.stderr)
        return result.stdout

    def test_an_include_that_points_down(self):
        self.assertIn("every include points down", self.complaint(
            {"runtime/low/a.h": "#include <vector>\n", "runtime/high/b.cpp": '#include "runtime/low/a.h"\n'}))

    def test_an_include_that_points_up(self):
        self.assertIn("runtime/low/a.h: includes runtime/high/b.h of high, on which low does not depend", self.complaint(
            {"runtime/low/a.h": '#include "runtime/high/b.h"\n', "runtime/high/b.h": ""}))

    def test_floors_in_a_circle(self):
        self.assertIn("floors high and low depend on each other", self.complaint(
            {}, "low runtime/low FALSE high\nhigh runtime/high FALSE low\n"))

    def test_a_room_without_a_target(self):
        self.assertIn("runtime/new/a.h: belongs to no floor", self.complaint({"runtime/new/a.h": ""}))

    def test_a_file_that_does_not_exist(self):
        self.assertIn("includes runtime/low/gone.h, which does not exist", self.complaint(
            {"runtime/low/a.h": '#include "runtime/low/gone.h"\n'}))

    def test_libtorch_where_there_is_none(self):
        self.assertIn("low is built without LibTorch", self.complaint({"runtime/low/a.h": "#include <ATen/ATen.h>\n"}))
        self.assertIn("low is built without LibTorch, but depends on high", self.complaint(
            {}, "low runtime/low TRUE high\nhigh runtime/high FALSE \n"))

    def test_a_floor_within_the_folder_of_another(self):
        floors = "base mesh/base TRUE \nmesh mesh FALSE base\n"
        self.assertIn("every include points down", self.complaint(
            {"mesh/base/a.h": "", "mesh/b.cpp": '#include "mesh/base/a.h"\n'}, floors))
        self.assertIn("mesh/base/a.h: includes mesh/b.h of mesh, on which base does not depend", self.complaint(
            {"mesh/base/a.h": '#include "mesh/b.h"\n', "mesh/b.h": ""}, floors))

    def test_a_floor_that_depends_on_a_higher_layer_or_a_sibling(self):
        self.assertIn("trainer depends on telemetry, whose folder runtime/program/telemetry is not below", self.complaint(
            {}, "trainer runtime/training/trainer FALSE telemetry\ntelemetry runtime/program/telemetry TRUE \n"))
        self.assertIn("fsdp depends on tensor_parallel, whose folder tensor_parallel is not below its own", self.complaint(
            {}, "fsdp fsdp FALSE tensor_parallel\ntensor_parallel tensor_parallel FALSE \n"))

    def test_a_recipe_below_its_floor(self):
        floors = ("trainer runtime/training/trainer FALSE \nyaml runtime/program/yaml TRUE \n"
                  "launch runtime/program/launch FALSE \nrecipe runtime/program/recipe FALSE trainer,launch,yaml\n")
        recipe = {"runtime/program/recipe/recipe.h": "struct TrainRecipe {\n  int steps;\n};\n",
                  "runtime/program/yaml/value.h": "class YamlValue {};\n"}
        self.assertIn("recipe.h of recipe, on which trainer does not depend", self.complaint(
            recipe | {"runtime/training/trainer/a.h": '#include "runtime/program/recipe/recipe.h"\n'}, floors))
        for file, floor in (("runtime/training/trainer/a.h", "trainer"), ("runtime/program/launch/a.h", "launch")):
            self.assertIn(f"{file}: names TrainRecipe of a floor above {floor}", self.complaint(
                recipe | {file: "struct TrainRecipe;\nvoid train(const TrainRecipe& recipe);\n"}, floors))
            self.assertIn(f"{file}: names YamlValue of a floor above {floor}", self.complaint(
                recipe | {file: "void read(const YamlValue& value);\n"}, floors))
            self.assertIn("every include points down", self.complaint(
                recipe | {file: "int steps = 0;  // TrainRecipe\n"}, floors))

    def test_headers_in_a_circle(self):
        self.assertIn("include each other: runtime/low/a.h, runtime/low/b.h", self.complaint(
            {"runtime/low/a.h": '#include "runtime/low/b.h"\n', "runtime/low/b.h": '#include "runtime/low/a.h"\n'}))

    def test_backends_that_include_each_other(self):
        self.assertIn("include each other: mesh/backends/a, mesh/backends/b", self.complaint(
            {"mesh/backends/a.h": "", "mesh/backends/a.cpp": '#include "mesh/backends/b.h"\n',
             "mesh/backends/b.h": "", "mesh/backends/b.cpp": '#include "mesh/backends/a.h"\n'}, "mesh mesh FALSE \n"))


if __name__ == "__main__":
    unittest.main()
