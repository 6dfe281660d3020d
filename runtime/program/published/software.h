#pragma once

#include <string>

#include "runtime/program/forecast/simulation.h"
#include "runtime/program/forecast/timeline.h"
#include "runtime/program/published/table.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// What a training program does otherwise than ours, as far as time and memory depend on it. The values of a default
/// object are ours.
struct Software {
  enum class Elementwise {
    Fused,     ///< kernels for norms, rotation and SwiGLU, as ours
    Compiled,  ///< torch.compile's
    Eager,     ///< PyTorch's operators, one after the other
  };
  /// What a block computes again in the backward under selective checkpointing.
  enum class Selective {
    Elementwise,         ///< norms and SwiGLU, as ours
    EverySecondProduct,  ///< those and k, o and up: torchtitan, which keeps every second product
  };
  /// How long computing waits for collectives of tensor parallelism.
  enum class TensorParallel {
    BesideWeightGradients,  ///< one runs beside the weight gradient, as ours; the others are awaited
    Awaited,                ///< all are awaited at once
    Pipelined,              ///< pieces of each run beside the product that needs or makes it
  };

  std::string name = "meshtrain";
  Elementwise elementwise = Elementwise::Fused;
  Selective selective = Selective::Elementwise;
  TensorParallel tensor_parallel = TensorParallel::BesideWeightGradients;
  double attention_share = 1;      ///< of the rate of the machine's best attention kernels
  bool fp8_products = false;       ///< in blocks
  double fp8_cast_bytes = 0;       ///< read and written for each element that becomes fp8
  bool fp8_gathers = false;        ///< parameters of blocks are gathered in fp8
  bool hides_sharding = false;     ///< in a pipeline: shards are gathered and reduced beside other stages' work
  bool awaits_sharding = false;    ///< shards are gathered and reduced apart from all computing
  double shard_piece_seconds = 0;  ///< of the host for each rank's piece of each parameter, which it moves one by one
  bool fuses_expert_rows = false;  ///< experts' activation, weights and sums of rows are each one kernel, in registers
  bool sends_rows_once = false;  ///< a token's row goes once to a rank, and once to a host, whatever its experts there
  bool copies_units = false;     ///< gathered parameters and reduced gradients are copied into and out of buffers
  double logit_bytes_moved = 0;  ///< read and written for each logit beyond ours, by a loss on all logits at once
  double logit_bytes_kept = 0;   ///< memory of each logit at the peak; 0: chunks of them, as ours
  std::string reduce_dtype = "auto";       ///< as parallel.fsdp.reduce_dtype
  std::string context = "auto";            ///< as parallel.context.algorithm
  std::string sequence_parallel = "auto";  ///< as parallel.sequence_parallel
  bool allocates_gradients = false;        ///< in the backward: none exists yet when logits do
};

/// Returns what is known of the program of a published run, from words of its source and from its columns. A program
/// that is not known is taken for Megatron when it is fused, else for FSDP2 with PyTorch's operators.
Software software_of(const PublishedRun& run);

/// Returns `timeline`, of our program with signatures, as `software` makes it. `tokens`: of a micro-batch on a rank
/// and its tp peers.
Timeline translated(const Timeline& timeline, const Software& software, const PublishedRun& run,
                    const ModelShape& shape, int64_t tokens);

/// Returns the seconds of a step in which the hosts move pieces of parameters (Software::shard_piece_seconds).
double seconds_of_pieces(const Software& software, const PublishedRun& run);

/// Returns the bytes that a rank holds at the peak under `software`, given those of our program. `tokens` as above.
double translated_memory(const StepMemory& memory, const Software& software, const PublishedRun& run,
                         const ModelShape& shape, int64_t tokens);

}  // namespace meshtrain
