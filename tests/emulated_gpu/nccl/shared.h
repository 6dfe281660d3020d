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

/// The properties of a message on which both ends must agree.
struct Heading {
  int32_t kind = 0, type = 0, reduce = 0, root = 0, registered = 0;
  uint64_t count = 0;
  uint64_t windows = 0, input_offset = 0, output_offset = 0;  ///< Operation
  uint64_t number = 0;  ///< number of the operation in the communicator; 0 for sends and receives

  bool operator==(const Heading&) const = default;
};

/// A mailbox from one rank to another: full when `written` is ahead of `read`.
struct Mailbox {
  std::atomic<uint64_t> written, read;
  Heading heading;
  uint64_t offset, bytes;
  std::byte data[kChunkBytes];
};

/// The data of a rank for the others, once per meeting.
struct Note {
  int32_t kind = 0, color = 0, key = 0, device = 0;
  uint64_t bytes = 0;
  cudaUUID_t uuid{};
};

/// Waits until `is_there`, without using the processor all the time. Returns false when `gives_up` is true first.
bool wait_for(const std::function<bool()>& is_there, const std::function<bool()>& gives_up);

/// A communicator's file in shared memory. Its name is removed once all ranks have it open.
class Shared {
 public:
  Shared() = default;
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  /// Opens the file. Collective. Returns false when `gives_up`. Throws std::runtime_error.
  bool open(const std::string& name, int size, int rank, const std::function<bool()>& gives_up);

  Mailbox& mailbox(int from, int to) const;

  /// Collects every rank's note, by rank, into `notes`. Collective. Returns false when `gives_up`.
  bool meet(const Note& mine, Note* notes, const std::function<bool()>& gives_up);

  /// Ends a meeting. Collective, apart from meet().
  bool part(const std::function<bool()>& gives_up);

  /// Reports to the other ranks that this rank has failed.
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
