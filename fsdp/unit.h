#pragma once

#include <string>
#include <vector>

#include "fsdp/flat_buffer.h"

namespace meshtrain {

/// Parameters that are gathered and reduced together: the embedding, a block, the head.
struct UnitSpec {
  std::string name;
  std::vector<Parameter*> parameters;  ///< stay where they are as long as the unit lives
  bool whole_step = false;             ///< used at several places: gathered for a whole step, reduced at its end
};

/// A unit's storage, and how far its backward has come.
class Unit {
 public:
  Unit(UnitSpec spec, const Sharding& sharding);

  const std::string& name() const { return spec_.name; }
  const std::vector<Parameter*>& parameters() const { return spec_.parameters; }
  bool whole_step() const { return spec_.whole_step; }
  std::vector<FlatBuffer>& buffers() { return buffers_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }

  /// Those of its buffers that are trained.
  std::vector<FlatBuffer*> trainable();

  int num_trainable() const { return num_trainable_; }
  void begin_backward() { num_final_ = 0; }
  /// One more parameter's gradient is final; true when it was the last.
  bool count_final() { return ++num_final_ == num_trainable_; }
  /// The gradients of all its trainable parameters are final for this backward.
  bool complete() const { return num_final_ >= num_trainable_; }

 private:
  UnitSpec spec_;
  std::vector<FlatBuffer> buffers_;
  int num_trainable_ = 0;
  int num_final_ = 0;
};

/// Every buffer of `units` that is trained, in their order: whose shards an optimizer changes.
std::vector<const FlatBuffer*> trainable_buffers(const std::vector<Unit>& units);

}  // namespace meshtrain
