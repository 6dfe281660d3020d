#include "runtime/program/verify/setup.h"

#include <algorithm>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "runtime/program/recipe/sharding.h"
#include "runtime/program/verify/comparison.h"
#include "runtime/program/verify/shrink.h"
#include "runtime/program/yaml/suggest.h"

namespace meshtrain {
namespace {

constexpr double kLeastLearningRate = 1e-3;  // large enough that weights move

/// Returns the recipe's mesh for `num_ranks`. Throws InputError that says how to start as many ranks as the mesh has.
MeshLayout fit(const Recipe& recipe, int64_t num_ranks) {
  const int64_t needed = ranks_of(recipe.parallel.mesh);
  const auto is_given = [](const auto& axis) { return axis.first == kExpertAxis || axis.second != MeshLayout::kAuto; };
  if (std::ranges::all_of(recipe.parallel.mesh, is_given) && needed < (int64_t{1} << 40) && needed != num_ranks) {
    throw InputError((recipe.file.empty() ? recipe.name : recipe.file.string()) + ": mesh " +
                     MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, needed).describe() + " needs " +
                     counted(needed, "rank") + ", but " + counted(num_ranks, "was", "were") +
                     " started: start mpirun -n " + std::to_string(needed) +
                     " meshtrain verify ..., or give another --mesh");
  }
  return MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, num_ranks);
}

/// Throws InputError for a fault that is impossible on every mesh of this layout. Only the run shows whether sums have
/// a purpose.
void check_fault(const std::string& skipped, const MeshLayout& layout) {
  std::vector<std::string> known = training_axes();  // every sum over an axis has one of these names
  known.insert(known.end(), {"dp.gradients", "cp.gradients", "cp.attention", "tp.gradients", "tp.linear",
                             "tp.embedding", "tp.cross_entropy", "pp.gradients", "count", "vote"});
  if (skipped.empty()) return;
  const std::string asked = "--inject skip-reduce:" + skipped + ": ";
  if (std::find(known.begin(), known.end(), skipped) == known.end()) {
    const std::string meant = nearest(skipped, known);
    throw InputError(asked + "nothing is summed for " + skipped +
                     (meant.empty() ? "" : "; did you mean " + meant + "?") + ": use " + joined(known));
  }
  const std::string axis = skipped.substr(0, skipped.find('.'));
  const bool sums_experts = axis == kDataAxis && layout.ep() > 1 && layout.experts().size(kExpertDataAxis) > 1;
  if (axis != "count" && axis != "vote" && layout.size(axis) == 1 && !sums_experts) {
    throw InputError(asked + "mesh " + layout.describe() + " has one rank along " + axis + ", which sums nothing");
  }
}

}  // namespace

Recipe in_precision(Recipe recipe, const std::string& precision) {
  if (recipe.train.precision == precision) return recipe;
  recipe.train.precision = precision;
  recipe.train.residual_dtype = "auto";
  recipe.train.loss_scale.reset();
  recipe.train.stochastic_rounding = false;
  recipe.parallel.fsdp.reduce_dtype = "auto";
  recipe.optimizer.state_dtype.reset();
  return recipe;
}

VerifySetup set_up_verification(const Recipe& recipe, const VerifyOptions& options, int64_t num_ranks) {
  const MeshLayout layout = fit(recipe, num_ranks);
  Recipe asked = in_precision(recipe, options.precision);
  asked.device = options.device;
  if (options.device == "cpu") asked.parallel.backend = "auto";  // the recipe's backend may need GPUs
  const Decisions resolved = resolve(asked, layout);
  check_fault(options.skipped_sums, layout);

  Recipe verified = options.shrink ? shrink(asked, layout) : asked;
  if (options.samples == nullptr) verified.model.init = "random";
  verified.model.shape.adapter.draws_all = true;
  verified.model.shape.adapter.from.clear();
  verified.train.steps = options.steps;
  verified.train.phases.clear();  // a batch that grows is verified at its last size
  verified.train.skip_outliers.reset();
  verified.train.export_folder.clear();
  verified.schedule = {};
  verified.optimizer.learning_rate = std::max(verified.optimizer.learning_rate, kLeastLearningRate);
  if (std::optional<double>& rate = verified.optimizer.muon.adamw_learning_rate)
    rate = std::max(*rate, kLeastLearningRate);
  if (asked.parallel.fsdp.mode == "auto") {  // the mode for the complete mesh also applies to each axis alone
    verified.parallel.fsdp.mode = name(resolved.sharding.mode);
  }
  verified.optimizer.eps = std::max(verified.optimizer.eps, least_eps(options.precision));
  return {recipe, verified, resolve(verified, layout)};
}

Recipe on_one_rank(Recipe recipe) {
  const std::string reduced = recipe.parallel.fsdp.reduce_dtype;
  recipe.parallel = {};
  recipe.parallel.fsdp.reduce_dtype = reduced;  // one rank then rounds the gradients of micro-batches too
  return recipe;
}

}  // namespace meshtrain
