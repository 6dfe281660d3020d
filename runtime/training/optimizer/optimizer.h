#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/parameter_group.h"
#include "runtime/training/optimizer/operators/stochastic_rounding.h"
#include "runtime/training/optimizer/options.h"
#include "runtime/training/optimizer/shard_tensor.h"
#include "runtime/training/optimizer/state_pager.h"

namespace meshtrain {

/// Reads a scalar on the host, which waits until a GPU has computed it; 0 on the Meta device, which computes nothing.
inline double host_value(const at::Tensor& scalar) {
  return scalar.is_meta() ? 0 : scalar.item().toDouble();
}

/// Reads a flag on the host; one that is not defined is false.
inline bool is_true(const at::Tensor& flag) {
  return flag.defined() && host_value(flag) != 0;
}

/// The inputs of an update besides gradients: scalars on their device, so that the host need not wait for their values.
struct UpdateInputs {
  at::Tensor learning_rate;         ///< fp64
  at::Tensor gradient_factor = {};  ///< fp64; multiplies the gradients, in place or on their way into the
                                    ///< update; undefined: 1, and gradients are not changed
  at::Tensor skip = {};             ///< bool; true: nothing is changed, nor are gradients; undefined: false
};

/// An optimizer: updates the shards of flat buffers from those of their gradients. Its state is in buffers of the same
/// layout. Frozen parameters have no state.
class Optimizer {
 public:
  /// `groups`: at least one; all may be frozen. They must outlive this.
  explicit Optimizer(const std::vector<ParameterGroup>& groups);
  virtual ~Optimizer() = default;

  /// Updates everything trainable, after gradients have been reduced. Every rank must call it.
  void step(const UpdateInputs& inputs);
  void step(double learning_rate) { step(inputs_of(learning_rate)); }

  /// Returns the inputs on the device of the parameters.
  UpdateInputs inputs_of(double learning_rate) const;

  /// Returns true when an update also writes FlatBuffer::rounded_shard() of every trainable buffer that has one.
  virtual bool rounds() const { return false; }

  /// Returns the state that this rank keeps between steps, under its names in checkpoints. Call finish_copies() before
  /// the host uses its values.
  virtual std::vector<ShardTensor> state() const = 0;
  /// Returns the pagers through which an update uses state that is not on the GPU of the shards (Fsdp::pages_state()).
  /// Trainer refuses an optimizer that has such state and no pager.
  virtual std::vector<StatePager*> pagers() const { return {}; }
  /// Returns when state() has the values of the last update.
  void finish_copies() const;
  /// Returns the costs of copying state between host and GPU so far.
  CopyCosts copy_costs() const;
  /// Returns the bytes of device memory through which state is paged; 0 without paging.
  int64_t paging_bytes() const;
  /// Returns the number of updates so far, without those that were skipped. Waits for the last.
  int64_t num_steps() const;
  /// Sets the number of updates. Call it after state() was restored, or the first update would use wrong bias
  /// corrections.
  virtual void resume(int64_t num_steps);

  /// Makes updates report units whose shards have their new values (Fsdp::unit_changed()), so that offloaded shards are
  /// copied to the device while the next ones are updated. Call it for the complete optimizer, not for its parts.
  void report_updates() { reports_ = true; }

 protected:
  /// Performs the update of step(), which has counted it already.
  virtual void update(const UpdateInputs& inputs) = 0;
  /// Reports that the trained buffers before `next`, in the order of trainable_buffers(), have their new values;
  /// nullptr: all buffers. An update must call it either for every buffer that it updates, in this order, or never.
  /// Throws std::logic_error when `next` comes before an earlier call's.
  void updated_before(const FlatBuffer* next);
  /// Returns num_steps() as a scalar on the device, fp32 as LibTorch's optimizers have it.
  const at::Tensor& count() const { return count_; }

 private:
  struct TrainedBuffer {
    Fsdp* fsdp;
    size_t unit;
    const FlatBuffer* buffer;
    bool ends_unit;  // the unit's last trained buffer
  };

  std::vector<TrainedBuffer> trained_;
  bool reports_ = false;
  size_t num_updated_ = 0;  // buffers of trained_ that have the new values of this update
  at::Tensor count_;
};

/// Returns zeros for the state of `values`, which belong to `group`, in the memory of Fsdp::state_memory().
inline at::Tensor zero_state(const OptimizerOptions& options, const ParameterGroup& group, const at::Tensor& values) {
  const at::TensorOptions on_device(device_of(group.fsdp->units()));
  return group.fsdp->state_memory().zeros(values.numel(),
                                          on_device.dtype(options.state_dtype.value_or(values.scalar_type())));
}

/// A function that makes an optimizer over the trainable buffers of `groups`, which must outlive the optimizer.
/// `rounding`: of weights and state in bf16; none: rounding to the nearest. Not collective. Derive the optimizer from
/// Optimizer or BoxOptimizer.
using OptimizerFactory =
    std::function<std::unique_ptr<Optimizer>(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
                                             const std::optional<StochasticRounding>& rounding)>;

/// Facts about an optimizer that forecasts and checks need before one is made.
struct OptimizerTraits {
  /// Returns the number of elements in Optimizer::state() for each element of a parameter. A check of the disk needs
  /// it.
  std::function<int64_t(const OptimizerOptions& options, const Parameter& parameter)> state_elements;
  bool by_element = true;              ///< updates each element by itself; a forecast then simulates only some layers
  bool rounds_stochastically = false;  ///< uses the factory's `rounding`
  bool on_device = false;              ///< the host takes no part in updates, so that a step can be a recorded graph
  bool second_moments = false;         ///< keeps averages of squares that decay by betas[1]
};

/// Registers an optimizer under a name for OptimizerOptions::name and recipes. Call it on every rank, before the first
/// recipe is read and while no other thread reads the names. Throws std::invalid_argument when another optimizer has
/// the name.
void register_optimizer(const std::string& name, OptimizerFactory make, OptimizerTraits traits);
/// Returns the traits of the optimizer `name`. Throws InputError when no optimizer has that name.
const OptimizerTraits& optimizer_traits(const std::string& name);
/// Returns the names of all optimizers: adamw, sgd, muon, then the others in the order of registration.
std::vector<std::string> optimizer_names();

/// Makes the optimizer named by `options`. Throws InputError when no optimizer has that name.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
                                          const std::optional<StochasticRounding>& rounding = {});

}  // namespace meshtrain
