#pragma once

#include <string>
#include <vector>

#include "fsdp/flat_buffer.h"

namespace meshtrain {

/// Parameters that are reduced together: the embedding, a block, the head.
struct UnitSpec {
  std::string name;
  std::vector<Parameter*> parameters;  ///< stay where they are as long as the unit lives
};

/// A unit's storage, and how far its backward has come. A unit is complete when the gradients of all its trainable
/// parameters are final for this backward.
class Unit {
 public:
  Unit(UnitSpec spec, int64_t num_shards);

  const std::string& name() const { return name_; }
  std::vector<FlatBuffer>& buffers() { return buffers_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }

  int num_trainable() const { return num_trainable_; }
  void begin_backward() { num_final_ = 0; }
  /// One more parameter's gradient is final; true when it was the last.
  bool count_final() { return ++num_final_ == num_trainable_; }
  bool complete() const { return num_final_ >= num_trainable_; }

 private:
  std::string name_;
  std::vector<FlatBuffer> buffers_;
  int num_trainable_ = 0;
  int num_final_ = 0;
};

}  // namespace meshtrain
