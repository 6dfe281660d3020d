#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace meshtrain::emulated {

constexpr int kMostRanks = 64;
constexpr size_t kChunkBytes = 64 << 10;

/// What both ends of a message have to agree on.
struct Heading {
  int32_t kind = 0, type = 0, reduce = 0, root = 0, registered = 0;
  uint64_t count = 0;
  uint64_t windows = 0, input_place = 0, output_place = 0;  ///< Operation
  uint64_t number = 0;  ///< which operation of the communicator it is; of sends and receives: 0

  bool operator==(const Heading&) const = default;
};

/// From one rank to another: full when `written` is ahead of `read`.
struct Mailbox {
  std::atomic<uint64_t> written, read;
  Heading heading;
  uint64_t offset, bytes;
  std::byte data[kChunkBytes];
};

/// What a rank tells the others, once for each meeting.
struct Note {
  int32_t kind = 0, color = 0, key = 0, device = 0;
  uint64_t bytes = 0;
  cudaUUID_t uuid{};
};

/// Waits until `is_there`, without taking the processor for itself; false when `gives_up` says so first.
bool wait_for(const std::function<bool()>& is_there, const std::function<bool()>& gives_up);

/// A communicator's file in shared memory. Its name is gone once all ranks have it open.
class Shared {
 public:
  Shared() = default;
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  /// Collective. False when `gives_up`. Throws std::runtime_error.
  bool open(const std::string& name, int size, int rank, const std::function<bool()>& gives_up);

  Mailbox& mailbox(int from, int to) const;

  /// Collective: everyone's note, by rank, into `notes`. False when `gives_up`.
  bool meet(const Note& mine, Note* notes, const std::function<bool()>& gives_up);

  /// Collective, apart from meet().
  bool part(const std::function<bool()>& gives_up);

  /// A rank has failed: the others learn of it.
  void fail() const;
  bool has_failed() const;

 private:
  struct Header;

  Header* header_ = nullptr;
  size_t bytes_ = 0;
  int size_ = 0, rank_ = 0;
  uint64_t meetings_ = 0;
};

}  // namespace meshtrain::emulated
