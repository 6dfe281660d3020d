#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "context_parallel/choice.h"
#include "mesh/backends/nccl/options.h"
#include "mesh/layout.h"
#include "runtime/model/recompute.h"
#include "runtime/recipe/recipe.h"
#include "runtime/recipe/sharding.h"

namespace meshtrain {

/// The dtypes of a run, and how it keeps halves from losing small numbers (train.precision).
struct Precision {
  at::ScalarType compute = at::kFloat;             ///< of activations, and of parameters as layers see them
  bool mixed = false;                              ///< shards are fp32 and are rounded to `compute` for the layers
  at::ScalarType mixed_reduce = at::kFloat;        ///< mixed: the dtype in which gradients are summed between ranks
  std::optional<LossScaleRecipe> loss_scale = {};  ///< fp16_mixed: the number that the backward starts from
  bool stochastic_rounding = false;                ///< of the optimizer's results: bf16 alone
};

/// Where shards, their gradients and the optimizer's state lie.
enum class Offload { None, Host, Disk };

/// The device and the transport that a recipe asks for.
struct DeviceRequest {
  enum class Kind { Auto, Cpu, Cuda };
  enum class Transport { Auto, Mpi, Nccl };

  Kind kind = Kind::Auto;
  Transport transport = Transport::Auto;
  std::string cpu_only = {};   ///< "train.offload_activations: true": the setting, if any, that only
                               ///< CPUs can do, for which `Auto` is the CPU
  std::string allocator = {};  ///< settings of a GPU's allocator: CudaPlugin::set_allocator()
  NcclBuffers nccl_buffers = NcclBuffers::Off;
  bool two_queues = false;  ///< NcclOptions::two_queues
};

/// Everything that a recipe leaves to the mesh, the model and the batch, decided once: the floors below are built from
/// it, and nobody else reads those words of the recipe.
struct RunPlan {
  MeshLayout layout;
  Precision precision;
  ShardingChoice sharding;
  ContextChoice context;
  bool sequence_parallel = false;  ///< the residual stream is cut over tp
  Recomputation recomputation;
  Offload offload = Offload::None;
  DeviceRequest device;
};

/// Checks what the mesh, the model and the batch demand of each other, and decides: `auto` becomes a value. `layout`
/// has the axes dp, tp and cp. No communication; every rank comes to the same result. Throws InputError naming keys,
/// with their places where the recipe knows them, and numbers.
RunPlan resolve(const Recipe& recipe, const MeshLayout& layout);

/// The plan as YAML: `train --check` prints it, RUN_DIR/plan.yaml keeps it.
std::string to_yaml(const RunPlan& plan);

/// "fp32" -> at::kFloat, ...; of a mixed precision the dtype in which parameters are used: "bf16_mixed" ->
/// at::kBFloat16.
at::ScalarType dtype_of(const std::string& precision);

/// "auto", "cpu", "cuda", as the key `device` and --device have it.
DeviceRequest::Kind device_kind(const std::string& word);

}  // namespace meshtrain
