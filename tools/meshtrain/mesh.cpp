#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/layout.h"
#include "runtime/program/recipe/context.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/recipe/pipeline.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/mesh_picture.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;  // beyond this the groups take too long to count

struct MeshArguments {
  std::filesystem::path recipe;
  std::vector<std::string> overrides;
  std::string mesh;
  int64_t ranks = 0;
  std::vector<std::string> order = training_axes();
  int64_t ranks_per_host = 0;
};

/// How many ranks the mesh has when nobody says.
int64_t product(const std::map<std::string, int64_t>& sizes) {
  for (const auto& [axis, size] : sizes) {
    if (axis != kExpertAxis && size == MeshLayout::kAuto) {
      throw InputError("mesh " + axis + "=auto: give --ranks, the total number of ranks");
    }
  }
  const int64_t ranks = ranks_of(sizes);
  if (ranks > kMaxRanks) throw InputError("mesh: more than " + std::to_string(kMaxRanks) + " ranks to print");
  return ranks;
}

MeshLayout fit(const std::map<std::string, int64_t>& sizes, const std::vector<std::string>& order, int64_t ranks) {
  if (ranks == 0) ranks = product(sizes);
  if (ranks > kMaxRanks) throw InputError("--ranks: more than " + std::to_string(kMaxRanks) + " ranks to print");
  return MeshLayout::fit(sizes, order, ranks);
}

/// Returns all axes in the order of --order.
std::vector<std::string> order_of(const MeshArguments& arguments) try {
  return complete_order(arguments.order);
} catch (const InputError& error) {
  throw InputError(std::string("--order ") + error.what() + ", as in --order pp,dp,cp,tp");
}

MeshLayout layout_of(const MeshArguments& arguments) {
  if (arguments.mesh.empty()) throw InputError("give a recipe or --mesh, as in --mesh dp=2,tp=2,cp=2");
  return fit(parse_axes(arguments.mesh), order_of(arguments), arguments.ranks);
}

/// How the recipe's attention is cut over cp, and what it sends.
std::string describe_context(const Recipe& recipe, const Decisions& decisions) {
  const ContextShape shape = context_shape(recipe, decisions.layout);
  if (shape.ranks == 1) return "";
  const ContextChoice& choice = decisions.context;
  const auto element = static_cast<int64_t>(c10::elementSize(decisions.precision.compute));
  const AttentionBytes bytes = attention_bytes(shape, choice.algorithm, recipe.train.micro_batch,
                                               recipe.model.shape.head_dim, element, std::max<int64_t>(element, 4));
  std::string text = "\n  attention over cp: " + describe(choice) + "\n";
  text += "  each rank holds " + with_separators(shape.sequence_length / shape.ranks) + " of " +
          with_separators(shape.sequence_length) + " positions";
  if (choice.layout == SequenceLayout::Kind::ZigZag) text += ": rank r has the r-th of 2 x cp chunks from either end";
  return text + "\n  each sends, for a layer and micro-batch, " + with_separators(bytes.forward) +
         " bytes forward and " + with_separators(bytes.backward) + " backward\n";
}

/// Returns "embedding, blocks 0 to 2", the layers of a stage. `first`: its first block.
std::string describe_stage(const std::vector<int64_t>& blocks, size_t stage, int64_t first) {
  const int64_t last = first + blocks[stage] - 1;
  const std::string range = last > first ? "blocks " + std::to_string(first) + " to " + std::to_string(last)
                                         : "block " + std::to_string(first);
  return (stage == 0 ? "embedding, " : "") + range + (stage + 1 == blocks.size() ? ", head" : "");
}

/// Returns the layers of each stage of the recipe's pipeline, and the messages between them; empty without a pipeline.
std::string describe_pipeline(const Recipe& recipe, const Decisions& decisions) {
  const MeshLayout& layout = decisions.layout;
  const std::vector<int64_t>& blocks = decisions.pipeline.blocks;
  const auto ranks = static_cast<size_t>(layout.size(kPipelineAxis));
  if (blocks.empty()) return "";
  const bool has_several = blocks.size() > ranks;
  std::vector<std::string> of_rank(ranks);
  int64_t first = 0;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    std::string& text = of_rank[stage % ranks];
    text += (text.empty() ? "" : "; ") + (has_several ? "stage " + std::to_string(stage) + ": " : "") +
            describe_stage(blocks, stage, first);
    first += blocks[stage];
  }
  std::string text = "\n  pipeline over pp: " + describe(decisions.pipeline) + "\n";
  for (size_t rank = 0; rank < ranks; ++rank) text += "  pp=" + std::to_string(rank) + "    " + of_rank[rank] + "\n";
  const int64_t positions = recipe.train.sequence_length / layout.size(kContextAxis),
                parts = decisions.sequence_parallel ? layout.size(kTensorAxis) : 1;
  const int64_t bytes = recipe.train.micro_batch * positions / parts * recipe.model.shape.hidden_size *
                        static_cast<int64_t>(c10::elementSize(decisions.precision.residual));
  return text + "  each stage sends the next, for a micro-batch, " + with_separators(bytes) +
         " bytes forward and gets as many backward, over links pp 0>1 and pp 1>0" +
         (ranks > 2 || has_several ? " and so on\n" : "\n");
}

void print(const MeshArguments& arguments) {
  if (arguments.recipe.empty() && !arguments.overrides.empty()) {
    throw InputError("--set changes a recipe: give one, as in meshtrain mesh recipes/quickstart.yaml --set ...");
  }
  if (arguments.recipe.empty()) {
    std::fputs(draw_mesh(layout_of(arguments), arguments.ranks_per_host).c_str(), stdout);
    return;
  }
  std::vector<std::string> overrides = arguments.overrides;
  overrides.emplace_back("model.init=random");  // config.json suffices
  Recipe recipe = load_recipe(arguments.recipe, overrides, arguments.mesh);
  const std::string note =
      spread_over(recipe, {arguments.mesh, arguments.overrides}, std::max<int64_t>(arguments.ranks, 1));
  const MeshLayout layout = fit(recipe.parallel.mesh, recipe.parallel.order, arguments.ranks);
  const Decisions decisions = resolve(recipe, layout);
  if (!note.empty()) std::printf("%s\n", note.c_str());
  const std::string picture = draw_mesh(layout, arguments.ranks_per_host);
  std::fputs((picture + describe_pipeline(recipe, decisions) + describe_context(recipe, decisions)).c_str(), stdout);
}

}  // namespace

void add_mesh_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("mesh",
                                         "Prints a mesh: the coordinate of each rank, the groups, and those that cross "
                                         "hosts; with a recipe also the layers "
                                         "of its stages, and how its attention is cut");
  const auto arguments = std::make_shared<MeshArguments>();
  command->add_option("recipe", arguments->recipe,
                      "A recipe: gives the mesh, unless --mesh does, and the order of its axes");
  command->add_option("--mesh", arguments->mesh, "Sizes of the axes, one may be auto; those left out are 1")
      ->type_name("pp=N,dp=N,cp=N,tp=N");
  command->add_option("--set", arguments->overrides, "Sets one key of the recipe. May be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--ranks", arguments->ranks, "Total number of ranks. Default: the product of the sizes")
      ->check(whole_number(1))
      ->type_name("N");
  command
      ->add_option("--order", arguments->order,
                   "Axes, outermost first: the last one has neighbouring ranks; those left out are the outermost")
      ->delimiter(',')
      ->default_str("pp,dp,cp,tp")
      ->type_name("AXES");
  command->add_option("--hosts-of", arguments->ranks_per_host, "Ranks on each host. Default: all on one host")
      ->check(whole_number(1))
      ->type_name("N");
  command->footer(
      "Starts no ranks. Example: a cluster of hosts with 8 ranks each\n"
      "  meshtrain mesh --mesh dp=auto,tp=4,cp=2 --ranks 32 --hosts-of 8\n"
      "How attention is cut over cp, and why\n"
      "  meshtrain mesh recipes/quickstart.yaml --mesh cp=4 --set parallel.context.algorithm=ulysses");
  command->callback([arguments, &status] {
    print(*arguments);
    status = 0;
  });
}

}  // namespace meshtrain
