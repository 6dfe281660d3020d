#include "runtime/program/run/preparation.h"

#include <algorithm>
#include <utility>

#include "mesh/agree.h"
#include "mesh/base/available_memory.h"
#include "mesh/base/error.h"
#include "mesh/device/cuda/plugin.h"
#include "mesh/device/error_message.h"
#include "mesh/host_map.h"
#include "runtime/program/hf/peft_config.h"
#include "runtime/program/recipe/check_data.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/program/recipe/pipeline_notes.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/program/run/run_files.h"
#include "runtime/program/watch/phase.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/unused_weights.h"

namespace meshtrain {
namespace {

/// Returns the forecast request of a run on the ranks of `world`. Every rank must call it.
ForecastRequest request_of_ranks(const Recipe& recipe, const DeviceContext& device_context, const Group& world) {
  const HostMap hosts = HostMap::of(world);
  const auto host_ranks = static_cast<int64_t>(hosts.ranks_of(hosts.host_of(world.rank())).size());
  const bool has_gpu = device_context.free_memory != nullptr;
  const int64_t own = has_gpu ? device_context.free_memory()
                              : std::min(available_host_memory() / host_ranks, available_address_space());
  at::Tensor negated = at::full({1}, -own, at::kLong);
  world.all_reduce(negated, Reduce::Max).wait();
  ForecastRequest request =
      forecast_request(recipe, world.size(), world.size() / hosts.num_hosts(), /*machine=*/nullptr);
  request.hosts.gpus = has_gpu;
  const int64_t least = -negated.item<int64_t>();
  if (least > 0) request.memory = least + request.runtime_bytes();  // the runtime has its own already
  return request;
}

}  // namespace

Preparation::Preparation(const Recipe& asked, const RunOptions& options, int64_t num_ranks, const Group* world)
    : Preparation(asked, options, MeshLayout::fit(asked.parallel.mesh, asked.parallel.order, num_ranks), world) {}

Preparation::Preparation(const Recipe& asked, const RunOptions& options, const MeshLayout& layout, const Group* world)
    : recipe(on_mesh(asked, layout)),
      decisions(resolve(recipe, layout)),
      folder(RunDirectory::folder_of(recipe, options.run_dir)),
      checkpoints(RunDirectory::checkpoints_of(folder)) {
  if (world != nullptr) {
    device_context = connect_devices(decisions.device, *world);
    mesh = std::make_unique<DeviceMesh>(decisions.layout, device_context.world);
    set_rank_name(mesh->world().coordinate_text());
  }
  prepare(options, world != nullptr ? *world : Group());
}

void Preparation::prepare(const RunOptions& options, const Group& world) {
  const bool is_first = world.rank() == 0;
  agree(world, [&] {
    open_data(world);
    if (!is_first) return;
    head = describe_run(recipe, decisions.layout);
    if (!options.resumes()) return;
    const auto found = checkpoint_to_resume(checkpoints, options.resume_step);
    if (found) resume = resume_candidate(*found, head, recipe.train.steps);
  });
  resumes = !broadcast_text(world, resume ? "yes" : "").empty();
  check_same_files(recipe, reads_weights(), world);
  request = mesh ? request_of_ranks(recipe, device_context, world)
                 : forecast_request(recipe, decisions.layout.size(), /*ranks_per_host=*/0, options.machine);
  if (!mesh && !options.machine && recipe.device == "auto") request.hosts.gpus = is_cuda_driver_there();
  agree(world, [&] {
    if (!is_first) return;
    if (reads_weights()) look_at_weights();
    const int64_t done = resume ? resume->point.state.step : 0;
    notices.push_back(disk_notice(recipe, decisions, checkpoints, done, request.num_hosts()));
    check_offload(recipe, decisions);
    for (std::string& line : pipeline_warnings(recipe, decisions)) notices.push_back({std::move(line), true});
    if (!mesh && recipe.device == "cuda" && !is_cuda_driver_there()) {
      notices.push_back({"device: cuda, and this machine has no NVIDIA driver", true});
    }
    forecast_step(options);
    check_run_directory(folder, options.resumes());  // last, so that errors of a changed recipe come first
    if (!resume) check_beginning(folder, recipe.checkpoint.every);
  });
}

void Preparation::open_data(const Group& world) {
  name_host(world, [&] {
    check_sidecars(recipe, tokenizer_of(recipe));
    if (world.rank() == 0) {
      check_tokenizer(recipe);
      check_export(recipe, folder);
    }
    data = std::make_unique<Mixture>(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size,
                                     static_cast<uint64_t>(recipe.train.seed));
    check_labels(recipe, *data);
    evaluation = make_evaluation(recipe.evaluate, decisions, recipe.train.steps);
  });
}

void Preparation::look_at_weights() {
  const SafetensorsFolder weights = open_weights(recipe.model.hf, recipe.model.shape);
  check_weights(weights, recipe.model.shape);
  check_tied_head(weights, recipe.model.shape);
  for (std::string& line : weight_warnings(weights, recipe.model.shape)) notices.push_back({std::move(line), true});
  const std::filesystem::path& adapter = recipe.model.shape.adapter.from;
  std::string other = adapter.empty() ? "" : describe_other_base_name(adapter, recipe.model.hf);
  if (!other.empty()) notices.push_back({std::move(other), true});
}

void Preparation::forecast_step(const RunOptions& options) try {
  const Phase phase({"the plan of a step", PhaseKind::SetUp});
  const Machine* machine = options.machine.get();
  forecast = mesh ? RunForecast{forecast_rank(decisions, request.hosts, /*rank=*/0, machine)}
                  : meshtrain::forecast(decisions, request.hosts, machine);
  if (mesh) {
    check_offload_memory(forecast->step.offload.host, request.hosts.ranks_per_host, available_host_memory());
  }
  // Without a pipeline rank 0 stands for all ranks.
  const bool has_stages = mesh && decisions.layout.size(kPipelineAxis) > 1;
  const int64_t needed = has_stages ? meshtrain::forecast(decisions, request.hosts).step.memory().total()
                                    : forecast->step.memory().total();
  memory = memory_notice(recipe, decisions, request, needed, /*measured=*/mesh != nullptr);
} catch (const InputError& error) {
  throw located(error, recipe);
} catch (const std::exception& error) {
  memory = {"there is no plan for this run: " + message_of(error), true};
}

}  // namespace meshtrain
