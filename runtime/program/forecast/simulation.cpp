#include "runtime/program/forecast/simulation.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "mesh/backends/dry_run.h"
#include "mesh/device/memory.h"
#include "mesh/device/meta_device.h"
#include "mesh/flight_recorder.h"
#include "mesh/forwarding.h"
#include "mesh/host_map.h"
#include "runtime/program/forecast/host_copies.h"
#include "runtime/program/forecast/meta_memory.h"
#include "runtime/training/model/flops.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {
namespace {

/// Counts the hosts of each group that issues a collective.
class HostCounter final : public ForwardingBackend {
 public:
  HostCounter(std::shared_ptr<Backend> inner, std::map<std::string, int>& num_hosts)
      : ForwardingBackend(std::move(inner)), num_hosts_(num_hosts) {}

  Work issue(const Collective& collective) override {
    if (!is_counted_) {
      num_hosts_.emplace(collective.group, HostMap(hosts()).num_hosts());
      is_counted_ = true;
    }
    return ForwardingBackend::issue(collective);
  }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override {
    return std::make_shared<HostCounter>(std::move(part), num_hosts_);
  }

 private:
  std::map<std::string, int>& num_hosts_;
  bool is_counted_ = false;
};

Group world_of(std::shared_ptr<Backend> backend, std::map<std::string, int>& num_hosts) {
  std::vector<int64_t> ranks(static_cast<size_t>(backend->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::string rank = "rank " + std::to_string(backend->rank());
  return Group(std::make_shared<HostCounter>(std::move(backend), num_hosts), "world", ranks, rank);
}

/// Returns the bytes of an arena that count for this rank.
int64_t share_of(const Arena& arena, int64_t host_ranks) {
  return arena.placement() == Placement::Common ? arena.bytes() / host_ranks : arena.bytes();
}

/// Returns the bytes of this rank's shards that are not slices of full tensors.
int64_t shards_apart(const std::vector<Unit>& units) {
  int64_t bytes = 0;
  for (const Unit& unit : units) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      const at::Tensor& shard = buffer.shard_values();
      if (!shard.is_alias_of(buffer.values())) bytes += static_cast<int64_t>(shard.nbytes());
    }
  }
  return bytes;
}

int64_t optimizer_bytes(const Trainer& trainer) {
  int64_t bytes = 0;
  for (const ShardTensor& shard : trainer.shards()) {
    if (!shard.name.empty()) bytes += static_cast<int64_t>(shard.values.nbytes());
  }
  return bytes;
}

/// Adds the memory of one of the rank's stages, or of the whole model without a pipeline.
void add_units(const Fsdp& fsdp, int64_t host_ranks, StepMemory& memory) {
  const UnitMemory& units = fsdp.memory();
  const bool elsewhere = fsdp.shard_memory().is_apart_from(units.parameters.device());
  const int64_t full = share_of(units.parameters, host_ranks);
  const int64_t gathered = units.parameters.is_reused() ? full : 0;
  memory.gathered += gathered;
  memory.parameters += full - gathered + (elsewhere ? 0 : shards_apart(fsdp.units()));
  memory.gradients +=
      share_of(units.gradients, host_ranks) + share_of(units.shard_gradients, host_ranks) + fsdp.stage_bytes();
}

StepMemory memory_of(const TransformerTrainer& trainer, const MetaMemory::Bytes& at_peak, const WindowMemory& windows,
                     int64_t host_ranks) {
  StepMemory memory;
  for (const ParameterGroup& group : trainer.groups()) add_units(*group.fsdp, host_ranks, memory);
  const Fsdp& fsdp = trainer.fsdp();
  const bool pages = fsdp.state_memory().is_apart_from(fsdp.memory().parameters.device());
  memory.optimizer = pages ? trainer.paging_bytes() : optimizer_bytes(trainer);
  memory.activations = at_peak[MetaMemory::kForward];
  // The host updates offloaded shards, with temporaries of its own.
  memory.temporaries = at_peak[MetaMemory::kBackward] + (fsdp.is_offloaded() ? 0 : at_peak[MetaMemory::kUpdate]);
  memory.exchange = windows.exchange();
  const int64_t kept = at_peak[MetaMemory::kKept] + windows.own() + windows.common() / host_ranks;
  memory.inputs = kept - memory.gathered - memory.parameters - memory.gradients - memory.optimizer;
  return memory;
}

/// Returns the bytes of activations in the host's memory, and of all copies of activations so far.
OffloadForecast offloaded_activations(const TransformerTrainer& trainer) {
  OffloadForecast offload;
  for (const auto& stage : trainer.stages()) {
    const ActivationOffload* const activations = stage->sharded_model().activation_offload();
    if (activations == nullptr) continue;
    offload.host_activations += activations->host_bytes();
    offload.copied_activations += activations->copy_costs().bytes();
  }
  return offload;
}

/// Returns the model FLOPs of a rank in a step; of a pipeline, the mean of its ranks.
double flops_of(TransformerTrainer& trainer, const Decisions& decisions) {
  const int64_t length = decisions.batch.sequence_length, tokens = decisions.batch.global_batch * length;
  return flops_per_token(trainer.model(), decisions.shape, length) * static_cast<double>(tokens) /
         static_cast<double>(decisions.layout.size());
}

/// A guard that restores the name of this process's work, which a simulated step replaces.
class WorkGuard {
 public:
  WorkGuard() = default;
  ~WorkGuard() { FlightRecorder::own().set_work(work_); }
  WorkGuard(const WorkGuard&) = delete;
  WorkGuard& operator=(const WorkGuard&) = delete;

 private:
  const std::string work_ = FlightRecorder::own().work();
};

}  // namespace

int64_t least_micro_batches(const Decisions& decisions) {
  const bool in_rounds = decisions.pipeline.schedule == ScheduleKind::Interleaved;
  return in_rounds ? decisions.layout.size(kPipelineAxis) : 1;
}

std::vector<StepForecast> simulate(const Decisions& decisions, const ForecastHosts& hosts, int64_t rank,
                                   const std::vector<int64_t>& micro_batches, Recording recording) {
  const WorkGuard real_work;
  WindowMemory windows;
  MetaMemory memory;
  const MetaDeviceGuard device(hosts.gpus ? at::kCUDA : at::kCPU);
  std::optional<HostCopies> copies;
  if (!hosts.gpus) copies.emplace();

  const DryRunHosts dry_hosts{static_cast<int>(hosts.ranks_per_host), hosts.gpus ? nullptr : &windows};
  std::map<std::string, int> num_hosts;
  std::optional<TimelineRecorder> recorder;
  if (recording != Recording::None) recorder.emplace(/*signatures=*/recording == Recording::Signatures);
  const auto size = static_cast<int>(decisions.layout.size());
  auto backend = dry_run_backend(static_cast<int>(rank), size, dry_hosts);
  if (recorder) backend = recorder->watch(std::move(backend));
  const DeviceMesh mesh(decisions.layout, world_of(std::move(backend), num_hosts));
  TrainingOptions random = decisions;
  random.weights.clear();
  random.shape.adapter.from.clear();  // it has the adapters of all layers
  TransformerTrainer trainer(random, mesh, at::kMeta);
  if (recorder && decisions.layout.size(kPipelineAxis) > 1) {
    trainer.on_action([&](const std::optional<PipelineAction>& action) { recorder->begin({action}); });
  }
  const int64_t host_ranks = hosts.gpus ? 1 : std::min(hosts.ranks_per_host, decisions.layout.size());
  const auto peak = [&] { return memory_of(trainer, memory.at_peak(), windows, host_ranks); };
  const auto make_step = [&](int64_t count) {
    memory.set(MetaMemory::kKept);
    const StepBatch batch = made_step(decisions, trainer.layout(), count, at::kMeta);
    mesh.traffic().clear();
    if (recorder) recorder->restart();
    memory.set(MetaMemory::kForward);
    memory.restart_peak();
    const double rate = decisions.optimizer.learning_rate;
    const CopyCosts copied_before = trainer.copy_costs();
    const int64_t activations_before = offloaded_activations(trainer).copied_activations;
    const StepOutcome outcome = trainer.compute_gradients(batch, batch.num_counted, {.learning_rate = rate});
    StepForecast step;
    step.gradients = peak();
    step.before_backward = memory.before_backward();
    memory.set(MetaMemory::kUpdate);
    memory.restart_peak();
    if (recorder) recorder->set(trainer.fsdp().is_offloaded() ? TimelinePart::HostUpdate : TimelinePart::Update);
    trainer.update(outcome, rate);
    if (recorder) {
      step.timeline = recorder->take();
      step.timeline.host_ranks = std::min(hosts.ranks_per_host, decisions.layout.size());
      recorder->set(TimelinePart::Gradients);
    }
    step.update = peak();
    const ShardMemory& memory_of_state = trainer.state_memory();  // of shards too, unless they stay
    const CopyCosts copied = trainer.copy_costs() - copied_before;
    step.offload = offloaded_activations(trainer);
    step.offload.copied_activations -= activations_before;
    step.offload.host = memory_of_state.host_bytes();
    step.offload.disk = memory_of_state.disk_bytes();
    step.offload.to_device = copied.to_device;
    step.offload.to_host = copied.to_host;
    step.traffic = mesh.traffic().entries();
    step.num_hosts = num_hosts;
    step.model_flops = flops_of(trainer, decisions);
    return step;
  };
  make_step(least_micro_batches(decisions));  // allocates the tensors that are kept, and begins with full parameters
  std::vector<StepForecast> steps;
  for (const int64_t count : micro_batches) steps.push_back(make_step(count));
  return steps;
}

}  // namespace meshtrain
