#include "tests/tools/train_program.h"
#include "tests/support/load.h"

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

namespace meshtrain::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kSoon{20};  // 5 on an idle machine

constexpr const char* kTinyRecipe = R"(model:
  family: llama
  hidden_size: 32
  intermediate_size: 48
  num_hidden_layers: 1
  num_attention_heads: 4
  num_key_value_heads: 4
  vocab_size: 64
  tie_word_embeddings: true
data:
  tokens: tokens.bin
  dtype: uint8
  layout: records
train:
  sequence_length: 16
  global_batch: 4
  steps: 4
  time_limit: 120
optimizer:
  learning_rate: 1.0e-2
)";

}  // namespace

TrainProgram::TrainProgram() {
  recipe = path("tiny.yaml");
  run_dir = path("run");
  write("tiny.yaml", kTinyRecipe);
  std::string tokens;
  for (int i = 0; i < 100 * 17; ++i) tokens += static_cast<char>(i % 50);
  write("tokens.bin", tokens);
}

TrainProgram::~TrainProgram() {
  EXPECT_TRUE(wait_until([&] { return !is_running(); }, std::chrono::seconds(5))) << "a rank was left behind";
}

std::vector<std::filesystem::path> TrainProgram::processes() const {
  std::vector<std::filesystem::path> found;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    std::ostringstream line;  // the line of a process that has the folder's name in its command
    line << std::ifstream(entry.path() / "cmdline").rdbuf();
    if (entry.path().filename() != "self" && has(line.str(), folder_.path().string() + "/")) {
      found.push_back(entry.path());
    }
  }
  return found;
}

std::vector<std::string> TrainProgram::threads() const {
  std::vector<std::string> names;
  for (const std::filesystem::path& process : processes()) {
    std::error_code gone;
    for (const auto& thread : std::filesystem::directory_iterator(process / "task", gone)) {
      std::getline(std::ifstream(thread.path() / "comm"), names.emplace_back());
    }
  }
  return names;
}

void TrainProgram::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
}

TrainProgram::Words TrainProgram::command(int ranks, const Words& arguments, const std::string& prologue) const {
  Words words = {source_folder() + "/tools/ranks", std::to_string(ranks)};
  if (!prologue.empty()) words.insert(words.end(), {"/bin/sh", "-c", prologue + "\nexec \"$0\" \"$@\""});
  words.insert(words.end(), {build_folder() + "/meshtrain", "train", recipe, "--run-dir", run_dir});
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

Ending TrainProgram::train(int ranks, const Words& arguments, const std::string& prologue) const {
  const Clock::time_point start = Clock::now();
  // Without segments in /dev/shm, which a prologue with a limit on the size of files would make impossible.
  const Words environment = prologue.empty() ? Words{} : Words{"OMPI_MCA_btl=self,tcp"};
  const Ending ending = run_program(command(ranks, arguments, prologue), environment);
  EXPECT_LT(Clock::now() - start, within(kSoon));
  return ending;
}

std::string TrainProgram::complaint(int ranks, const Words& arguments, int status, const std::string& prologue) const {
  return complaint(train(ranks, arguments, prologue), status);
}

std::string TrainProgram::complaint(const Ending& ending, int status) {
  const std::string start = "meshtrain: ";
  EXPECT_EQ(ending.status, status) << ending.err;
  EXPECT_TRUE(status != 2 || ending.out.empty()) << ending.out;
  std::istringstream lines(ending.err);  // mpirun adds lines
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(start, 0) == 0) found.push_back(line.substr(start.size()));
  }
  EXPECT_EQ(found.size(), 1u) << ending.err;
  return found.empty() ? "" : found.front();
}

std::vector<nlohmann::json> TrainProgram::metrics() const {
  return lines(run_dir / "metrics.jsonl");
}

void TrainProgram::wait_for_steps(size_t steps) const {
  EXPECT_TRUE(wait_until([&] { return metrics().size() >= steps; })) << "step " << steps << " does not come";
}

std::vector<nlohmann::json> lines(const std::filesystem::path& file) {
  std::vector<nlohmann::json> entries;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line) && !stream.eof();) entries.push_back(nlohmann::json::parse(line));
  return entries;
}

void expect_steps(const std::vector<nlohmann::json>& metrics, size_t count) {
  ASSERT_EQ(metrics.size(), count);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(metrics[i].at("step"), i + 1);
}

}  // namespace meshtrain::testing
