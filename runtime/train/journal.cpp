#include "runtime/train/journal.h"

#include <spdlog/spdlog.h>

#include "runtime/config/context.h"
#include "runtime/config/load.h"
#include "runtime/telemetry/console.h"
#include "runtime/train/skipped_steps.h"

namespace meshtrain {
namespace {

Recipe as_run(Recipe recipe, const MeshLayout& layout) {
  for (const Axis& axis : layout.axes()) recipe.parallel.mesh[axis.name] = axis.size;
  return recipe;
}

}  // namespace

Journal::Journal(const Recipe& recipe, const MeshLayout& layout, const std::filesystem::path& folder, bool resume)
    : recipe_(as_run(recipe, layout)),
      directory_(folder, resume),
      metrics_(directory_.metrics(), /*last_step=*/0, may_skip(recipe.train)) {
  directory_.write_recipe(to_yaml(recipe_));
  spdlog::set_pattern("%v");
}

void Journal::announce(int64_t num_parameters, bool sequence_parallel, const ContextChoice& context,
                       const ShardingChoice& sharding) const {
  const auto& mesh = recipe_.parallel.mesh;
  spdlog::info("{}: {} parameters, mesh dp={},tp={},cp={}, sequence parallel {}, {}", recipe_.name,
               with_separators(num_parameters), mesh.at("dp"), mesh.at("tp"), mesh.at("cp"),
               sequence_parallel ? "on" : "off", recipe_.train.precision);
  if (mesh.at("dp") * mesh.at("cp") > 1) spdlog::info("fsdp {}", describe(sharding));
  if (mesh.at("cp") > 1) spdlog::info("context parallel {}", describe(context));
  spdlog::info("run directory {}", directory_.folder().string());
  if (mesh.at("tp") > 1 && !sequence_parallel && recipe_.parallel.sequence_parallel == "auto") {
    spdlog::info("sequence parallel is off because tp does not divide the tokens of a micro-batch");
  }
  if (recipe_.train.offload_activations) {
    spdlog::info("train.offload_activations moves nothing: ranks of this run have their activations in host memory");
  }
}

void Journal::record(const StepMetrics& metrics) {
  metrics_.append(metrics);
  if (metrics.step > 1) seconds_of_steady_steps_ += metrics.step_seconds;  // the first step warms up
  const int64_t num_steps = recipe_.train.steps;
  const double mean =
      metrics.step > 1 ? seconds_of_steady_steps_ / static_cast<double>(metrics.step - 1) : metrics.step_seconds;
  if (metrics.step % recipe_.train.log_every != 0 && metrics.step != num_steps && !metrics.skipped) return;
  spdlog::info(console_line(metrics, num_steps, mean * static_cast<double>(num_steps - metrics.step)));
}

void Journal::say(const std::string& line) const {
  spdlog::info(line);
}

}  // namespace meshtrain
