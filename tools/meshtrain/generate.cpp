#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "mesh/layout.h"
#include "runtime/program/generate/generate.h"
#include "runtime/program/generate/model_source.h"
#include "runtime/program/generate/stop_strings.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/launch/connect_devices.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/program/recipe/validate.h"
#include "runtime/program/watch/phase.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/generate_arguments.h"
#include "tools/meshtrain/generate_request.h"
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

std::unique_ptr<LanguageModel> load_model(const ModelSource& source, const std::string& precision,
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
  auto model = std::make_unique<LanguageModel>(source.shape, mesh, dtype_of(precision), read, device);
  if (mesh.rank() == 0) {
    for (const std::string& line : weight_warnings(source)) std::fprintf(stderr, "%s\n", line.c_str());
    std::fprintf(stderr, "%s: %s parameters in %s on %lld rank%s, loaded in %.2f s\n", source.folder.c_str(),
                 with_separators(num_parameters(*model)).c_str(), precision.c_str(),
                 static_cast<long long>(mesh.size()), mesh.size() == 1 ? "" : "s",
                 std::chrono::duration<double>(Clock::now() - start).count());
  }
  return model;
}

MeshLayout layout_of(const std::string& asked, int num_ranks) {
  const std::map<std::string, int64_t> sizes = parse_mesh(asked);
  for (const auto& [axis, size] : sizes) {
    if (axis == kTensorAxis || size == 1) continue;
    throw InputError("--mesh " + asked +
                     ": text is generated over tp alone, whose ranks share one sequence: give --mesh tp=" +
                     std::to_string(num_ranks) + ", or leave it out");
  }
  return MeshLayout::fit(sizes, training_axes(), num_ranks);
}

/// A search for strings that end a text: rank 0, which has the tokenizer, looks and tells the others.
std::function<bool(int64_t)> search(const std::vector<std::string>& strings, const std::vector<int64_t>& prompt,
                                    const std::optional<GeneratedOutput>& output, const Group& world) {
  const auto found = output ? std::make_shared<StopStrings>(*output->tokenizer(), strings, prompt) : nullptr;
  return [found, &world](int64_t token) {
    at::Tensor ends = at::full({1}, found && found->add(token) ? 1 : 0, at::kLong);
    world.broadcast(ends, 0).wait();
    return ends.item<int64_t>() != 0;
  };
}

void generate_all(const GenerateArguments& arguments, const Group& world) {
  const MeshLayout layout = layout_of(arguments.mesh, world.size());
  const DeviceContext device_context = connect_devices({.kind = device_kind(arguments.device)}, world);
  const DeviceMesh mesh(layout, device_context.world);
  set_rank_name(mesh.world().coordinate_text());
  const bool first = mesh.rank() == 0;
  if (first && !device_context.fallback.empty()) std::fprintf(stderr, "%s\n", device_context.fallback.c_str());
  std::string folder;  // the newest checkpoint may be another one a moment later
  agree(world, [&] {
    if (first) folder = find_model(arguments.model).string();
  });
  folder = broadcast_text(world, folder);
  ModelSource source;
  agree(world, [&] {
    source = read_model_source(folder);
    check_tensor_parallel(source.shape, mesh.size(kTensorAxis));
  });

  std::optional<GeneratedOutput> output;  // of rank 0
  GenerateRequest request;
  agree(world, [&] {
    if (!first) return;
    using Style = GeneratedOutput::Style;
    const Style style = arguments.json_lines ? Style::Json : world.size() > 1 ? Style::Whole : Style::Stream;
    output.emplace(asked_prompts(arguments), tokenizer_of(arguments, source), style);
    request = make_request(arguments, output->prompts(), source, output->tokenizer());
  });
  request = GenerateRequest::parse(broadcast_text(world, request.text()));

  const std::unique_ptr<LanguageModel> model =
      load_model(source, arguments.precision.value_or(source.precision), mesh, device_context.device);
  GenerateOptions options{.stop = request.stop, .sampling = request.sampling, .rules = request.rules};
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const std::vector<int64_t>& prompt = request.prompts[i];
    options.max_tokens = request.max_tokens[i];
    const Phase phase("the text of prompt " + std::to_string(i + 1));
    if (output) output->begin(i, prompt);
    std::optional<Progress> progress;  // text that is printed token by token shows it itself
    if (output && !output->streams()) {
      progress.emplace("text of prompt " + std::to_string(i + 1) + " of " + std::to_string(request.prompts.size()),
                       options.max_tokens, "tokens");
    }
    if (!request.stop_strings.empty()) options.ends_text = search(request.stop_strings, prompt, output, world);
    const GenerationResult generated = generate(*model, prompt, i, options, [&](int64_t token) {
      if (output) output->add(token);
      if (progress) progress->advance();
    });
    progress.reset();
    if (output) output->end(i, prompt, generated);
    const auto length = static_cast<int64_t>(prompt.size() + generated.tokens.size());
    if (first && static_cast<int64_t>(prompt.size()) <= source.trained_length) {
      warn_of_length("the text of prompt " + std::to_string(i + 1), static_cast<size_t>(length), source.trained_length);
    }
  }
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
      "that share the model over tp. Prints the text to stdout, on one rank token by token, and all else to stderr.\n\n"
      "  meshtrain generate models/SmolLM2-1.7B --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95\n"
      "  meshtrain generate models/SmolLM2-1.7B-Instruct --chat --prompt 'Why is the sky blue?'\n"
      "  meshtrain generate models/SmolLM2-1.7B-Instruct --chat --prompt-file chats.jsonl --json\n"
      "  mpirun -n 2 meshtrain generate runs/mine --prompt '#include' --max-tokens 200");
  add_generate_options(*command, *arguments);
  command->callback([arguments, &status] { status = generate_on_ranks(*arguments); });
}

}  // namespace meshtrain
