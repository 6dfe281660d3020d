#pragma once

#include "context_parallel/attention.h"
#include "context_parallel/sequence_layout.h"
#include "runtime/model/key_value_cache.h"
#include "runtime/model/rope.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// How a model is cut: what its layers are built with.
struct Parallelism {
  TensorParallel tensor;
  Group context;
  ContextAlgorithm context_algorithm = ContextAlgorithm::Ring;
};

/// The tokens of a micro-batch as attention sees them: B sequences, of which this rank holds s positions each. With a
/// cache they go on from the positions in it: B = 1, s tokens, whole on this rank.
struct Sequence {
  SequenceLayout layout;
  Rotary rotary;  ///< of layout.positions(), or of positions that begin at 0 in each of layout.documents(), or at the
                  ///< cache's length
  KeyValueCache* cache = nullptr;  ///< of earlier positions, and then of these; null: there are none
};

}  // namespace meshtrain
