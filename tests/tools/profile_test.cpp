// Traces of steps: what they contain, on which ranks, and what becomes of one that cannot be written.
#include <algorithm>
#include <map>
#include <set>

#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Profile : public TrainProgram {
 protected:
  std::set<std::string> traces() const {
    std::set<std::string> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(run_dir / "traces", none)) names.insert(entry.path().filename());
    return names;
  }
  json trace(const std::string& name) const { return json::parse(content(run_dir / "traces" / name)); }
  static Words settings(const std::string& mesh, const std::string& profile) {
    return {"--mesh", mesh, "--set", "train.profile=" + profile};
  }
};

struct Slice {
  std::string category, name;
  double begin = 0, end = 0;
  json arguments;
};

/// Returns the slices of each track, by its name.
std::map<std::string, std::vector<Slice>> tracks_of(const json& trace) {
  std::map<int64_t, std::string> names;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("name", "") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  std::map<std::string, std::vector<Slice>> tracks;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X" || !event.at("tid").is_number()) continue;
    const double begin = event.at("ts");
    tracks[names[event.at("tid")]].push_back({event.value("cat", ""), event.at("name"), begin,
                                              begin + event.at("dur").get<double>(), event.value("args", json())});
  }
  return tracks;
}

Slice slice_named(const std::vector<Slice>& slices, const std::string& name) {
  const auto found = std::ranges::find(slices, name, &Slice::name);
  return found != slices.end() ? *found : (ADD_FAILURE() << "no slice " << name, Slice());
}

constexpr double kRounding = 0.01;  // microseconds

/// Expects that slices lie within each other or apart, as viewers demand of a track.
void expect_nested(const std::string& track, std::vector<Slice> slices) {
  std::sort(slices.begin(), slices.end(), [](const Slice& one, const Slice& other) {
    return one.begin != other.begin ? one.begin < other.begin : one.end > other.end;
  });
  std::vector<double> ends;
  for (const Slice& slice : slices) {
    while (!ends.empty() && ends.back() <= slice.begin + kRounding) ends.pop_back();
    EXPECT_TRUE(ends.empty() || slice.end <= ends.back() + kRounding) << track << ": " << slice.name;
    ends.push_back(slice.end);
  }
}

TEST_F(Profile, HasOperatorsStepsAndATrackForEachAxis) {
  const Ending ending = train(4, settings("dp=2,tp=2", "{from: 2, steps: 2, ranks: [1, 2]}"));
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err, "") << "Kineto prints nothing";
  EXPECT_EQ(traces(), (std::set<std::string>{"rank-00001-steps-2-3.json", "rank-00002-steps-2-3.json"}));
  for (const std::string& name : traces()) {
    const auto tracks = tracks_of(trace(name));
    for (const std::string track : {"steps", "collectives dp", "collectives tp", "collectives world"}) {
      ASSERT_TRUE(tracks.contains(track)) << track;
      expect_nested(track, tracks.at(track));
    }
    const json events = trace(name).at("traceEvents");
    const auto process = std::find_if(events.begin(), events.end(),
                                      [](const json& event) { return event.value("name", "") == "process_name"; });
    ASSERT_NE(process, events.end());
    const std::string rank = process->at("args").at("name");
    EXPECT_EQ(
        rank.rfind(name.starts_with("rank-00001") ? "rank 1 (dp=0 cp=0 tp=1) on " : "rank 2 (dp=1 cp=0 tp=0) on "), 0u)
        << rank;
    std::vector<Slice> steps, operators;
    std::set<std::string> works;
    for (const Slice& slice : tracks.at("steps")) {
      if (slice.category == "step") steps.push_back(slice);
      if (slice.category == "work") works.insert(slice.name);
    }
    for (const auto& [track, slices] : tracks) {
      for (const Slice& slice : slices) {
        if (slice.category == "cpu_op") operators.push_back(slice);
      }
    }
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_EQ(steps[0].name, "step 2");
    EXPECT_EQ(steps[1].name, "step 3");
    for (const std::string work : {"reading of samples", "forward of block 0", "backward of block 0", "optimizer"}) {
      EXPECT_TRUE(works.contains(work)) << work;
    }
    // Each operator lies in a step, where both clocks agree: those of LibTorch and of the recorder.
    ASSERT_GT(operators.size(), 100u);
    for (const Slice& slice : operators) {
      EXPECT_GE(slice.begin, steps[0].begin - 500) << slice.name;
      EXPECT_LE(slice.end, steps[1].end + 500) << slice.name;
    }
    int sums = 0;
    for (const Slice& slice : tracks.at("collectives dp")) {
      if (slice.arguments.at("purpose") != "count") continue;
      ++sums;
      EXPECT_EQ(slice.name, "all_reduce count");
      EXPECT_EQ(slice.arguments.at("bytes"), 8);
      EXPECT_EQ(slice.arguments.at("ranks"), name.starts_with("rank-00001") ? "1 3" : "0 2");
    }
    EXPECT_EQ(sums, 2) << "one a step";
    for (const Slice& slice : tracks.at("collectives tp")) {
      EXPECT_GE(slice.begin, steps[0].begin);
      EXPECT_LE(slice.end, steps[1].end);
    }
  }
}

TEST_F(Profile, OfAPipelineHasActionsAndMessagesByMicroBatch) {
  Words words = settings("pp=2", "{from: 2, steps: 1, ranks: [0, 1]}");
  for (const char* set : {"model.num_hidden_layers=2", "train.global_batch=4", "train.micro_batch=2",
                          "model.tie_word_embeddings=false"}) {
    words.insert(words.end(), {"--set", set});
  }
  const Ending ending = train(2, words);
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(content(run_dir / "console.log"), "pipeline 1f1b: 2 stages with layers 0 and 1; 2 micro-batches a "));
  EXPECT_FALSE(metrics().front().at("bytes").contains("pp ends")) << "the ends share no weight";
  for (const auto& [file, block, output] : {std::tuple{"rank-00000-steps-2-2.json", "block 0", "output of stage 0"},
                                            {"rank-00001-steps-2-2.json", "block 1", "input gradient of stage 1"}}) {
    const auto tracks = tracks_of(trace(file));
    std::multiset<std::string> works;
    for (const Slice& slice : tracks.at("steps")) works.insert(slice.name);
    for (const std::string micro_batch : {"micro-batch 0, ", "micro-batch 1, "}) {
      EXPECT_EQ(works.count(micro_batch + "forward of " + block), 1u) << micro_batch;
      EXPECT_EQ(works.count(micro_batch + "backward of " + block), 1u) << micro_batch;
    }
    const bool is_first = std::string(output).starts_with("output");
    const std::string stage = is_first ? " of stage 0" : " of stage 1";
    expect_nested("steps", tracks.at("steps"));
    for (const std::string pass : {"micro-batch 1, forward", "micro-batch 1, backward"}) {
      const Slice action = slice_named(tracks.at("steps"), pass + stage);
      EXPECT_EQ(action.category, "action");
      const Slice computing = slice_named(tracks.at("steps"), pass + " of " + block);
      EXPECT_LE(action.begin, computing.begin);
      EXPECT_GE(action.end, computing.end);
      if (pass.ends_with("forward") == is_first) continue;  // it waits for nothing
      const std::string awaited = is_first ? "wait for output gradient" : "wait for input";
      const Slice waiting = slice_named(tracks.at("steps"), "micro-batch 1, " + awaited + stage);
      EXPECT_LE(action.begin, waiting.begin);
      EXPECT_LE(waiting.end, computing.begin + kRounding);
    }
    std::vector<std::string> sent, received;
    for (const Slice& slice : tracks.at(is_first ? "messages pp 0>1" : "messages pp 1>0")) sent.push_back(slice.name);
    for (const Slice& slice : tracks.at(is_first ? "messages pp 1>0" : "messages pp 0>1")) {
      received.push_back(slice.name);
      EXPECT_EQ(slice.arguments.at("purpose"), is_first ? "pp.input_gradients" : "pp.activations");
    }
    const std::string input = is_first ? "output gradient of stage 0" : "input of stage 1";
    EXPECT_EQ(sent, (Words{std::string("micro-batch 0, ") + output, std::string("micro-batch 1, ") + output}));
    EXPECT_EQ(received, (Words{"micro-batch 0, " + input, "micro-batch 1, " + input}));
    EXPECT_TRUE(works.contains("vote") || works.contains("norm and vote")) << "no micro-batch is left before it";
  }
}

TEST_F(Profile, OfAResumedRunHasTheStepsThatAreMadeAgain) {
  Words stopped = settings("dp=1", "{from: 1, steps: 3}");
  stopped.insert(stopped.end(), {"--set", "train.time_limit=1e-9"});
  ASSERT_EQ(train(1, stopped).status, 75);
  EXPECT_EQ(traces(), (std::set<std::string>{"rank-00000-steps-1-1.json"}));
  Words resumed = settings("dp=1", "{from: 1, steps: 3}");
  resumed.push_back("--resume");
  ASSERT_EQ(train(1, resumed).status, 0);
  EXPECT_EQ(traces(), (std::set<std::string>{"rank-00000-steps-1-1.json", "rank-00000-steps-2-3.json"}));
  EXPECT_TRUE(has(content(run_dir / "console.log"), "train.profile: 1 rank writes a trace of 3 steps from step 1 on"));
}

TEST_F(Profile, ThatCannotBeWrittenWarnsAndTheRunGoesOn) {
  fs::create_directories(run_dir);
  write("run/traces", "a file");
  const Ending ending = train(2, settings("dp=2", "{from: 1, steps: 1, ranks: [1]}"));
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.err, "meshtrain: warning: train.profile: rank 1 (dp=1 cp=0 tp=0) on ")) << ending.err;
  EXPECT_TRUE(has(ending.err, " cannot write its trace: ")) << ending.err;
  EXPECT_TRUE(has(content(run_dir / "console.log"), " cannot write its trace: ")) << "kept as well";
  EXPECT_EQ(metrics().size(), 4u);
}

TEST_F(Profile, OfStepsOrRanksThatDoNotExistIsRefused) {
  const std::string late = complaint(1, settings("dp=1", "{from: 3, steps: 3}"));
  EXPECT_TRUE(has(late, ": 3 steps from step 3 on would end after train.steps, 4: begin earlier, or trace fewer"))
      << late;
  const std::string absent = complaint(2, settings("dp=2", "{from: 1, ranks: [0, 2]}"));
  EXPECT_TRUE(has(absent, "train.profile.ranks: rank 2 does not exist: this mesh has ranks 0 to 1")) << absent;
  EXPECT_TRUE(has(complaint(1, settings("dp=1", "{from: -1}")), "train.profile.from"));
  EXPECT_TRUE(has(complaint(1, settings("dp=1", "{steps: 2}")), "needs train.profile.from, the first step to trace"));
}

}  // namespace
}  // namespace meshtrain::testing
