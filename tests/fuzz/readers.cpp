#include "tests/fuzz/readers.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/program/convert/export_checkpoint.h"
#include "runtime/program/convert/import_checkpoint.h"
#include "runtime/program/generate/chat_prompts.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/report/report_json.h"
#include "runtime/program/report/summary.h"
#include "runtime/text/prepare/prepare.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/checkpoint/inspect.h"
#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/checkpoint/manifest_writer.h"
#include "runtime/training/data/dataset.h"
#include "runtime/training/data/file_kind.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/safetensors/writer.h"
#include "tests/support/files.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

fs::path source(const std::string& name) {
  return source_folder() + "/tests/" + name;
}

std::string damaged_text(const std::string& file, Mutator& mutator) {
  return mutator.text(file);
}

std::string damaged_bytes(const std::string& file, Mutator& mutator) {
  return mutator.bytes(file);
}

// ---- safetensors

/// Damages mostly the header, and mostly keeps its length right.
std::string damaged_safetensors(const std::string& file, Mutator& mutator) {
  if (mutator.once_in(4)) return mutator.bytes(file);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::string data = file.substr(8 + length);
  if (mutator.once_in(4)) data = mutator.bytes(data);
  const std::string header = mutator.text(file.substr(8, length));
  length = header.size() + (mutator.once_in(16) ? mutator.below(9) : 0);
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

double total(const at::Tensor& values) {
  if (values.numel() == 0 || values.is_complex()) return 0;
  return values.to(at::kDouble).sum().item<double>();
}

/// Reads every tensor, complete and in part.
template <class Source>
void read_tensors(const Source& file, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const TensorEntry& entry = file.entry(name);
    total(file.read(name));
    Box box{std::vector<int64_t>(entry.shape.size(), 0), entry.shape};
    for (size_t dim = 0; dim < entry.shape.size(); ++dim) {
      box.start[dim] = entry.shape[dim] / 2;
      box.size[dim] = entry.shape[dim] - box.start[dim];
    }
    total(file.read(name, box));
  }
}

std::vector<std::string> names_of(const SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const TensorEntry& entry : file.entries()) names.push_back(entry.name);
  return names;
}

std::string written(const fs::path& file, const std::vector<TensorEntry>& entries) {
  SafetensorsWriter writer(file, entries);
  for (const TensorEntry& entry : entries) writer.write(entry.name, at::ones(entry.shape));
  writer.finish();
  return content(file);
}

FuzzedReader safetensors(const fs::path& folder) {
  const std::vector<std::string> corpus = {
      written(folder / "a", {{"model.norm.weight", at::kFloat, {4}}, {"lm_head.weight", at::kBFloat16, {3, 5}}}),
      written(folder / "b", {{"scalar", at::kDouble, {}}, {"none", at::kHalf, {0, 7}}, {"many", at::kByte, {2, 1, 3}}}),
      written(folder / "c", {})};
  return {corpus, "model.safetensors", damaged_safetensors,
          [](const fs::path& at) {
            const SafetensorsFile file(at / "model.safetensors");
            read_tensors(file, names_of(file));
            file.header();
            const SafetensorsFolder full(at);
            read_tensors(full, full.names());
          },
          2000};
}

FuzzedReader safetensors_index(const fs::path& folder) {
  written(folder / "model-00001-of-00002.safetensors", {{"a.weight", at::kFloat, {4}}, {"b.weight", at::kFloat, {2}}});
  written(folder / "model-00002-of-00002.safetensors", {{"c.weight", at::kFloat, {4}}});
  const std::string index = R"({"metadata": {"total_size": 40}, "weight_map": {
  "a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00001-of-00002.safetensors",
  "c.weight": "model-00002-of-00002.safetensors"}})";
  return {{index},
          "model.safetensors.index.json",
          damaged_text,
          [](const fs::path& at) {
            const SafetensorsFolder file(at);
            read_tensors(file, file.names());
          },
          1000};
}

FuzzedReader config_json(const fs::path&) {
  std::vector<std::string> corpus;
  for (const char* name : {"llama", "llama3_rope", "llama_linear", "llama_yarn", "llama_bias", "mistral", "qwen2",
                           "qwen3", "smollm3", "granite", "phi3", "gemma2", "gemma3", "olmo3"}) {
    corpus.push_back(content(source("fixtures") / name / "config.json"));
  }
  return {corpus, "config.json", damaged_text,
          [](const fs::path& at) {
            const ModelShape shape = read_config_json(at / "config.json");
            CarriedOver carried = carried_over(at, shape);
            if (carried.model != at) throw std::logic_error("not carried over: " + carried.left_out);
            write_config_json(shape, "float32", further_keys(carried));
          },
          3000};
}

// ---- checkpoints

/// Damages a manifest and mostly corrects its checksum: the protected content must be checked too.
std::string damaged_manifest(const std::string& file, Mutator& mutator) {
  if (mutator.once_in(8)) return mutator.text(file);
  const std::string text = mutator.text(file.substr(0, file.rfind(",\n \"xxh3\"")));
  return text + ",\n \"xxh3\": \"" + checksum_text(checksum(text.data(), text.size())) + "\"\n}\n";
}

Recipe small_recipe() {
  Recipe recipe;
  recipe.name = "small";
  recipe.data.tokens = "/tokens.bin";
  recipe.train.sequence_length = 8;
  recipe.train.global_batch = 1;
  recipe.train.steps = 1;
  recipe.optimizer.learning_rate = 1;
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 4;
  shape.intermediate_size = 6;
  shape.num_hidden_layers = 1;
  shape.num_attention_heads = shape.num_key_value_heads = 2;
  shape.head_dim = 2;
  shape.vocab_size = 5;
  shape.max_position_embeddings = 8;
  shape.tie_word_embeddings = true;
  return recipe;
}

/// Writes a checkpoint of step 0 in `folder`. Returns its folder.
fs::path small_checkpoint(const fs::path& folder) {
  const Recipe recipe = small_recipe();
  const std::vector<TensorEntry> tensors = declared_tensors(recipe.model.shape, at::kFloat);
  {
    FolderWriter writer(folder / "hf", recipe.model.shape, {}, tensors);
    for (const TensorEntry& tensor : tensors) writer.write(tensor.name, at::ones(tensor.shape));
    writer.finish();
  }
  const fs::path made = import_checkpoint(folder / "hf", recipe, folder / "run").folder;
  for (const char* name : {"manifest.json", "rank-00000.safetensors"}) fs::rename(made / name, folder / name);
  return folder;
}

std::string manifest_of_two_ranks() {
  const TrainingState state = {
      12, 96, 11, 1, TrainingState::LossScale{1024, 5}, TrainingState::RecentSteps{{3.5, 3.25}, {1, 0.5}}};
  CheckpointHead head{state, "name: x\n", "dp=2,cp=1,tp=1", {}};
  head.data["data.tokens"] = {100, 0xabcdef};
  ManifestPart first({"rank-00000.safetensors", 7}), second({"rank-00001.safetensors", 8});
  first.add("model.norm.weight", at::kFloat, {8}, {{0}, {8}}, 3);
  for (const char* name : {"model.x", "model.x.exp_avg"}) {
    first.add(name, at::kFloat, {4, 3}, {{0, 0}, {2, 3}}, 1);
    first.add(name, at::kFloat, {4, 3}, {{2, 0}, {1, 1}}, 2);
    second.add(name, at::kFloat, {4, 3}, {{2, 1}, {1, 2}}, 4);
    second.add(name, at::kFloat, {4, 3}, {{3, 0}, {1, 3}}, 5);
  }
  return manifest_text(head, {first.packed(), second.packed()});
}

FuzzedReader manifest(const fs::path&) {
  return {{manifest_of_two_ranks()},
          "manifest.json",
          damaged_manifest,
          [](const fs::path& at) {
            inspect_checkpoint(at, /*pieces=*/true);
            verify_checkpoint(at);  // its files do not exist
          },
          3000};
}

void export_and_verify(const fs::path& at) {
  verify_checkpoint(at);
  fs::remove_all(at / "out");
  export_checkpoint(at, at / "out", {});
}

FuzzedReader checkpoint(const fs::path& folder) {
  const std::string full = content(small_checkpoint(folder) / "manifest.json");
  return {{full}, "manifest.json", damaged_manifest, export_and_verify, 400};
}

FuzzedReader checkpoint_file(const fs::path& folder) {
  const std::string full = content(small_checkpoint(folder) / "rank-00000.safetensors");
  return {{full}, "rank-00000.safetensors", damaged_safetensors, export_and_verify, 400};
}

FuzzedReader recipe(const fs::path&) {
  return {{to_yaml(small_recipe())},
          "recipe.yaml",
          damaged_text,
          [](const fs::path& at) {
            const std::string text = content(at / "recipe.yaml");
            const Recipe recipe = parse_recipe(text);
            to_yaml(recipe);
          },
          1000};
}

// ---- tokenizers

const std::string kText =
    "It's 12 <mask> caf\u00e9\r\n\t  x3.14 <|endoftext|>\u4e2d\u6587 \U0001F600 def f(x):\n    return x\xff\xc3(";

void use(const Tokenizer& tokenizer) {
  for (const bool special : {false, true}) {
    const std::vector<int64_t> ids = tokenizer.ids(kText, special);
    tokenizer.decode(ids, special);
  }
  tokenizer.decode({-1, 0, 1, 255, 256, int64_t{1} << 31, int64_t{1} << 62});
  if (tokenizer.vocabulary_size() < 0) throw std::logic_error("a negative vocabulary");
  tokenizer.token_id("a");
  tokenizer.special_tokens();
}

/// Removes the last entries of the vocabulary and of the merges: the file is then read faster.
std::string shortened(const std::string& text, size_t merges) {
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(text);
  auto& list = document["model"]["merges"];
  if (list.size() > merges) list.erase(list.begin() + static_cast<std::ptrdiff_t>(merges), list.end());
  return document.dump();
}

FuzzedReader tokenizer_json(const fs::path&) {
  std::vector<std::string> corpus;
  for (const char* name : {"gpt2", "llama3", "smollm2", "qwen", "flags", "merged"}) {
    corpus.push_back(shortened(content(source("tokenizer/fixtures") / name / "tokenizer.json"), 100));
  }
  return {corpus, "tokenizer.json", [](const std::string& file, Mutator& mutator) { return mutator.text(file, 2500); },
          [](const fs::path& at) { use(*load_tokenizer(at)); }, 600};
}

FuzzedReader tokenizer_config(const fs::path& folder) {
  const fs::path fixture = source("tokenizer/fixtures/llama3");
  write_file(folder / "tokenizer.json", content(fixture / "tokenizer.json"));
  write_file(folder / "config.json", R"({"bos_token_id": 1, "eos_token_id": [2]})");
  return {{content(fixture / "tokenizer_config.json")},
          "tokenizer_config.json",
          damaged_text,
          [](const fs::path& at) { use(*load_tokenizer(at)); },
          100};
}

FuzzedReader sentencepiece(const fs::path&) {
  return {{content(source("tokenizer/fixtures/sentencepiece/tokenizer.model"))},
          "tokenizer.model",
          [](const std::string& file, Mutator& mutator) {
            return mutator.once_in(4) ? mutator.bytes(file) : mutator.in_place(file);
          },
          [](const fs::path& at) { use(*load_tokenizer(at)); },
          1500};
}

// ---- token files

/// Reads every sample twice.
void read_samples(const DataOptions& recipe) {
  const Dataset dataset(recipe, 16, 256, 1);
  std::vector<int64_t> inputs(16), labels(16);
  for (int64_t g = 0; g < 2 * dataset.num_samples(); ++g) dataset.read(g, inputs.data(), labels.data());
}

void read_as(const fs::path& folder, const std::string& dtype) {
  std::ostringstream text;
  inspect_tokens(text, folder / "tokens.bin", dtype, 8, 3, nullptr, 3);
  DataOptions recipe;
  recipe.tokens = folder / "tokens.bin";
  recipe.dtype = dtype;
  for (const SampleLayout layout : {SampleLayout::Stream, SampleLayout::Records}) {
    recipe.layout = layout;
    read_samples(recipe);
  }
  recipe.shuffle = true;
  if (dtype == "uint16") recipe.loss_mask = folder / "mask.bin";
  read_samples(recipe);
}

FuzzedReader token_file(const fs::path& folder) {
  write_file(folder / "mask.bin", std::string(34, '\1'));
  std::string ids;
  for (int i = 0; i < 34; ++i) ids += {static_cast<char>(i), '\0'};
  return {{std::string(68, '\0'), ids},
          "tokens.bin",
          damaged_bytes,
          [](const fs::path& at) {
            for (const char* other : {"uint8", "uint32"}) {
              try {
                read_as(at, other);
              } catch (const InputError&) {  // a dtype in which it was not written
              }
            }
            read_as(at, "uint16");
          },
          1000};
}

// ---- conversations

FuzzedReader chat_prompts(const fs::path& folder) {
  write_file(folder / "t.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}{{ tools }}");
  const std::string turns = R"([{"role": "user", "content": "q, ] \" }"}, {"role": "assistant", "content": "a"}])";
  return {{R"({"messages": )" + turns + R"(, "tools": [1]})",
           "[" + turns + ",\n {\"prompt\": " + turns + R"(}, "text", {"tokens": [1, 2]}, {"prompt": "text"},)" +
               R"({"conversations": [{"from": "human", "value": "h"}]}])"},
          "chats.json",
          damaged_text,
          [](const fs::path& at) {
            const auto bytes = load_tokenizer("bytes");
            const ChatTemplate chat("bytes", at / "t.jinja");
            const ChatPromptOptions options{.continues_assistant = true};
            kind_of_no_tokens(at / "chats.json", "uint16");
            for (const Prompt& prompt : read_chat_prompts(at / "chats.json", options)) {
              render_prompt(prompt, chat, *bytes, options);
            }
          },
          1000};
}

// ---- run directories

/// Reads a run directory with a report's reader, which never refuses a file: its problems are errors here, so that
/// damage that nobody noticed is seen in the counts.
void report_run(const fs::path& at) {
  RunReader reader(at);
  reader.refresh();
  reader.refresh();
  report_json({&reader.record()});
  summary_text({&reader.record(), &reader.record()});
  if (!reader.record().problems.empty()) throw InputError(reader.record().problems.front());
}

FuzzedReader metrics_lines(const fs::path& folder) {
  write_file(folder / "decisions.yaml", "mesh:\n  dp: 2\n  cp: 1\n  tp: 2\n");
  std::string lines;
  for (int step = 1; step <= 12; ++step) {
    const std::string n = std::to_string(step);
    lines += "{\"step\":" + n + ",\"loss\":2.5,\"grad_norm\":null,\"tokens\":" + n +
             "000,\"step_seconds\":0.5,\"mfu\":0.3,\"memory\":" +
             "{\"host_peak_bytes\":1048576,\"host_peak_rank\":1},\"seconds\":{\"data\":0.1,\"collectives\":{\"dp\":" +
             "{\"total\":0.2,\"exposed\":0.1}}},\"bytes\":{\"dp\":4096},\"skipped\":true,\"non_finite\":\"a.b\",\"eval_"
             "loss\":3}\n";
  }
  return {{lines}, "metrics.jsonl", damaged_text, report_run, 1500};
}

FuzzedReader run_log(const fs::path& folder) {
  write_file(folder / "hosts.json", "{\"hosts\":3}");  // a problem in every case: lines of a log are never refused
  write_file(folder / "metrics.jsonl", "");
  return {{""},
          "console.log",
          [](const std::string&, Mutator& mutator) {
            return mutator.text(
                "2026-03-01 10:00:00.000 info: mine: 3,213,568 parameters, mesh dp=2,cp=1,tp=2, fp32\n"
                "2026-03-01 10:01:00.500+01:00 warning: rank 1 holds up 3 ranks\n"
                "2026-03-01 11:00:03.000 info: warning: of an earlier version\n"
                "2026-03-01 11:00:04.000 error: rank 1 is gone\n");
          },
          report_run,
          1000};
}

FuzzedReader events(const fs::path& folder) {
  write_file(folder / "metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  return {
      {R"({"time":1,"event":"started","mesh":{"dp":2,"tp":2},"ranks":4,"hosts":["a"],"step":0,"steps":20,"parameters":64,"trained_parameters":32})"
       "\n"
       R"({"time":2,"event":"checkpoint","step":4,"folder":"checkpoints/step-00000004","seconds":1.5})"
       "\n"
       R"({"time":3,"event":"rank_failed","cause":"killed","rank":3,"coordinate":{"dp":1,"tp":1},"phase":{"kind":"step","text":"step 5"},"step":5,"message":"m"})"
       "\n"
       R"({"time":4,"event":"started","mesh":{"dp":4,"tp":1},"ranks":4,"step":4,"steps":20})"
       "\n"
       R"({"time":5,"event":"resumed","step":4,"changes":["train.steps: 20, was 10"]})"
       "\n"
       R"({"time":6,"event":"stopped","step":9,"why":"signal","signal":"SIGUSR1"})"
       "\n"},
      "events.jsonl",
      damaged_text,
      report_run,
      1000};
}

FuzzedReader goodput(const fs::path& folder) {
  write_file(folder / "metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  return {
      {R"({"start":1700000000,"end":1700000100,"ranks":8,"mesh":"dp=8","from_step":1,"to_step":9,"ended":"killed","seconds":{"training":80,"lost":10}})"
       "\n"
       R"({"start":1700000150,"end":1700000250,"ranks":8,"seconds":{"start_up":10,"training":90}})"
       "\n"},
      "goodput.jsonl",
      damaged_text,
      report_run,
      1000};
}

FuzzedReader hosts(const fs::path& folder) {
  write_file(folder / "metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  write_file(folder / "decisions.yaml", "mesh:\n  dp: 2\n  cp: 1\n  tp: 2\n");
  return {{R"({"hosts":["a","a","b","b"]})"}, "hosts.json", damaged_text, report_run, 500};
}

FuzzedReader plan(const fs::path& folder) {
  write_file(folder / "metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  return {{"mesh:\n  dp: 2\n  cp: 1\n  tp: 2\nfsdp:\n  axes: [dp]\n"}, "decisions.yaml", damaged_text, report_run, 500};
}

}  // namespace

const std::vector<FuzzedReaderMaker>& fuzzed_readers() {
  static const std::vector<FuzzedReaderMaker> all = {{"safetensors", safetensors},
                                                     {"safetensors_index", safetensors_index},
                                                     {"config_json", config_json},
                                                     {"manifest", manifest},
                                                     {"checkpoint", checkpoint},
                                                     {"checkpoint_file", checkpoint_file},
                                                     {"recipe", recipe},
                                                     {"tokenizer_json", tokenizer_json},
                                                     {"tokenizer_config", tokenizer_config},
                                                     {"sentencepiece", sentencepiece},
                                                     {"token_file", token_file},
                                                     {"chat_prompts", chat_prompts},
                                                     {"metrics_lines", metrics_lines},
                                                     {"run_log", run_log},
                                                     {"events", events},
                                                     {"goodput", goodput},
                                                     {"hosts", hosts},
                                                     {"plan", plan}};
  return all;
}

}  // namespace meshtrain::testing
