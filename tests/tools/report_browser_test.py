"""The page of `meshtrain report` in a real browser: no script error, a curve in every chart, axes, tables, a mesh, light and
dark, nothing wider than the window, values under the pointer, a range of steps. Exit status 77 where there is no chromium."""
import itertools
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["MESHTRAIN_BUILD"])
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


class Browser:
    """A headless browser, spoken to through its debugging pipe: descriptors 3 and 4, messages ended by a zero."""

    def __init__(self, profile):
        to_read, self.to = os.pipe()
        self.answers, to_write = os.pipe()
        descriptors = [os.dup(to_read), os.dup(to_write)]  # 3 and 4 may be among those that are moved

        def move():
            for number, descriptor in enumerate([os.dup(d) for d in descriptors], 3):
                os.dup2(descriptor, number)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=move, close_fds=False, start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        for descriptor in [to_read, to_write, *descriptors]:
            os.close(descriptor)
        self.numbers = itertools.count(1)
        self.rest = b""
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def message(self):
        while b"\0" not in self.rest:
            part = os.read(self.answers, 1 << 16)
            if not part:
                raise EOFError("the browser has ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        number = next(self.numbers)
        request = {"id": number, "method": method, "params": parameters}
        if hasattr(self, "session"):
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())

    def value(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def show(self, width, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def errors(self):
        """What scripts threw, what the console and the security policy complain of, and all requests but the page's."""
        said = []
        for event in self.events:
            method, details = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                said.append(json.dumps(details))
            elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                said.append(details["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not details["request"]["url"].startswith(("file:", "data:")):
                said.append("request of " + details["request"]["url"])
        return said

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.end_helpers()
        os.close(self.to)
        os.close(self.answers)

    def end_helpers(self):
        """Ends the browser's other processes, which may outlive it and write to the profile while it is removed."""
        end = time.monotonic() + 5
        while time.monotonic() < end:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            time.sleep(0.01)


def write_run(folder, steps, name="mine"):
    """A run directory with everything that a page draws: two starts, skipped steps, names that try to be markup."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(f"name: {json.dumps(name)}\ntrain:\n  steps: {steps}\n")
    (folder / "decisions.yaml").write_text("mesh:\n  dp: 2\n  cp: 2\n  tp: 2\n")
    (folder / "hosts.json").write_text(json.dumps({"hosts": ["node-a"] * 4 + [HOSTILE] * 4}))
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            seconds = 0.5 + 0.1 * math.sin(step)
            line = {"step": step, "loss": 2 + 3 * math.exp(-step / 50) if step % 40 else None, "grad_norm": 0.01 + step % 37,
                    "learning_rate": 1e-3 * min(1, step / 20), "tokens": 4096 * step, "step_seconds": seconds,
                    "tokens_per_second": 4096 / seconds, "mfu": 0.2 / seconds / 2, "flops_per_rank": 1e10 / seconds,
                    "memory": {"host_peak_bytes": 6e8, "host_peak_rank": 3},
                    "seconds": {"data": 0.01, "optimizer": 0.02, "checkpoint": 0.01, "evaluation": step % 25 == 0 and 1,
                                "collectives": {axis: {"total": 0.1, "exposed": 0.03} for axis in ("dp", "tp", "cp")}},
                    "bytes": {"dp": 1e7, "tp": 3e7, "cp": 5e6}}
            if step % 40 == 0:
                line.update(skipped=True, non_finite=HOSTILE)
            if step % 25 == 0:
                line.update(eval_loss=2.5, eval_seconds=1)
            file.write(json.dumps(line) + "\n")
    (folder / "console.log").write_text(f"2026-03-01 10:01:00.000+01:00 warning: {HOSTILE}\n")
    start = {"event": "started", "mesh": {"dp": 2, "cp": 2, "tp": 2}, "steps": steps, "parameters": 3213568,
             "trained_parameters": 3213568}
    events = [{"time": 1.7e9, "step": 0, **start},
              {"time": 1.7e9 + 40, "event": "rank_failed", "cause": "killed", "rank": 3, "step": steps // 2, "message": HOSTILE},
              {"time": 1.7e9 + 50, "step": steps // 3, **start},
              {"time": 1.7e9 + 50, "event": "resumed", "step": steps // 3,
               "changes": [f"train.long_value: {'x' * 300}, was {HOSTILE}"]},
              {"time": 1.7e9 + 99, "event": "done", "step": steps}]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "goodput.jsonl").write_text(json.dumps(
        {"start": 1.7e9, "end": 1.7e9 + 100, "seconds": {"training": 80, "checkpoint": 15, "lost": 5}}) + "\n")


# Labels of axes that lie on each other.
OVERLAPS = """charts.flatMap(c => ['.up i', '.across i, .axis'].flatMap(which => {
    const boxes = [...c.figure.querySelectorAll(which)].map(e => e.getBoundingClientRect());
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
        a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        .map(() => c.title + ' ' + which)); }))"""
CHARTS = ["Loss", "Gradient norm", "Learning rate", "Tokens per second", "MFU", "Peak memory", "Time of a step",
          "Seconds waited for collectives", "Bytes of a step"]


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        write_run(root / "one", 200)
        write_run(root / "other", 4000, HOSTILE)
        for page, runs in (("one", ["one"]), ("two", ["one", "other"])):
            subprocess.run([BUILD / "meshtrain", "report", *[root / run for run in runs], "--out", root / f"{page}.html"],
                           check=True, stdout=subprocess.DEVNULL)
        cls.root = root
        cls.browser = Browser(root / "profile")

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.folder.cleanup()

    def open(self, page, width=1400, scheme="light"):
        self.browser.show(width, scheme)
        self.browser.open((self.root / f"{page}.html").as_uri())

    def tearDown(self):
        self.assertEqual(self.browser.errors(), [])
        self.assertNotEqual(self.browser.value("document.title"), "broken")
        self.assertEqual(self.browser.value("document.images.length"), 0)

    def test_every_chart_has_its_curves(self):
        for page, num_curves in (("one", [2, 1, 1, 1, 1, 1, 8, 3, 3]), ("two", [4, 2, 2, 2, 2, 2])):
            self.open(page)
            charts = self.browser.value("""charts.map(c => [c.figure.querySelector('b').textContent,
                [...c.area.querySelectorAll('.line, .layer')].filter(p => p.getTotalLength() > 10 && p.getBBox().width > 40).length,
                c.up.children.length, c.across.children.length])""")
            self.assertEqual([chart[0] for chart in charts][:len(num_curves)], CHARTS[:len(num_curves)])
            self.assertEqual([chart[1] for chart in charts][:len(num_curves)], num_curves)
            for name, _, up, across in charts:
                self.assertTrue(3 <= up <= 9 and 3 <= across <= 9, f"{name}: {up} and {across} ticks")
            drawn = "[...document.querySelectorAll('svg path')].every(p => !/NaN|inf|nan/.test(p.getAttribute('d')))"
            self.assertTrue(self.browser.value(drawn))

    def test_nothing_is_wider_than_the_window(self):
        for page in ("one", "two"):
            for width in (1400, 420, 320):
                self.open(page, width)
                self.browser.value("document.querySelectorAll('details').forEach(e => { e.open = true; })")
                self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), width, f"{page}, {width}")

    def test_tables_fit_a_window_of_1280(self):
        for page in ("one", "two"):
            self.open(page, 1280)
            self.assertEqual(self.browser.value(
                "[...document.querySelectorAll('.scroll')].filter(e => e.querySelector('table') && e.scrollWidth > e.clientWidth)"
                ".map(e => e.textContent.slice(0, 40))"), [], page)

    def test_bars_are_shares_of_their_column(self):
        self.open("one")
        bars = self.browser.value("[...document.querySelectorAll('td.shares .share')].map(e => e.style.width)")
        self.assertEqual(len(bars), 8 + 3)
        for bar in bars:
            self.assertTrue(bar.endswith("%") and 0 <= float(bar[:-1]) <= 100, bar)

    def test_runs_are_compared_in_columns(self):
        self.open("two")
        rows = self.browser.value(
            "[...document.querySelector('table').rows].map(row => [...row.cells].map(cell => cell.textContent))")
        self.assertEqual(rows[0], ["", "one", "other"])
        self.assertIn(["steps", "200 of 200", "4,000 of 4,000"], rows)
        self.assertIn("Differences", self.browser.value("document.querySelector('main').innerText"))
        self.assertEqual(self.browser.value("charts[0].curves.map(c => [c.label, c.color, c.sparse])"),
                         [["one", 0, False], ["one, held out", 0, True], ["other", 1, False], ["other, held out", 1, True]])
        self.browser.value("""report.runs.forEach(run => {
            run.series['memory.device_allocated_peak_bytes'] = run.series['memory.host_peak_bytes']; }); render(report)""")
        self.assertEqual(self.browser.value("charts.find(c => c.title === 'Peak memory').curves.map(c => c.sparse)"),
                         [False, True, False, True])  # a run has one color: its other curves are dashed

    def test_text_of_a_run_stays_text(self):
        self.open("one")
        text = self.browser.value("document.querySelector('main').textContent")
        self.assertGreaterEqual(text.count(HOSTILE), 5)  # skipped steps, a warning, a change
        self.assertEqual(self.browser.value("document.querySelectorAll('main script, main img').length"), 0)

    def test_long_tables_have_their_last_rows(self):
        self.open("one")
        self.browser.value("report.runs[0].skipped.steps = Array.from({length: 300}, (_, i) => [i, '']); render(report)")
        text = self.browser.value("document.querySelector('main').innerText")
        self.assertIn("100 earlier rows left out", text)
        self.assertEqual(text.count("no single one"), 200)
        self.assertIn("\n299\tno single one\n", text)

    def test_axes(self):
        self.open("one")
        for axis, ticks in (("linearScale(0, 10)", [0, 2, 4, 6, 8, 10]), ("linearScale(1.63, 5.51)", [1, 2, 3, 4, 5, 6]),
                            ("linearScale(-0.3, 0.7)", [-0.4, -0.2, 0, 0.2, 0.4, 0.6, 0.8]),
                            ("linearScale(0, 6e-5)", [0, 2e-5, 4e-5, 6e-5]),
                            ("linearScale(0, 600 * 2 ** 20, 'bytes')", [i * 2 ** 27 for i in range(6)]),
                            ("logScale(0.12, 31)", [0.1, 1, 10, 100]), ("logScale(1, 99)", [1, 2, 5, 10, 20, 50, 100]),
                            ("logScale(1e-12, 1)", [1e-12, 1e-9, 1e-6, 1e-3, 1]),
                            ("logScale(2e-7, 3e7)", [1e-7, 1e-4, 1e-1, 1e2, 1e5, 1e8])):
            found = self.browser.value(axis + ".ticks")
            self.assertEqual(len(found), len(ticks), f"{axis}: {found}")
            for a, b in zip(found, ticks):
                self.assertTrue(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-15), f"{axis}: {found}")
        self.assertAlmostEqual(self.browser.value("logScale(0.1, 1000).at(10)"), 0.5)
        for least, most in ((3, 3), (0, 0), (-2, -2), (1e-300, 2e-300), (-1e308, 1e308), (1e15, 1e15 + 1), (1, 1 + 1e-15)):
            num_ticks, at_least, at_most = self.browser.value(
                f"(s => [s.ticks.length, s.at({least!r}), s.at({most!r})])(linearScale({least!r}, {most!r}))")
            self.assertTrue(2 <= num_ticks <= 100, (least, most))
            if most < 1e300:
                self.assertTrue(-1e-6 <= at_least <= at_most <= 1 + 1e-6, (least, most, at_least, at_most))
        self.assertEqual(self.browser.value("stepTicks(1, 4)"), [1, 2, 3, 4])
        self.assertEqual(self.browser.value("stepTicks(1, 500)"), [100, 200, 300, 400, 500])
        self.assertEqual(self.browser.value("tickTexts([500100, 500200])"), ["500.1k", "500.2k"])

    def test_numbers_are_written_short(self):
        self.open("one")
        for number, text in (("0", "0"), ("1.23456", "1.23"), ("0.000012345", "1.23e-5"), ("7608.4", "7608"),
                             ("12345", "12.3k"), ("2048000", "2.05M"), ("null", "-"), ("700 * 2 ** 20, 'bytes'", "700 MiB"),
                             ("512, 'bytes'", "512 B"), ("0.382, 'percent'", "38.2 %"), ("0.0035, 'seconds'", "3.5 ms"),
                             ("0, 'seconds'", "0 s"), ("7265, 'seconds'", "2:01:05"), ("3.2e13, 'flops'", "32 TFLOP/s"),
                             ("1e300, 'seconds'", "1e+300 s")):
            self.assertEqual(self.browser.value(f"quantity({number})"), text, number)

    def paths(self, curves, options="{}"):
        """Returns the classes and paths of the curves of a chart over steps 0 to 3."""
        return self.browser.value(f"""(figureOf('a', '', {curves}, {options}), charts[charts.length - 1].draw([0, 3]),
            [...charts[charts.length - 1].area.querySelectorAll('g[class^=c] path')].map(p => [p.className.baseVal, p.getAttribute('d')]))""")

    def test_curves(self):
        self.open("one")
        gap = "[curveOf({width: 1, columns: [0, 1, 3], mean: [1, 2, 3], gaps: [2]}, 'a', 0)]"
        self.assertEqual(self.paths(gap), [["line", "M0.0 1000.0L333.3 500.0M1000.0 0.0"]])
        thinned = "[curveOf({width: 2, columns: [0, 1], mean: [5, 5], least: [0, 0], most: [10, 10], gaps: []}, 'a', 0)]"
        self.assertEqual(self.paths(thinned), [["band", "M166.7 0.0L833.3 0.0L833.3 1000.0L166.7 1000.0Z"],
                                               ["line", "M166.7 500.0L833.3 500.0"]])
        layers = """[{label: 'a', color: 0, x: [0, 3], y: [1, 1], low: [0, 0], high: [1, 1]},
                     {label: 'b', color: 1, x: [0, 3], y: [1, 1], low: [1, 1], high: [2, 2]}]"""
        self.assertEqual(self.paths(layers, "{stacked: true}"), [["layer", "M0.0 500.0L1000.0 500.0L1000.0 1000.0L0.0 1000.0Z"],
                                                                 ["layer", "M0.0 0.0L1000.0 0.0L1000.0 500.0L0.0 500.0Z"]])
        self.assertEqual(self.browser.value("figureOf('a', '', [undefined, {x: []}], {}).length"), 0)

    def test_values_of_any_size_are_drawn(self):
        self.open("one")
        self.browser.value("""report.runs[0].series.grad_norm.mean = report.runs[0].series.grad_norm.mean.map(
            (_, i) => [1, 1.7e308, 5e-324][i % 3]); report.runs[0].series.loss.mean.fill(-1.7e308, 0, 9); render(report)""")
        for norms in ("fill(1e308).fill(1, 0, 9)", "fill(1e-320)", "fill(null)"):
            self.browser.value(f"report.runs[0].series.grad_norm.mean.{norms}; render(report)")
            self.assertEqual(self.browser.errors(), [], norms)

    def mesh(self, axes, hosts):
        """Returns the titles of the cells and the text of a mesh's section; hosts: the index of each rank's host."""
        self.browser.value(f"""report.runs[0].mesh = {json.dumps(axes)};
            report.runs[0].hosts = {{names: ['a', {json.dumps(HOSTILE)}], of_ranks: {json.dumps(hosts)}}}; render(report)""")
        return self.browser.value("""[[...document.querySelectorAll('.mesh title')].map(e => e.textContent),
            [...document.querySelectorAll('section')].filter(e => /^Mesh/.test(e.innerText)).map(e => e.innerText).join()]""")

    def test_mesh(self):
        self.open("one")
        titles, text = self.mesh([["dp", 2], ["cp", 2], ["tp", 2]], [0] * 4 + [1] * 4)
        self.assertEqual(titles[6], "rank 6: dp=1 cp=1 tp=0, " + HOSTILE)
        self.assertIn("dp\t4 groups of 2 ranks\t4 across hosts, at most 2\n", text)
        self.assertIn("tp\t4 groups of 2 ranks\teach within a host", text)
        self.assertEqual(self.mesh([["dp", 1]], [0])[0], ["rank 0: dp=0, a"])
        self.assertIn("does not say which hosts", self.mesh([["dp", 2]], [0])[1])
        for axes, drawn in (([["dp", 512], ["cp", 4], ["tp", 8]], "4,096 ranks of 16,384 are drawn"),
                            ([["dp", 1], ["tp", 100000]], "4,096 ranks of 100,000 are drawn")):
            titles, text = self.mesh(axes, [])
            self.assertEqual(len(titles), 4096)
            self.assertIn(drawn, text)
        self.assertEqual(self.mesh([], []), [[], ""])

    def test_labels_do_not_lie_on_each_other(self):
        for width in (1400, 420):
            self.open("one", width)
            self.assertEqual(self.browser.value(OVERLAPS), [], width)

    def test_colors_can_be_told_from_the_background(self):
        def luminance(color):
            parts = [int(part) / 255 for part in color[color.index("(") + 1:-1].split(",")[:3]]
            linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
            return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))

        backgrounds = []
        for scheme in ("light", "dark"):
            self.open("one", scheme=scheme)
            back = luminance(self.browser.value("getComputedStyle(document.body).backgroundColor"))
            backgrounds.append(back)
            for name, least in [("body", 7), (".soft", 4.5)] + [(f".c{i}", 3) for i in range(8)]:
                color = luminance(self.browser.value(f"getComputedStyle(document.querySelector('{name}')).color"))
                contrast = (max(color, back) + 0.05) / (min(color, back) + 0.05)
                self.assertGreaterEqual(contrast, least, f"{name}, {scheme}")
        self.assertGreater(backgrounds[0], 0.9)
        self.assertLess(backgrounds[1], 0.05)

    def place(self, share):
        """A point in the first chart's area, at a share of its width."""
        box = self.browser.value("(b => [b.left, b.top, b.width, b.height])(charts[0].area.getBoundingClientRect())")
        return box[0] + share * box[2], box[1] + box[3] / 2

    def test_values_under_the_pointer(self):
        self.open("one")
        self.browser.mouse("mouseMoved", *self.place(0.5))
        tip = self.browser.value("document.querySelector('.tip').innerText")
        self.assertIn("step 100\n", tip)
        self.assertIn(f"training\n{2 + 3 * math.exp(-100 / 50):.4g}\n", tip)
        self.assertEqual(self.browser.value("document.querySelectorAll('.cross').length"), len(CHARTS))
        self.browser.mouse("mouseMoved", 5, 5)
        self.assertEqual(self.browser.value("document.querySelectorAll('.cross, .tip').length"), 0)

    def test_a_range_of_steps(self):
        self.open("one")
        labels = "[...charts[3].across.children].map(e => Number(e.textContent))"
        highest = "Number(charts[0].up.lastChild.textContent)"
        whole, highest_whole = self.browser.value(labels), self.browser.value(highest)
        begin, end = self.place(0.25), self.place(0.75)
        self.browser.mouse("mouseMoved", *begin)
        self.browser.mouse("mousePressed", *begin, button="left", clickCount=1)
        self.browser.mouse("mouseMoved", *end, button="left")
        self.browser.mouse("mouseReleased", *end, button="left", clickCount=1)
        shown = self.browser.value(labels)
        self.assertTrue(shown and all(50 <= step <= 151 for step in shown), shown)
        self.assertLess(self.browser.value(highest), highest_whole)  # the loss falls
        for count in (1, 2):
            self.browser.mouse("mousePressed", *end, button="left", clickCount=count)
            self.browser.mouse("mouseReleased", *end, button="left", clickCount=count)
        self.assertEqual((self.browser.value(labels), self.browser.value(highest)), (whole, highest_whole))
        self.browser.value("show([100, 160])")  # a label at the left edge, beside "step"
        self.assertEqual(self.browser.value(OVERLAPS), [])


class Watched(unittest.TestCase):
    def test_follows_the_run(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            write_run(root / "one", 100)
            server = subprocess.Popen([BUILD / "meshtrain", "report", root / "one", "--watch", "0"], stdout=subprocess.PIPE, text=True)
            browser = Browser(root / "profile")
            try:
                browser.show(1400)
                browser.open(server.stdout.readline().split()[0])
                last = "charts[1].curves[0].x.slice(-1)[0]"
                self.assertEqual(browser.value(last), 100)
                with open(root / "one" / "metrics.jsonl", "a") as file:
                    file.write('{"step":101,"loss":2,"grad_norm":1}\n')
                newer = browser.call("Runtime.evaluate", awaitPromise=True, returnByValue=True, expression=f"""new Promise(done => {{
                    const look = left => {last} === 101 || left === 0 ? done({last}) : setTimeout(look, 100, left - 1);
                    look(150); }})""")
                self.assertEqual(newer["result"]["value"], 101)
                self.assertEqual([error for error in browser.errors() if not error.startswith("request of http://127.0.0.1")], [])
            finally:
                browser.close()
                server.terminate()
                server.communicate()
            self.assertEqual(server.returncode, 0)


if __name__ == "__main__":
    if CHROMIUM is None:
        print("skipped: there is no chromium here (Debian's package chromium)")
        sys.exit(77)
    unittest.main()
