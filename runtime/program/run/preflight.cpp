#include "runtime/program/run/preflight.h"

#include <algorithm>
#include <limits>

#include "mesh/base/available_memory.h"
#include "mesh/base/error.h"
#include "mesh/base/files/writable_folder.h"
#include "mesh/base/size_text.h"
#include "runtime/program/forecast/remedies.h"
#include "runtime/program/hf/export_folder.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/optimizer/optimizer.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

/// Returns `path` relative to `folder`, links resolved; "." when it is the same.
fs::path below(const fs::path& path, const fs::path& folder) {
  return fs::weakly_canonical(fs::absolute(path)).lexically_relative(fs::weakly_canonical(fs::absolute(folder)));
}

/// Returns true when `path` is `folder` or in it.
bool is_within(const fs::path& path, const fs::path& folder) {
  return *below(path, folder).begin() != "..";
}

/// Returns how many checkpoints the disk holds at once.
int64_t num_checkpoints(const Recipe& recipe) {
  const CheckpointRecipe& checkpoint = recipe.checkpoint;
  const int64_t steps = recipe.train.steps;
  if (checkpoint.every == 0) return 1;  // of a run that is stopped, or before an export
  const int64_t all = (steps + checkpoint.every - 1) / checkpoint.every;
  if (checkpoint.keep_last == 0) return all;
  const int64_t apart = checkpoint.keep_every > 0 ? steps / checkpoint.keep_every : 0;
  return std::min(all, checkpoint.keep_last + 1 + apart);  // one is removed after the next is there
}

/// Returns the bytes of a checkpoint's tensors: weights as they are kept, and the optimizer's state.
int64_t checkpoint_bytes(const Recipe& recipe, const Decisions& decisions) {
  const Transformer declared(recipe.model.shape, {}, at::TensorOptions(at::kMeta).dtype(decisions.precision.compute));
  const auto weight_bytes =
      static_cast<int64_t>(c10::elementSize(decisions.precision.mixed ? at::kFloat : decisions.precision.compute));
  const auto state_bytes = static_cast<int64_t>(c10::elementSize(*decisions.optimizer.state_dtype));
  const auto& state_elements = optimizer_traits(recipe.optimizer.name).state_elements;
  int64_t bytes = 0;
  for (const Parameter* parameter : const_cast<Transformer&>(declared).parameters()) {
    const int64_t count = c10::multiply_integers(parameter->global_shape);
    const bool frozen = !is_trained(recipe.model.shape.adapter, recipe.train.freeze, parameter->name);
    if (frozen && recipe.model.shape.adapter && !is_adapter(parameter->name)) continue;  // read again from model.hf
    bytes += count * (weight_bytes + (frozen ? 0 : state_bytes * state_elements(recipe.optimizer, *parameter)));
  }
  return bytes;
}

}  // namespace

void check_run_directory(const fs::path& folder, bool resume) {
  check_writable(folder, "the run directory");
  if (!resume) RunDirectory::refuse_other_run(folder);
  RunDirectory::refuse_use(folder);
}

void check_export(const Recipe& recipe, const fs::path& run) {
  if (recipe.train.export_folder.empty()) return;
  const ExportFolder target(recipe.train.export_folder);
  target.check();
  const auto refuse = [&](const std::string& what, const fs::path& taken) {
    throw InputError("train.export", target.text() + " cannot be exported to: " + what + " " + taken.string() +
                                         " is there: name a folder elsewhere");
  };
  for (const fs::path& path : {target.folder(), target.partial()}) {
    if (is_within(run, path)) refuse("the run directory", run);
    const std::string name = is_within(path, run) ? below(path, run).begin()->string() : "";
    if (RunDirectory::is_own(name)) refuse("the run's", run / name);
    const fs::path& offload = recipe.parallel.fsdp.offload.path;
    if (!offload.empty() && (is_within(path, offload) || is_within(offload, path))) {
      refuse("parallel.fsdp.offload.path", offload);
    }
  }
  check_carried(carried_over(recipe));
}

Notice disk_notice(const Recipe& recipe, const Decisions& decisions, const CheckpointFolder& checkpoints, int64_t done,
                   int64_t num_hosts) {
  std::error_code error;
  const fs::path existing = existing_part(checkpoints.folder());
  const fs::space_info space = fs::space(existing, error);
  if (error || space.capacity == 0 || done >= recipe.train.steps) return {};  // 0: the file system does not report it
  const int64_t each = checkpoint_bytes(recipe, decisions),
                kept = std::ranges::count_if(checkpoints.steps(), [&](int64_t step) { return step <= done; });
  const int64_t count = std::max<int64_t>(num_checkpoints(recipe) - kept, 1);
  const auto free = static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
  const bool writes = recipe.checkpoint.every > 0;
  // An existing folder may hold unfinished checkpoints, which a start removes to free space.
  const bool is_certain = !fs::exists(checkpoints.folder(), error);
  if (writes && is_certain && each / num_hosts > free) {
    throw InputError("checkpoint.every", "a checkpoint takes " + size_text(each) + ", and the disk of " +
                                             existing.string() + " has " + size_text(free) +
                                             " free: choose another --run-dir");
  }
  std::string line = (writes ? counted(count, "checkpoint") : std::string("a checkpoint, if the run is stopped,")) +
                     " of " + size_text(each) + (count > 1 ? ", together " + size_text(each * count) : "") +
                     "; the disk of " + existing.string() + " has " + size_text(free) + " free";
  if (!writes && recipe.train.export_folder.empty()) {
    line += "; without checkpoint.every and train.export the final weights are lost";
  }
  if (each <= free / count) return {line};
  return {line + (writes ? ": set checkpoint.keep_last, or another --run-dir" : ""), true};
}

void check_offload(const Recipe& recipe, const Decisions& decisions) {
  if (decisions.offload != Offload::Disk) return;
  check_writable_or_new(recipe.parallel.fsdp.offload.path, "parallel.fsdp.offload.path");
}

MemoryNotice memory_notice(const Recipe& recipe, const Decisions& decisions, ForecastRequest request, int64_t needed,
                           bool measured) {
  constexpr double kSurely = 1.1;  // of the forecast, beside which others' measurements lie within a tenth on average
  const int64_t here = std::min(available_host_memory(), available_address_space()), ranks = decisions.layout.size();
  const bool is_gpu = request.hosts.gpus && !measured;
  std::string text = "a step needs " + size_text(needed) + (measured ? " on a rank" : " on the fullest rank");
  if (measured && request.memory) {
    text += ", which has " + size_text(*request.memory - request.runtime_bytes()) + " free";
  } else if (is_gpu) {
    text += !request.memory ? "; give --machine to compare it with a GPU's memory"
                            : ", and the runtime " + size_text(request.runtime_bytes()) + " more, of " +
                                  size_text(*request.memory) + " of a GPU";
  } else if (!measured && here != std::numeric_limits<int64_t>::max()) {
    request.memory = here / ranks;
    text += (ranks > 1 ? ", at most " + size_text(needed * ranks) + " on a host that has all " + counted(ranks, "rank")
                       : "") +
            "; this machine has " + size_text(here) + " free";
  }
  if (request.has_room_for(needed)) return {measured ? "" : text};
  if (const std::string less = less_memory(recipe, decisions.layout, request); !less.empty()) text += ": " + less;
  const auto all = static_cast<double>(needed + request.runtime_bytes());
  if (!is_gpu || all <= kSurely * static_cast<double>(*request.memory)) return {text, true};
  throw InputError(text + " (meshtrain plan compares meshes)");
}

void check_offload_memory(int64_t each, int64_t ranks, int64_t free) {
  if (each <= free / ranks) return;
  throw InputError("parallel.fsdp.offload.to", "host keeps " + size_text(each) + " of a rank in the host's memory, " +
                                                   size_text(each * ranks) + " of " + counted(ranks, "rank") +
                                                   ", but this host has " + size_text(free) +
                                                   " free: use more hosts, or offload to disk");
}

std::string less_memory(const Recipe& recipe, const MeshLayout& layout, const ForecastRequest& request) try {
  return memory_remedies(recipe, layout, request);
} catch (const std::exception&) {  // no forecast is possible, or there is no memory for one
  return "";
}

std::string not_checked(const Recipe& recipe, const Decisions& decisions) {
  std::string text = "not checked without ranks: that hosts have the same files";
  if (recipe.device != "cpu") text += ", that each rank has a GPU of its own";
  if (recipe.model.init == "pretrained") text += ", every byte of the weights";
  text += decisions.layout.size() > 1 ? ", that ranks reach each other, and what else uses their disks and memory"
                                      : ", and what else uses their disks and memory";
  return text;
}

}  // namespace meshtrain
