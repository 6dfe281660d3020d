#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "context_parallel/choice.h"
#include "mesh/backends/nccl/options.h"
#include "mesh/layout.h"
#include "mesh/wording.h"
#include "runtime/model/recompute.h"
#include "runtime/recipe/recipe.h"
#include "runtime/recipe/sharding.h"

namespace meshtrain {

/// The dtypes of a run, and how a run in a half precision keeps small numbers (train.precision).
struct Precision {
  at::ScalarType compute = at::kFloat;             ///< dtype of activations, and of parameters in the layers
  at::ScalarType residual = at::kFloat;            ///< dtype of the residual stream: `compute`, or wider
  bool mixed = false;                              ///< keeps shards in fp32 and rounds them to `compute` for the layers
  at::ScalarType reduce = at::kFloat;              ///< dtype in which gradients are added up and reduced
  at::ScalarType state = at::kFloat;               ///< dtype of the optimizer's state
  std::optional<LossScaleRecipe> loss_scale = {};  ///< factor of the loss before the backward, for fp16_mixed
  bool stochastic_rounding = false;                ///< rounds the optimizer's results stochastically, for bf16 only
};

/// The memory that holds shards, their gradients and the optimizer's state.
enum class Offload { None, Host, Disk };

/// The device and the transport that a recipe requests.
struct DeviceRequest {
  enum class Kind { Auto, Cpu, Cuda };
  enum class Transport { Auto, Mpi, Nccl };

  Kind kind = Kind::Auto;
  Transport transport = Transport::Auto;
  std::optional<Setting> cpu_only = {};  ///< the setting of the recipe that is supported only on CPUs, if any; with it,
                                         ///< `Auto` chooses the CPU
  std::string allocator = {};            ///< settings of a GPU's allocator: CudaPlugin::set_allocator()
  NcclBuffers nccl_buffers = NcclBuffers::Off;
  bool two_queues = false;  ///< NcclOptions::two_queues
};

/// All decisions that a recipe leaves to the mesh, the model and the batch, made once. The floors below are built from
/// the plan and do not read those words of the recipe.
struct RunPlan {
  MeshLayout layout;
  Precision precision;
  ShardingChoice sharding;
  ContextChoice context;
  bool sequence_parallel = false;  ///< cuts the residual stream over tp
  Recomputation recomputation;
  Offload offload = Offload::None;
  DeviceRequest device;
};

/// Checks the recipe against the mesh, the model and the batch, and decides: `auto` becomes a value. `layout` has the
/// axes dp, tp and cp. No communication; every rank gets the same result. Throws InputError with the keys, their
/// locations when the recipe knows them, and the numbers.
RunPlan resolve(const Recipe& recipe, const MeshLayout& layout);

/// Returns the plan as YAML, which `train --check` prints and RUN_DIR/plan.yaml keeps.
std::string to_yaml(const RunPlan& plan);

/// Returns the dtype of a precision: "fp32" -> at::kFloat, ...; for a mixed precision the dtype in which parameters are
/// used: "bf16_mixed" -> at::kBFloat16.
at::ScalarType dtype_of(const std::string& precision);

/// Returns the device for a value of the key `device` or of --device: "auto", "cpu", "cuda".
DeviceRequest::Kind device_kind(const std::string& word);

}  // namespace meshtrain
