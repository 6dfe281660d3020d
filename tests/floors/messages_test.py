"""Checks that no room makes decisions by searching a message. Rooms pass facts as values: an enum, a struct, a field of an error,
a line of events.jsonl. A text for people is printed and never read back."""
import pathlib
import re
import unittest

SOURCE = pathlib.Path(__file__).parent.parent.parent
ROOMS = ("runtime/program/launch", "runtime/program/report", "runtime/program/run", "runtime/program/watch", "tools/meshtrain")
SEARCH = re.compile(r"""(?:\.|->)(?:r?find|find_(?:first|last)_(?:not_)?of|starts_with|ends_with|substr)\(""")
# Entries of maps, JSON objects, recorded collectives and known keys.
LOOK_UP = re.compile(r"\b(?:activity|before|data|event|files|group|k[A-Z]\w+|keys|object|series_|sums)\.find\((?!')")

# Files that take apart a text that is not a message, and what this text is.
READ = {
    "runtime/program/launch/threads.cpp": "a list of cores; digits of a number",
    "runtime/program/report/checkpoint_list.cpp": "names of folders",
    "runtime/program/report/ledger.cpp": "goodput.jsonl, whose texts are cut",
    "runtime/program/report/line_follower.cpp": "lines of a file",
    "runtime/program/report/log_warnings.cpp": "time and level of a line of console.log",
    "runtime/program/report/metrics_reader.cpp": "paths of keys in metrics.jsonl",
    "runtime/program/report/page_server.cpp": "the header Host",
    "runtime/program/report/report_json.cpp": "paths of keys in metrics.jsonl",
    "runtime/program/report/run_events.cpp": "events.jsonl, whose texts are cut",
    "runtime/program/report/run_record.cpp": "paths of keys in the recipe",
    "runtime/program/report/summary.cpp": "blanks at the end of a line of its own",
    "runtime/program/run/resume.cpp": "keys of data files",
    "runtime/program/run/run_files.cpp": "a text of its own format, which hosts exchange",
    "runtime/program/watch/board.cpp": "/proc/PID/stat",
    "runtime/program/watch/flight_files.cpp": "names of files",
    "tools/meshtrain/data.cpp": "a separator; arguments",
    "tools/meshtrain/evaluate.cpp": "the steps of --checkpoints",
    "tools/meshtrain/foreign_options.cpp": "names of options and keys",
    "tools/meshtrain/generate_request.cpp": "the end of a prompt",
    "tools/meshtrain/main.cpp": "arguments",
    "tools/meshtrain/verify.cpp": "the value of an option",
}


def searches(text):
    """Returns the lines that search a text."""
    return [line.strip() for line in text.splitlines() if SEARCH.search(LOOK_UP.sub("", line.split("//")[0]))]


class Messages(unittest.TestCase):
    def test_are_not_searched(self):
        found = {path.relative_to(SOURCE).as_posix(): lines for room in ROOMS for path in (SOURCE / room).rglob("*")
                 if path.suffix in (".h", ".cpp") and (lines := searches(path.read_text()))}
        for file, lines in found.items():
            self.assertTrue(file in READ, f"{file} searches a text: {lines}. If other code wrote it for people, pass a "
                                          "value; if it is not a message, add it to READ")
        self.assertEqual(READ.keys() - found.keys(), set(), "these files search no text: remove them from READ")

    def test_a_search_is_seen(self):
        for line in ('if (error.what().find("the reading of") == 0)', "if (what.rfind(\"rank \", 0) == 0)",
                     'if (line.starts_with("warning: "))', 'text.substr(0, text.find(": "))',
                     'message->find_first_of(": ")'):
            self.assertEqual(searches(line), [line])
        for line in ('const auto found = object.find("seconds");', "std::find(steps.begin(), steps.end(), step)",
                     "keys.find(here) != nullptr", "// text.find(it)"):
            self.assertEqual(searches(line), [])


if __name__ == "__main__":
    unittest.main()
