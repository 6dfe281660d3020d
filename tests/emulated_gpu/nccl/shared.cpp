#include "shared.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

namespace meshtrain::emulated {

struct Shared::Header {
  std::atomic<int32_t> arrived, sizes, parted, failed;
  std::atomic<uint64_t> come, gone;  ///< ranks that have entered and left meetings, summed over all meetings
  std::atomic<int32_t> is_taken[kMostRanks];
  Note notes[kMostRanks];
};

bool wait_for(const std::function<bool()>& is_there, const std::function<bool()>& gives_up) {
  for (int turn = 0; !is_there(); ++turn) {
    if (gives_up()) return false;
    if (turn < 100) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

Shared::~Shared() {
  if (header_ != nullptr) munmap(header_, bytes_);
}

bool Shared::open(const std::string& name, int size, int rank, const std::function<bool()>& gives_up) {
  size_ = size;
  rank_ = rank;
  bytes_ = sizeof(Header) + sizeof(Mailbox) * static_cast<size_t>(size * size);
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  // New bytes are zeros, the initial value of everything.
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) throw std::runtime_error("no shared memory");
  void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
  header_ = static_cast<Header*>(memory);
  if (header_->is_taken[rank].exchange(1) != 0) {
    throw std::runtime_error("rank " + std::to_string(rank) + " is there twice");
  }
  int32_t first = 0;
  if (!header_->sizes.compare_exchange_strong(first, size) && first != size) {
    throw std::runtime_error("ranks of a communicator of " + std::to_string(first) + " and of " + std::to_string(size));
  }
  if (++header_->arrived == size) shm_unlink(name.c_str());
  const bool all_came = wait_for([&] { return header_->arrived == size; }, gives_up);
  if (!all_came) shm_unlink(name.c_str());
  return all_came;
}

Mailbox& Shared::mailbox(int from, int to) const {
  return reinterpret_cast<Mailbox*>(header_ + 1)[from * size_ + to];
}

bool Shared::meet(const Note& mine, Note* notes, const std::function<bool()>& gives_up) {
  const uint64_t all = static_cast<uint64_t>(size_) * ++meetings_;
  // Nobody may still read the notes of the last meeting.
  if (!wait_for([&] { return header_->gone >= all - static_cast<uint64_t>(size_); }, gives_up)) return false;
  header_->notes[rank_] = mine;
  ++header_->come;
  if (!wait_for([&] { return header_->come >= all; }, gives_up)) return false;
  for (int rank = 0; rank < size_; ++rank) notes[rank] = header_->notes[rank];
  ++header_->gone;
  return true;
}

bool Shared::part(const std::function<bool()>& gives_up) {
  ++header_->parted;
  return wait_for([&] { return header_->parted >= size_; }, gives_up);
}

void Shared::fail() const {
  header_->failed = 1;
}

bool Shared::has_failed() const {
  return header_ != nullptr && header_->failed != 0;
}

}  // namespace meshtrain::emulated
