#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "mesh/host_map.h"
#include "mesh/layout.h"
#include "runtime/program/generate/language_model.h"
#include "runtime/program/generate/model_source.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/launch/connect_devices.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/program/recipe/validate.h"
#include "runtime/program/watch/phase.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/generate_arguments.h"
#include "tools/meshtrain/generate_request.h"
#include "tools/meshtrain/generate_texts.h"
#include "tools/meshtrain/generated_output.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

int64_t num_parameters(LanguageModel& model) {
  int64_t count = 0;
  for (const Unit& unit : model.model().fsdp().units()) {
    for (const Parameter* parameter : unit.parameters()) {
      int64_t elements = 1;
      for (const int64_t extent : parameter->global_shape) elements *= extent;
      count += elements;
    }
  }
  return count;
}

/// Returns " on 4 ranks", with the bytes that each rank holds when the weights are cut or offloaded, and where.
std::string describe_ranks(LanguageModel& model, const DeviceMesh& mesh, const ComputingArguments& computing) {
  std::string text = " on " + counted(mesh.size(), "rank");
  const Fsdp& fsdp = model.model().fsdp();
  const bool elsewhere = fsdp.shard_memory().is_apart_from(device_of(fsdp.units()));
  if (model.rows().size() == 1 && !elsewhere) return text;
  int64_t bytes = 0;
  for (const Unit& unit : fsdp.units()) {
    for (const FlatBuffer& buffer : unit.buffers()) bytes += static_cast<int64_t>(buffer.shard_values().nbytes());
  }
  text += (mesh.size() == 1 ? ", with " : ", each with ") + size_text(bytes);
  if (!elsewhere) return text;
  return text + " in " + (computing.offload.to == "host" ? "host memory" : computing.offload.path.string());
}

std::unique_ptr<LanguageModel> load_model(const ModelSource& source, const ComputingArguments& computing,
                                          const DeviceMesh& mesh, at::Device device) {
  const Clock::time_point start = Clock::now();
  const Phase phase("the reading of " + source.folder.string());
  std::unique_ptr<ModelWeights> weights;
  agree(mesh.world(), [&] { weights = std::make_unique<ModelWeights>(source); });
  Progress progress("weights of " + source.folder.string(), 0, "bytes");
  const auto read = [&](const Parameter& parameter) {
    weights->read(parameter);
    progress.advance(static_cast<int64_t>(parameter.valid().nbytes()));
  };
  const std::string precision = computing.precision.value_or(source.precision);
  const LanguageModel::Options options{.dtype = dtype_of(precision),
                                       .device = device,
                                       .offload = offload_kind(computing.offload.to),
                                       .offload_folder = computing.offload.path};
  auto model = std::make_unique<LanguageModel>(source.shape, mesh, options, read);
  if (mesh.rank() == 0) {
    for (const std::string& line : weight_warnings(source)) log_warning(line);
    log_info(fmt::format("{}: {} parameters in {}{}, loaded in {:.2f} s", source.folder.string(),
                         with_separators(num_parameters(*model)), precision, describe_ranks(*model, mesh, computing),
                         std::chrono::duration<double>(Clock::now() - start).count()));
  }
  return model;
}

MeshLayout layout_of(const std::string& asked, int num_ranks) {
  MeshLayout layout = MeshLayout::fit(parse_mesh(asked), training_axes(), num_ranks);
  check_generating_mesh(layout);
  return layout;
}

/// Returns the tokenizer with which this rank searches for strings that end a text; null except on the first tp rank of
/// each row. `own`: the tokenizer of rank 0. Every rank must call it.
std::shared_ptr<const Tokenizer> searching_tokenizer(const GenerateArguments& arguments, const ModelSource& source,
                                                     const std::shared_ptr<const Tokenizer>& own,
                                                     const DeviceMesh& mesh) {
  std::shared_ptr<const Tokenizer> tokenizer = own;
  agree(mesh.world(), [&] {
    if (tokenizer || mesh.coordinate(kTensorAxis) != 0) return;
    tokenizer = tokenizer_of(arguments, source);
    if (tokenizer) return;
    throw InputError(
        "stop strings need a tokenizer, but " + host_name() +
        " has none for this model, unlike the host of rank 0: give --tokenizer a path that all hosts have");
  });
  return tokenizer;
}

void generate_all(const GenerateArguments& arguments, const Group& world) {
  const MeshLayout layout = layout_of(arguments.mesh, world.size());
  const DeviceContext device_context = connect_devices(arguments.computing, world);
  const DeviceMesh mesh(layout, device_context.world);
  set_rank_name(mesh.world().coordinate_text());
  const bool first = mesh.rank() == 0;
  if (first && !device_context.fallback.empty()) log_info(device_context.fallback);
  std::string folder;  // the newest checkpoint may be another one a moment later
  agree(world, [&] {
    if (first) folder = find_model(arguments.model).string();
  });
  folder = broadcast_text(world, folder);
  ModelSource source;
  agree(world, [&] {
    source = read_model_source(folder, {arguments.adapter, arguments.base});
    check_tensor_parallel(source.shape, mesh.size(kTensorAxis));
  });

  std::optional<GeneratedOutput> output;       // of rank 0
  std::shared_ptr<const Tokenizer> tokenizer;  // of rank 0
  GenerateRequest request;
  agree(world, [&] {
    if (!first) return;
    using Style = GeneratedOutput::Style;
    const Style style = arguments.json_lines ? Style::Json : world.size() > 1 ? Style::Complete : Style::Stream;
    const std::vector<Prompt> prompts = asked_prompts(arguments);
    tokenizer = tokenizer_of(arguments, source);
    output.emplace(prompts, tokenizer, style);
    request = make_request(arguments, prompts, source, tokenizer.get());
  });
  request = GenerateRequest::parse(broadcast_text(world, request.text()));
  if (!request.stop_strings.empty()) tokenizer = searching_tokenizer(arguments, source, tokenizer, mesh);

  const std::unique_ptr<LanguageModel> model = load_model(source, arguments.computing, mesh, device_context.device);
  generate_texts(request, source.trained_length, *model, tokenizer, mesh, output ? &*output : nullptr);
}

int generate_on_ranks(const GenerateArguments& arguments) {
  check_sampling(arguments);
  const Group world = connect_world();
  return run_on_all_ranks(world, [&] {
    generate_all(arguments, world);
    return 0;
  });
}

}  // namespace

void add_generate_command(CLI::App& app, int& status) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand(
      "generate",
      "Continues a text with the model of a Hugging Face folder or of a run's checkpoint, on one rank or on several\n"
      "that share the model. Prints the text to stdout, on one rank token by token, and everything else to stderr.\n\n"
      "  meshtrain generate models/SmolLM2-1.7B --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95\n"
      "  meshtrain generate models/SmolLM2-1.7B-Instruct --chat --prompt 'Why is the sky blue?'\n"
      "  meshtrain generate models/SmolLM2-1.7B-Instruct --chat --prompt-file chats.jsonl --json\n"
      "  mpirun -n 2 meshtrain generate runs/mine --prompt '#include' --max-tokens 200\n"
      "  mpirun -n 8 meshtrain generate runs/mine --prompt-file prompts.jsonl --json --mesh dp=4,tp=2");
  add_generate_options(*command, *arguments);
  command->callback([arguments, &status] { status = generate_on_ranks(*arguments); });
}

}  // namespace meshtrain
