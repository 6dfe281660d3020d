#pragma once

#include <memory>

#include "context_parallel/attention.h"
#include "context_parallel/sequence_layout.h"
#include "expert_parallel/router_pass.h"
#include "runtime/training/model/key_value_cache.h"
#include "runtime/training/model/operators/rope.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// The parallelism that a model's layers are built with.
struct Parallelism {
  TensorParallel tensor;
  Group context;
  ContextAlgorithm context_algorithm = ContextAlgorithm::Ring;
  Group experts = {};  ///< ep, over which the experts of a layer are cut
};

/// The tokens of a micro-batch as attention sees them: B sequences, of which this rank holds s positions each. With a
/// cache they follow the positions in it; then B = 1, and this rank holds all s tokens.
struct Sequence {
  SequenceLayout layout;
  Rotary rotary;  ///< of layout.positions(), or of positions that begin at 0 in each of layout.documents(), or at the
                  ///< cache's length
  Rotary local_rotary = {};        ///< of sliding layers with a theta of their own; without tensors where none has
  KeyValueCache* cache = nullptr;  ///< holds earlier positions, and these after the forward; null: no cache
  at::Tensor tokens = {};          ///< int64 [T]: a number for each token that is unique in the run, from which dropout
                                   ///< draws; undefined: adapters drop nothing
  std::shared_ptr<RouterPass> routers = {};  ///< in training: takes part in routing; null: routers choose alone
};

}  // namespace meshtrain
