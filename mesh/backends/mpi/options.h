#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace meshtrain {

struct MpiOptions {
  /// The largest message. Longer tensors travel in pieces of this many bytes, several in flight. It also keeps every
  /// count that MPI sees far below 2^31. At least 1; a piece holds one element at the least.
  int64_t piece_bytes = 4 << 20;
  /// The most bytes that a rank may hold in windows, memory that ranks of one host share (Group::allocate), and in
  /// the boards of its groups: beyond it collectives go through MPI. The environment's MESHTRAIN_WINDOW_MIB lowers it.
  int64_t window_bytes = std::numeric_limits<int64_t>::max();
  /// The most ranks that talk to each other directly. With more, a short call goes through a tree of runs of this many
  /// consecutive ranks, and in each step of a longer one a rank talks to at most this many (RankTree, RankGrid). At
  /// least 2. For tests.
  int fan_out = 16;
  /// A number for the host of each rank of the world; empty: as MPI finds them. For tests.
  std::vector<int> hosts = {};
};

}  // namespace meshtrain
