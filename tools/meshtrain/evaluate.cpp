#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "mesh/layout.h"
#include "runtime/program/evaluate/evaluated_model.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/recipe/check_data.h"
#include "runtime/program/watch/phase.h"
#include "runtime/text/prepare/sidecar_tokenizer.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"
#include "runtime/training/data/check_tokens.h"
#include "runtime/training/data/files_beside.h"
#include "runtime/training/data/megatron_index.h"
#include "runtime/training/data/token_sidecar.h"
#include "runtime/training/transformer/evaluation.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/computing_arguments.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

struct EvaluateArguments {
  std::vector<fs::path> models;
  fs::path adapter, base;
  std::optional<std::string> tokens, dtype, layout, ignore_id, loss_mask, documents, boundary_labels, samples,
      sequence_length, micro_batch, checkpoints;
  std::optional<int64_t> bytes;
  std::string mesh = "dp=auto";
  ComputingArguments computing;
  bool json_lines = false;
};

/// This command's options for keys of an evaluation's recipe, for messages.
const KeyNames kOptionNames = {{"parallel.mesh", "--mesh"},
                               {"evaluate.tokens", "--tokens"},
                               {"evaluate.dtype", "--dtype"},
                               {"data.dtype", "--dtype"},
                               {"evaluate.layout", "--layout"},
                               {"evaluate.ignore_id", "--ignore-id"},
                               {"evaluate.loss_mask", "--loss-mask"},
                               {"evaluate.documents", "--documents"},
                               {"evaluate.boundary_labels", "--boundary-labels"},
                               {"evaluate.samples", "--samples"},
                               {"train.sequence_length", "--sequence-length"},
                               {"train.micro_batch", "--micro-batch"}};

EvaluationRequest request_of(const EvaluateArguments& arguments) {
  EvaluationRequest request;
  const auto take = [&](const char* key, const std::optional<std::string>& value) {
    if (value) request.options.push_back({kOptionNames.at(key), key, value});
  };
  take("evaluate.tokens", arguments.tokens);
  take("evaluate.dtype", arguments.dtype);
  take("evaluate.layout", arguments.layout);
  take("evaluate.ignore_id", arguments.ignore_id);
  take("evaluate.loss_mask", arguments.loss_mask);
  const bool is_word = arguments.documents == "none" || arguments.documents == "own";
  if (!is_word) take("evaluate.documents", arguments.documents);
  request.documents = arguments.documents;
  take("evaluate.boundary_labels", arguments.boundary_labels);
  take("evaluate.samples", arguments.samples);
  take("train.sequence_length", arguments.sequence_length);
  take("train.micro_batch", arguments.micro_batch);
  request.other_tokens = arguments.tokens.has_value();
  request.precision = arguments.computing.precision;
  request.device = arguments.computing.device;
  request.offload = arguments.computing.offload;
  return request;
}

/// Returns the checkpoints of the run in `path` that --checkpoints names: all, or those of its steps.
std::vector<fs::path> checkpoints_of(const fs::path& path, const std::string& asked) {
  std::error_code ignored;
  const CheckpointFolder folder(fs::is_directory(path / "checkpoints", ignored) ? path / "checkpoints" : path);
  std::vector<fs::path> found;
  if (asked == "all") {
    for (const int64_t step : folder.steps()) found.push_back(folder.step(step));
    if (found.empty()) throw InputError("--checkpoints all: there is no checkpoint in " + folder.folder().string());
    return found;
  }
  for (size_t begin = 0; begin <= asked.size();) {
    const size_t end = std::min(asked.find(',', begin), asked.size());
    int64_t step = 0;
    const auto [last, error] = std::from_chars(asked.data() + begin, asked.data() + end, step);
    if (error != std::errc() || last != asked.data() + end || step < 0) {
      throw InputError("--checkpoints " + asked + ": give all, or steps, as in 500,1000");
    }
    found.push_back(folder.step(step));
    if (!fs::exists(found.back(), ignored)) {
      const std::string others = folder.describe_others(found.back());
      throw InputError("--checkpoints " + asked + ": there is no checkpoint of step " + std::to_string(step) + " in " +
                       folder.folder().string() + (others.empty() ? "" : ", which has those of " + others));
    }
    begin = end + 1;
  }
  return found;
}

/// Returns the folders of all models, the same on every rank: the newest checkpoint may be another one a moment later.
std::vector<std::string> find_folders(const EvaluateArguments& arguments, const Group& world) {
  std::vector<std::string> folders;
  agree(world, [&] {
    if (world.rank() != 0) return;
    for (const fs::path& path : arguments.models) {
      const bool is_run = !fs::exists(path / "config.json");
      if (arguments.checkpoints && is_run) {
        for (const fs::path& folder : checkpoints_of(path, *arguments.checkpoints)) folders.push_back(folder);
      } else {
        folders.push_back(find_model(path).string());
      }
    }
  });
  return nlohmann::json::parse(broadcast_text(world, nlohmann::json(folders).dump()));
}

/// The result for one model.
struct EvaluationResult {
  std::string folder;
  std::optional<int64_t> step;  // of a checkpoint
  std::string mesh, precision;
  std::string tokens, loss_mask;  // paths; of loss_mask empty without one
  std::optional<int64_t> documents;
  int64_t num_samples = 0, sequence_length = 0;
  EvaluationMetrics metrics;
  std::optional<double> bits_per_byte;
};

/// Returns the rule by which an evaluation treats documents: the id that ends one, "index", or "none".
nlohmann::ordered_json documents_rule(const std::optional<int64_t>& documents) {
  if (!documents) return "none";
  if (*documents == kDocumentsOfIndex) return "index";
  return *documents;
}

/// Returns a warning when the models of one command treat documents by different rules; an empty text when they do not.
std::string different_documents(const std::vector<std::string>& folders,
                                const std::vector<std::optional<int64_t>>& documents) {
  std::map<std::optional<int64_t>, std::vector<std::string>> models;
  for (size_t i = 0; i < folders.size(); ++i) models[documents[i]].push_back(folders[i]);
  if (models.size() < 2) return "";
  constexpr size_t kMostNamed = 3;
  std::string text;
  for (const auto& [rule, names] : models) {
    text += text.empty() ? "" : "; ";
    for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) text += (i == 0 ? "" : ", ") + names[i];
    if (names.size() > kMostNamed)
      text += " and " + with_separators(static_cast<int64_t>(names.size() - kMostNamed)) + " more";
    text += !rule                        ? ": attention crosses documents (none)"
            : *rule == kDocumentsOfIndex ? ": attention stays inside documents (index)"
                                         : ": attention stays inside documents (" + std::to_string(*rule) + ")";
  }
  return "these losses are not comparable, because documents are treated differently: give --documents own or "
         "--documents none for all: " +
         text;
}

void print(const EvaluationResult& found, bool json_lines) {
  const double perplexity = std::exp(found.metrics.loss);
  if (json_lines) {
    nlohmann::ordered_json line = {{"model", found.folder}};
    if (found.step) line["step"] = *found.step;
    line["loss"] = found.metrics.loss;
    line["perplexity"] = perplexity;
    line["tokens"] = found.metrics.tokens;
    line["tokens_file"] = found.tokens;
    if (!found.loss_mask.empty()) line["loss_mask"] = found.loss_mask;
    line["documents"] = documents_rule(found.documents);
    if (found.bits_per_byte) line["bits_per_byte"] = *found.bits_per_byte;
    line["samples"] = found.num_samples;
    line["sequence_length"] = found.sequence_length;
    line["mesh"] = found.mesh;
    line["precision"] = found.precision;
    line["seconds"] = found.metrics.seconds;
    std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::printf("%s: loss %.6f, perplexity %.6g, %s", found.folder.c_str(), found.metrics.loss, perplexity,
                counted(found.metrics.tokens, "token").c_str());
    if (found.bits_per_byte) std::printf(", %.6f bits per byte", *found.bits_per_byte);
    std::printf("; %.1f s\n", found.metrics.seconds);
  }
  std::fflush(stdout);
}

/// An evaluation whose recipe and data are checked.
struct EvaluationSetup {
  ModelSource source;
  Recipe recipe;
  Decisions decisions;
  std::unique_ptr<Evaluation> evaluation;
  std::string tokenizer_warning;  // a warning, or empty: compare_tokenizers()
};

/// Logs how the file is read, which parts of it are left out, and what the model was not made for. `said`: lines about
/// the file that were already logged for another model of this command.
void warn(const EvaluateArguments& arguments, const EvaluationSetup& prepared, std::set<std::string>& said) {
  const Recipe& recipe = prepared.recipe;
  const Evaluation& evaluation = *prepared.evaluation;
  const auto warn_once = [&](const std::string& line) {
    if (!line.empty() && said.insert(line).second) log_warning(line);
  };
  const auto say_once = [&](const std::string& line) {
    if (said.insert(line).second) log_info(line);
  };
  const bool crosses = arguments.documents == "none";  // on purpose
  for (const Wording& line :
       {dtype_warning(recipe.evaluate, "evaluate"),
        layout_warning(recipe.evaluate, recipe.train.sequence_length, "evaluate"),
        mask_warning(recipe.evaluate, "evaluate"), crosses ? "" : documents_warning(recipe.evaluate, "evaluate")}) {
    warn_once(line.text(kOptionNames));
  }
  warn_once(prepared.tokenizer_warning);
  // A run's recipe says whether attention stays inside documents.
  if (!prepared.source.is_checkpoint && !arguments.documents && recipe.evaluate.documents == kDocumentsOfIndex) {
    say_once("attention stays inside the documents of " + MegatronIndex::path_of(recipe.evaluate.tokens).string() +
             "; --documents none lets it cross them");
  }
  const int64_t length = recipe.train.sequence_length, positions = recipe.model.shape.max_position_embeddings;
  if (positions > 0 && length > positions) {
    log_warning("sequences of " + with_separators(length) +
                " tokens are longer than the model's max_position_embeddings " + with_separators(positions));
  }
  const int64_t labels = evaluation.num_samples() * length,
                used = labels + (recipe.evaluate.layout == SampleLayout::Stream ? 1 : evaluation.num_samples());
  if (!recipe.evaluate.samples && used < evaluation.num_tokens()) {
    const int64_t left = evaluation.num_tokens() - used;
    say_once(counted(left, "token") + " of " + recipe.evaluate.tokens.string() + " after the last sequence of " +
             with_separators(length) + (left == 1 ? " is" : " are") + " not evaluated");
  }
}

/// Returns the bytes of the text that the tokens were made of, as their sidecar says. Returns none when the sidecar
/// does not say, or when only a part of the file is evaluated or counts: the mean of a part says nothing about the
/// complete text.
std::optional<int64_t> known_bytes(const Recipe& recipe, const Evaluation& evaluation) {
  const std::optional<TokenSidecar> sidecar = read_sidecar(recipe.evaluate.tokens);
  if (!sidecar || sidecar->text_bytes.value_or(0) == 0 || !evaluation.counts_all()) return std::nullopt;
  return sidecar->text_bytes;
}

/// Returns a warning when the tokens were made with a tokenizer of the same number of ids as the model's and another
/// checksum; else an empty text. Throws InputError when the number is another.
std::string compare_tokenizers(const ModelSource& source, const fs::path& tokens) {
  const std::optional<TokenSidecar> sidecar = read_sidecar(tokens);
  const std::string tokenizer = tokenizer_of(source);
  const TokenizerMatch match = sidecar ? match_tokenizer(*sidecar, tokenizer) : TokenizerMatch::Same;
  if (match == TokenizerMatch::Same) return "";
  if (match == TokenizerMatch::OtherChecksum) {
    return tokens.string() + " was made with the tokenizer " + sidecar->tokenizer +
           ", whose checksum is not that of the model's, " + tokenizer;
  }
  throw InputError("--tokens " + tokens.string() + " was made with the tokenizer " + sidecar->tokenizer + ", as " +
                   sidecar_path(tokens).string() + " says, but the model's is " + tokenizer +
                   ", which has other ids: prepare the text with --tokenizer " + tokenizer);
}

/// Throws InputError when the model in `folder` cannot be evaluated as the arguments say. Not collective.
EvaluationSetup prepare(const std::string& folder, const EvaluateArguments& arguments, const MeshLayout& layout) {
  ModelSource source = read_model_source(folder, {arguments.adapter, arguments.base});
  Recipe recipe = recipe_to_evaluate(source, request_of(arguments));
  try {
    Decisions decisions = resolve(recipe, layout);
    check_sidecars(recipe);
    std::string tokenizer_warning = compare_tokenizers(source, recipe.evaluate.tokens);
    std::unique_ptr<Evaluation> evaluation = make_evaluation(recipe.evaluate, decisions, /*last_step=*/0);
    return {std::move(source), std::move(recipe), std::move(decisions), std::move(evaluation),
            std::move(tokenizer_warning)};
  } catch (const InputError& error) {
    throw InputError(error.text(kOptionNames));
  }
}

/// Checks all models, so that a mistake is not found after hours in which the others were evaluated, and warns
/// where their losses cannot be compared. Every rank must call it.
void check_all(const std::vector<std::string>& folders, const EvaluateArguments& arguments, const DeviceMesh& mesh) {
  if (folders.size() < 2) return;  // evaluate() checks
  std::vector<std::optional<int64_t>> documents;
  agree(mesh.world(), [&] {
    for (const std::string& folder : folders) {
      try {
        documents.push_back(prepare(folder, arguments, mesh.layout()).recipe.evaluate.documents);
      } catch (const InputError& error) {
        throw InputError(folder + ": " + error.what());
      }
    }
  });
  if (mesh.rank() != 0 || arguments.documents) return;
  const std::string warning = different_documents(folders, documents);
  if (!warning.empty()) log_warning(warning);
}

EvaluationResult evaluate(const std::string& folder, const EvaluateArguments& arguments, const PipelineMesh& pipeline,
                          at::Device device, std::set<std::string>& said) {
  const DeviceMesh& mesh = pipeline.complete();
  const Group& world = mesh.world();
  std::optional<EvaluationSetup> prepared;
  std::unique_ptr<ModelWeights> weights;
  agree(world, [&] {
    prepared.emplace(prepare(folder, arguments, mesh.layout()));
    weights = std::make_unique<ModelWeights>(prepared->source);
  });
  const auto& [source, recipe, decisions, evaluation, tokenizer_warning] = *prepared;
  if (mesh.rank() == 0) {
    for (const std::string& line : weight_warnings(source)) log_warning(line);
    warn(arguments, *prepared, said);
  }
  ModelParts model;
  {
    const Phase phase("the reading of " + folder);
    Progress progress("weights of " + folder, 0, "bytes");
    model = evaluated_model(decisions, pipeline, device, [&](const Parameter& parameter) {
      weights->read(parameter);
      progress.advance(static_cast<int64_t>(parameter.valid().nbytes()));
    });
  }
  const Phase phase("the evaluation of " + folder);
  const int64_t length = recipe.train.sequence_length;
  Progress progress("evaluation of " + folder, evaluation->num_samples() * length, "tokens");
  const auto advance = [&](int64_t samples) { progress.set(samples * length); };
  EvaluationResult found{.folder = folder,
                         .step = {},
                         .mesh = mesh.layout().describe(),
                         .precision = recipe.train.precision,
                         .tokens = recipe.evaluate.tokens,
                         .loss_mask = recipe.evaluate.loss_mask,
                         .documents = recipe.evaluate.documents,
                         .num_samples = evaluation->num_samples(),
                         .sequence_length = length,
                         .metrics = evaluation->run(model, mesh, advance, pipeline.links()),
                         .bits_per_byte = {}};
  if (source.is_checkpoint) found.step = source.step;
  if (const std::optional<int64_t> bytes = arguments.bytes ? arguments.bytes : known_bytes(recipe, *evaluation)) {
    const double tokens_per_byte = static_cast<double>(evaluation->num_tokens()) / static_cast<double>(*bytes);
    found.bits_per_byte = found.metrics.loss / std::log(2.0) * tokens_per_byte;
  }
  return found;
}

int evaluate_on_ranks(const EvaluateArguments& arguments) {
  const Group world = connect_world();
  return run_on_all_ranks(world, [&] {
    const Progress progress("evaluation");
    const MeshLayout layout = MeshLayout::fit(parse_axes(arguments.mesh), training_axes(), world.size());
    const DeviceContext device_context = connect_devices(arguments.computing, world);
    const DeviceMesh mesh(layout, device_context.world);
    const PipelineMesh pipeline(mesh, /*joins_ends=*/false);
    set_rank_name(mesh.world().coordinate_text());
    const bool first = mesh.rank() == 0;
    if (first && !device_context.fallback.empty()) log_info(device_context.fallback);
    const std::vector<std::string> folders = find_folders(arguments, world);
    check_all(folders, arguments, mesh);
    std::set<std::string> said;
    for (const std::string& folder : folders) {
      const EvaluationResult found = evaluate(folder, arguments, pipeline, device_context.device, said);
      if (first) print(found, arguments.json_lines);
    }
    return 0;
  });
}

/// Adds an option whose value is read as the key of a recipe is.
void add_key(CLI::App& command, const char* name, std::optional<std::string>& value, const char* type,
             const char* text) {
  command.add_option(name, value, text)->type_name(type);
}

void add_data_options(CLI::App& command, EvaluateArguments& arguments) {
  add_key(command, "--tokens", arguments.tokens, "FILE",
          "The tokens to evaluate on. Default: the run's evaluate.tokens");
  add_key(command, "--samples", arguments.samples, "N",
          "Number of samples to evaluate, from the first in the file on. Default: all");
  add_key(command, "--sequence-length", arguments.sequence_length, "S",
          "Tokens in a sample. Default: those of the run; required for a Hugging Face folder");
  add_key(command, "--dtype", arguments.dtype, "DTYPE",
          "uint8, uint16, uint32 or megatron. Default: the type in FILE.json, else megatron if FILE.idx exists, else "
          "the run's, else uint16");
  add_key(command, "--layout", arguments.layout, "LAYOUT",
          "records or stream. Default: the layout in FILE.json, else the run's if its own file is of the same kind, "
          "else stream");
  add_key(command, "--ignore-id", arguments.ignore_id, "ID", "Labels with this id do not count");
  add_key(command, "--loss-mask", arguments.loss_mask, "FILE",
          "A file with one byte for each token; labels whose byte is 0 do not count");
  add_key(command, "--documents", arguments.documents, "ID",
          "The token that ends a document, or index: attention stays inside documents; none: it crosses them; own: "
          "inside the documents given by the file's .json or .idx, or else by the run's data.documents. Default: own "
          "if the run keeps attention inside documents; for a Hugging Face folder index if FILE.idx exists");
  add_key(command, "--boundary-labels", arguments.boundary_labels, "WORD",
          "Whether the first token of a document counts as a label: counted or ignored");
  command
      .add_option("--bytes", arguments.bytes,
                  "Bytes of the text from which the complete file was made, for bits per byte. Default: the number in "
                  "FILE.json, if all samples and labels of the file count")
      ->check(whole_number(1))
      ->type_name("N");
}

}  // namespace

void add_evaluate_command(CLI::App& app, int& status) {
  const auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command = app.add_subcommand(
      "evaluate",
      "Computes loss, perplexity and bits per byte of Hugging Face folders and runs on held-out tokens.\n"
      "Runs on one rank or on any mesh, with the same result. Writes nothing into a run.\n\n"
      "  meshtrain evaluate runs/mine --checkpoints all --tokens data/held_out.bin --json\n"
      "  mpirun -n 4 meshtrain evaluate models/SmolLM2-1.7B --tokens data/held_out.bin --sequence-length 2048 --mesh "
      "dp=2,tp=2");
  command
      ->add_option("model", arguments->models,
                   "Hugging Face folders, checkpoints' folders, or run directories (or their folder checkpoints), of "
                   "which the newest checkpoint is taken")
      ->required()
      ->type_name("MODEL");
  command
      ->add_option(
          "--adapter", arguments->adapter,
          "A PEFT folder (adapter_config.json and adapter_model.safetensors), whose adapter is added to each model")
      ->type_name("FOLDER");
  command->add_option("--base", arguments->base, kBaseHelp)->type_name("FOLDER");
  add_data_options(*command, *arguments);
  command
      ->add_option("--checkpoints", arguments->checkpoints,
                   "Evaluates these checkpoints of each run instead of the newest: all, or the steps, as in 500,1000")
      ->type_name("all|STEPS");
  command
      ->add_option(
          "--mesh", arguments->mesh,
          "Shape of the mesh, as in pp=2,dp=2,cp=2,tp=2; an axis left out is 1. Default: dp = the number of ranks")
      ->type_name("MESH");
  add_key(*command, "--micro-batch", arguments->micro_batch, "N",
          "Samples that a dp rank computes at once. Default: the run's, else 1");
  add_computing_options(*command, arguments->computing);
  command->add_flag("--json", arguments->json_lines,
                    "A JSON object on a line for each model: model, step, loss, perplexity, tokens, tokens_file, "
                    "loss_mask, documents, bits_per_byte, samples, sequence_length, mesh, precision, seconds");
  command->callback([arguments, &status] { status = evaluate_on_ranks(*arguments); });
}

}  // namespace meshtrain
