#include "tests/matrix/comparison.h"

#include <algorithm>
#include <sstream>

#include "mesh/device/aten.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/data/dataset.h"
#include "tests/support/world.h"

namespace meshtrain::testing {

DeviceMesh mesh_of(const Cell& cell) {
  return DeviceMesh(
      MeshLayout::fit({{"pp", cell.pp}, {"dp", cell.dp}, {"cp", cell.cp}, {"tp", cell.tp}, {"ep", cell.ep}},
                      training_axes(), world().size()),
      world());
}

DeviceMesh one_rank_mesh() {
  return DeviceMesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
}

Trace train(const Recipe& recipe, const DeviceMesh& mesh) {
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
  std::vector<StepBatch> batches;
  for (int64_t step = 0; step < recipe.train.steps; ++step) {
    batches.push_back(read_step(dataset, recipe.train, mesh, trainer.layout(), step));
  }
  return trace_steps(trainer, batches, recipe.optimizer.learning_rate, "the mesh");
}

Reference train_reference(Recipe recipe) {
  return make_reference(std::string(recipe.train.precision), /*has_fp64=*/true, [&](const std::string& precision) {
    recipe.train.precision = precision;
    return train(recipe, one_rank_mesh());
  });
}

std::string train_and_compare(const Recipe& recipe, const DeviceMesh& mesh, const Reference& reference,
                              std::map<std::string, double>* shares, int root) {
  const Trace trace = train(recipe, mesh);
  std::ostringstream lines;
  for (const Comparison& each :
       compare(trace, mesh.rank() == root ? &reference : nullptr, mesh, recipe.train.precision, root)) {
    const char* kinds[] = {"loss of ",     "gradient norm of ", "gradient of ",
                           "movement of ", "all gradients",     "all movements"};
    const char* kind = kinds[static_cast<int>(each.kind)];
    if (shares != nullptr) {
      double& share = (*shares)[recipe.train.precision + " " + kind];
      share = std::max(share, each.difference / each.bound);
    }
    if (each.equal()) continue;
    lines << kind << each.name << ": differs by " << each.difference << ", bound " << each.bound << ", on rank "
          << each.rank << "\n";
  }
  return lines.str();
}

std::string first_difference(const Trace& seen, const Trace& wanted) {
  const auto differ = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() != b.defined() || (a.defined() && !at::equal(a, b));
  };
  if (seen.losses != wanted.losses) return "loss";
  if (seen.grad_norms != wanted.grad_norms) return "gradient norm";
  for (size_t i = 0; i < wanted.parameters.size(); ++i) {
    const TracedParameter &a = seen.parameters[i], &b = wanted.parameters[i];
    if (differ(a.gradient, b.gradient) || differ(a.movement, b.movement)) return b.name;
  }
  return "";
}

}  // namespace meshtrain::testing
