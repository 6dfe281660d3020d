#include "runtime/program/forecast/calibrate_host.h"

#include "mesh/device/aten.h"
#include "mesh/device/copy_stream.h"
#include "mesh/device/pinned_memory.h"
#include "mesh/device_mesh.h"
#include "runtime/program/forecast/measured_seconds.h"
#include "runtime/program/forecast/simulation.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {
namespace {

constexpr int64_t kCopiedElements = int64_t{1} << 26;

double copy_rate(const Group& world, const at::Tensor& to, const at::Tensor& from, CopyDirection direction,
                 at::Device device) {
  CopyStream stream(device);
  const double seconds = seconds_of(world, [&] {
    stream.copy(to, from, direction);
    stream.mark().synchronize();
  });
  return static_cast<double>(from.nbytes()) / seconds;
}

/// Returns the decisions for a model of 72 million parameters, larger than caches, and one short sample.
Decisions updated_decisions(Offload offload) {
  ModelShape shape;
  shape.hidden_size = 1024;
  shape.intermediate_size = 4096;
  shape.num_hidden_layers = 4;
  shape.num_attention_heads = 16;
  shape.num_key_value_heads = 4;
  shape.head_dim = 64;
  shape.vocab_size = 8192;
  TrainingOptions options{{.shape = shape,
                           .batch = {.sequence_length = 16, .global_batch = 1},
                           .precision = {.compute = at::kBFloat16, .residual = at::kBFloat16, .mixed = true},
                           .sharding = {.mode = ShardingMode::FullShard, .num_ranks = 1},
                           .offload = offload},
                          {}};
  return {std::move(options), MeshLayout({{kDataAxis, 1}, {kContextAxis, 1}, {kTensorAxis, 1}}), {}};
}

/// Returns the bytes that the host reads and writes in an update, as forecasts count them.
double update_bytes() {
  const StepForecast step =
      simulate(updated_decisions(Offload::Host), {.ranks_per_host = 1, .gpus = true}, 0, {1}, Recording::Timeline)
          .front();
  double bytes = 0;
  for (const Timeline::Event& event : step.timeline.events) {
    const auto* const call = std::get_if<OperatorCall>(&event);
    if (call != nullptr && call->part == TimelinePart::HostUpdate) bytes += call->bytes;
  }
  return bytes;
}

double update_rate(const Group& world) {
  const Decisions decisions = updated_decisions(Offload::None);
  const DeviceMesh alone(decisions.layout, Group());
  TransformerTrainer trainer(decisions, alone, at::kCPU);
  const StepBatch batch = made_step(decisions, trainer.layout(), 1, at::kCPU);
  const StepOutcome outcome = trainer.compute_gradients(batch, batch.num_counted, {.learning_rate = 1e-3});
  return update_bytes() / seconds_of(world, [&] { trainer.update(outcome, 1e-3); });
}

}  // namespace

HostRates measure_host(const Group& world, at::Device device) {
  HostRates rates;
  {
    const at::Tensor host = pinned_zeros(kCopiedElements, at::kFloat, device, "free host memory");
    const at::Tensor gpu = at::zeros({kCopiedElements}, at::TensorOptions(device).dtype(at::kFloat));
    rates.to_gpu = copy_rate(world, gpu, host, CopyDirection::ToDevice, device);
    rates.to_host = copy_rate(world, host, gpu, CopyDirection::ToHost, device);
  }
  rates.update = update_rate(world);
  return rates;
}

}  // namespace meshtrain
