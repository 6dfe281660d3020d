"""Runs checks within a budget of time, in parallel if they allow it, and writes their results."""

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from verdicts import Failed, NotHere, complaint, ended_well

MOST_LOG_BYTES = 1 << 20  # of one file in the archive
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\r")  # mpirun is a terminal to its ranks
SETPRIV = shutil.which("setpriv")
LEAST_SECONDS = 10  # no check begins with less


class OutOfTime(Exception):
    """An error: a check did not begin, because the time of its part is over."""


@dataclass
class Check:
    name: str
    limit: float  # seconds
    run: Callable  # of a CheckRun; returns a note for the summary
    slots: int = 1  # of the machine's: one for each rank, more for a check that computes on the host
    alone: bool = False  # no other check runs meanwhile


class CheckRun:
    """A check in progress: runs programs and keeps their output."""

    def __init__(self, machine, folder, deadline, cores, stopped):
        self.machine, self.folder, self.deadline, self.cores, self.stopped = machine, folder, deadline, cores, stopped
        folder.mkdir()

    def run(self, words, ranks=1, environment=None, any_status=False):
        """Runs `words` on so many ranks and returns the output. Fails at the deadline, and when the status is not 0;
        with `any_status` returns (status, output)."""
        words = self.machine.on_ranks(ranks, [str(word) for word in words])
        log = self.folder / "log.txt"
        with open(log, "ab") as file:
            file.write(f"$ {' '.join(words)}\n".encode())
            file.flush()
            begin = file.tell()
            try:
                if SETPRIV:  # no program keeps the GPU after this one was killed
                    words = [SETPRIV, "--pdeathsig", "KILL", *words]
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                           cwd=self.folder, start_new_session=True,
                                           env=self.machine.environment_of(ranks, self.cores, environment))
            except OSError as error:
                raise Failed(f"{words[0]} does not start: {error.strerror}") from None
            ended = self._wait(process)
        output = COLOURS.sub("", log.read_bytes()[begin:].decode(errors="replace"))
        if not ended:
            raise Failed("it had not ended after its time: " + complaint(output))
        if any_status:
            return process.returncode, output
        ended_well(process.returncode, output)
        return output

    def _wait(self, process):
        try:
            while process.poll() is None:
                left = self.seconds_left()
                if left <= 0:
                    return False
                try:
                    process.wait(min(left, 0.25))
                except subprocess.TimeoutExpired:
                    pass
            return True
        finally:  # what it started ends with it: mpirun ends its ranks, if it is asked to
            for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
                try:
                    os.killpg(process.pid, number)
                    process.wait(patience)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    pass

    def seconds_left(self):
        return 0 if self.stopped.is_set() else self.deadline - time.monotonic()

    def metrics(self, run_dir):
        """Returns the complete lines of a run's metrics.jsonl."""
        file = self.folder / run_dir / "metrics.jsonl"
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


class Session:
    """Checks of some parts, and their results in a folder: summary.txt, table.md, all.tar.gz."""

    def __init__(self, machine, results, pattern="*"):
        self.machine, self.results, self.pattern = machine, results, pattern
        self.scratch = Path(tempfile.mkdtemp(prefix="gpu_check_"))
        self.num_passed = self.num_failed = self.num_not_here = 0
        self.tables = []
        self.slots_in_use, self.changed = 0, threading.Condition(threading.RLock())
        self.stopped = threading.Event()
        results.mkdir(parents=True, exist_ok=True)
        (results / "summary.txt").write_text("")
        for earlier in ("table.md", "all.tar.gz"):
            (results / earlier).unlink(missing_ok=True)

    def say(self, line):
        with self.changed:
            print(line, flush=True)
            with open(self.results / "summary.txt", "a") as file:
                file.write(line + "\n")

    def add_table(self, text):
        self.tables.append(text)
        (self.results / "table.md").write_text("\n".join(self.tables))

    def run_part(self, name, checks, budget):
        """Runs the checks of a part in so many seconds."""
        begin = time.monotonic()
        self.say(f"-- {name}, {budget:.0f} s at the most")
        threads = []
        try:
            for check in checks:
                if not fnmatch.fnmatch(check.name, self.pattern):
                    continue
                slots = self.machine.slots if check.alone else min(check.slots, self.machine.slots)
                with self.changed:
                    self.changed.wait_for(lambda: self.slots_in_use + slots <= self.machine.slots)
                    self.slots_in_use += slots
                threads.append(threading.Thread(target=self._run, args=(check, begin + budget, slots)))
                threads[-1].start()
        except BaseException:  # ended from outside: so are the programs
            self.stopped.set()
            raise
        finally:
            self._join(threads)
        if threads:
            self.say(f"-- {name} took {time.monotonic() - begin:.0f} s")

    def _join(self, threads):
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self.stopped.set()
            for thread in threads:
                thread.join()
            raise

    def _run(self, check, end, slots):
        begin, kind = time.monotonic(), "num_failed"
        try:
            if end - begin < LEAST_SECONDS:
                raise OutOfTime("the part's time is over: counts as failed")
            cores = self.machine.cores * slots // self.machine.slots
            running = CheckRun(self.machine, self.scratch / check.name, min(begin + check.limit, end), cores, self.stopped)
            verdict, note, kind = "passed", check.run(running) or "", "num_passed"
        except NotHere as reason:
            verdict, note, kind = "NOT RUN", str(reason), "num_not_here"
        except OutOfTime as reason:
            verdict, note = "NOT RUN", str(reason)
        except Exception as error:  # Failed, or a defect of the check, which is no pass
            verdict, note = "FAILED", str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
        with self.changed:
            setattr(self, kind, getattr(self, kind) + 1)
            self.say(f"{check.name:<28} {verdict:<8} {time.monotonic() - begin:5.1f} s" + (f"  {note}" if note else ""))
            self.slots_in_use -= slots
            self.changed.notify()

    def finish(self, complete=True):
        """Writes the archive and the last line; True when everything is green."""
        green = complete and self.num_failed == 0 and self.num_passed > 0
        self.say(f"{'GREEN' if green else 'RED'}: {self.num_passed} passed, {self.num_failed} failed, "
                 f"{self.num_not_here} cannot run here" + ("" if complete else "; ended from outside") +
                 ("" if self.pattern == "*" else f", of the checks that match {self.pattern}") +
                 (" (a rehearsal)" if self.machine.emulated else ""))
        self._archive()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return green

    def _archive(self):
        with tarfile.open(self.results / "all.tar.gz", "w:gz") as archive:
            for file in sorted(self.scratch.rglob("*")):
                if file.is_file() and file.suffix in (".txt", ".jsonl", ".json", ".yaml"):
                    if file.stat().st_size > MOST_LOG_BYTES:
                        file.write_bytes(file.read_bytes()[-MOST_LOG_BYTES:])
                    archive.add(file, file.relative_to(self.scratch))
            archive.add(self.results / "summary.txt", "summary.txt")
