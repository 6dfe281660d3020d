"""Every download of tools/fetch_3d_data.py names a commit; nothing is downloaded without one. Libraries are stubs.

  python3 tests/tools/fetch_3d_data_test.py
"""

import importlib.util
import sys
import unittest
from pathlib import Path
from unittest import mock

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "fetch_3d_data.py"
MODEL, DATASET = "HuggingFaceTB/SmolLM2-1.7B", "roneneldan/TinyStories"
LIBRARIES = ["numpy", "datasets", "transformers", "huggingface_hub"]


class Revisions(unittest.TestCase):
    def setUp(self):
        self.libraries = {name: mock.MagicMock() for name in LIBRARIES}
        patch = mock.patch.dict(sys.modules, self.libraries)
        patch.start()
        self.addCleanup(patch.stop)
        spec = importlib.util.spec_from_file_location("fetch_3d_data", SCRIPT)
        self.script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.script)

    def run_script(self, *arguments):
        with mock.patch.object(sys, "argv", ["fetch_3d_data.py", *arguments]):
            self.script.main()

    def downloads(self):
        hub, datasets, transformers = (self.libraries[name] for name in ("huggingface_hub", "datasets", "transformers"))
        return [
            (call.args[0], call.kwargs.get("revision"))
            for function in (
                hub.hf_hub_download,
                hub.snapshot_download,
                datasets.load_dataset,
                transformers.AutoTokenizer.from_pretrained,
            )
            for call in function.call_args_list
        ]

    def test_each_download_names_its_commit(self):
        model, data = "a" * 40, "b" * 40
        stubs = {"ROOT": mock.MagicMock(), "Path": mock.DEFAULT, "json": mock.DEFAULT, "tokenize": mock.DEFAULT}
        stubs["different_keys"] = mock.Mock(return_value=[])
        stubs["pack"] = mock.Mock(side_effect=SystemExit)  # all is downloaded by then
        with mock.patch.multiple(self.script, **stubs), self.assertRaises(SystemExit):
            self.run_script("--revision", f"{MODEL}={model}", "--revision", f"{DATASET}={data}")
        self.assertEqual(self.downloads(), [(MODEL, model), (MODEL, model), (DATASET, data), (MODEL, model)])

    def test_nothing_is_downloaded_without_a_commit(self):
        for revisions in ([], [f"{MODEL}=main"], [f"{MODEL}="], [f"{MODEL}={'A' * 40}"], ["another/model=" + "a" * 40]):
            arguments = [word for revision in revisions for word in ("--revision", revision)]
            with mock.patch.dict(self.script.REVISIONS, {MODEL: None}), self.assertRaises(SystemExit) as ended:
                self.run_script("--only", "weights", *arguments)
            self.assertIn("fetch_3d_data: ", str(ended.exception))
            self.assertEqual(self.downloads(), [])

    def test_commits_in_the_script_are_commits(self):
        for revision in self.script.REVISIONS.values():
            self.assertRegex(revision or "0" * 40, "^[0-9a-f]{40}$")


if __name__ == "__main__":
    unittest.main()
