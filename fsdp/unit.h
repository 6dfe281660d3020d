#pragma once

#include <string>
#include <vector>

#include "fsdp/flat_buffer.h"

namespace meshtrain {

/// Parameters that are gathered and reduced together: the embedding, a block, the head.
struct UnitSpec {
  std::string name;
  std::vector<Parameter*> parameters;  ///< must outlive the unit and not move
  bool whole_step = false;             ///< used in several forwards: gathered for a whole step, reduced at its end
  bool is_copy = false;                ///< another stage of a pipeline owns the same parameters
};

/// The storage of a unit, and the progress of its backward.
class Unit {
 public:
  Unit(UnitSpec spec, Sharding sharding);

  const std::string& name() const { return spec_.name; }
  const std::vector<Parameter*>& parameters() const { return spec_.parameters; }
  bool whole_step() const { return spec_.whole_step; }
  std::vector<FlatBuffer>& buffers() { return buffers_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }

  /// Returns the buffers that are trained.
  std::vector<FlatBuffer*> trainable();

  int num_trainable() const { return num_trainable_; }
  /// Returns the number of parameters with deferred gradients.
  int num_deferred() const;
  void begin_backward() { num_final_ = 0; }
  /// Counts one more parameter whose gradient is final. Returns true when it was the last.
  bool count_final() { return ++num_final_ == num_trainable_; }
  /// Returns true when the gradients of all trainable parameters are final for this backward.
  bool complete() const { return num_final_ >= num_trainable_; }

 private:
  UnitSpec spec_;
  std::vector<FlatBuffer> buffers_;
  int num_trainable_ = 0;
  int num_final_ = 0;
};

/// Returns the device on which `units`, at least one, compute.
at::Device device_of(const std::vector<Unit>& units);
/// Returns the trained buffers of `units`, in their order: an optimizer changes their shards.
std::vector<const FlatBuffer*> trainable_buffers(const std::vector<Unit>& units);

}  // namespace meshtrain
