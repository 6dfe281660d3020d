#include "runtime/train/watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "mesh/agree.h"
#include "mesh/backends/mpi.h"

namespace meshtrain {
namespace {

constexpr std::chrono::milliseconds kPause{50};
constexpr int kLooks = 3;  // before a rank is given up: where all are ended together nobody needs to tell

using Text = std::array<char, 192>;

void write(const std::string& from, Text& into) {
  const size_t count = std::min(from.size(), into.size() - 1);
  std::memcpy(into.data(), from.data(), count);
  into[count] = 0;
}

/// What a rank tells those of its host. Zeros: one of another host, or one that has ended.
struct Slot {
  std::atomic<int64_t> process;
  uint64_t space;  ///< in which the number means a process: that of a container
  Text name;
  Text place;
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

uint64_t process_space() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? static_cast<uint64_t>(about.st_ino) : 0;
}

/// Zombies, which some containers never clear away, are gone as well.
bool is_gone(int64_t process) {
  if (kill(static_cast<pid_t>(process), 0) != 0) return errno == ESRCH;
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');  // of the program's name
  const char state = end != std::string::npos && end + 2 < text.size() ? text[end + 2] : 'R';
  return state == 'Z' || state == 'X';
}

}  // namespace

/// Shared by the ranks of a host, gone with the last of them.
class Watch::Board {
 public:
  /// Those of one host open the same object under `name`.
  Board(const std::string& name, int size, int rank) : size_(size), rank_(rank) {
    const size_t bytes = sizeof(std::atomic<bool>) + alignof(Slot) + static_cast<size_t>(size) * sizeof(Slot);
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0) {
      void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (memory != MAP_FAILED) memory_ = memory;
    }
    close(file);
    bytes_ = bytes;
  }
  ~Board() {
    if (memory_ == nullptr) return;
    own().process = 0;
    munmap(memory_, bytes_);
  }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  bool there() const { return memory_ != nullptr; }
  Slot& own() const { return slot(rank_); }
  /// The next rank of this host that has not ended, as far as it can be seen; itself when there is none.
  Slot& next() const {
    for (int offset = 1; offset < size_; ++offset) {
      Slot& other = slot((rank_ + offset) % size_);
      if (other.process != 0 && other.space == own().space) return other;
    }
    return own();
  }
  /// True for the first that asks.
  bool may_tell() const { return !static_cast<std::atomic<bool>*>(memory_)->exchange(true); }

 private:
  Slot& slot(int rank) const { return reinterpret_cast<Slot*>(static_cast<std::byte*>(memory_) + alignof(Slot))[rank]; }

  int size_;
  int rank_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

Watch::Watch(const Group& world, std::function<std::string()> place) : place_(std::move(place)) {
  if (world.size() == 1) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string name = broadcast_text(world, "/meshtrain-" + std::to_string(getpid()) + "-" + std::to_string(now));
  board_ = std::make_unique<Board>(name, world.size(), world.rank());
  if (board_->there()) {
    Slot& own = board_->own();
    write(world.place(), own.name);
    write(place_(), own.place);
    own.space = process_space();
    own.process = getpid();
  }
  world.barrier();  // every rank has opened it
  shm_unlink(name.c_str());
  if (board_->there()) thread_ = std::thread([this] { look(); });
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_one();
  thread_.join();
}

// Each looks at the next: every rank is seen by one.
void Watch::look() {
  int missing = 0;  // looks in a row
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, kPause, [this] { return ends_; })) {
    write(place_(), board_->own().place);
    const Slot& next = board_->next();
    const int64_t process = next.process;
    missing = process != 0 && is_gone(process) && next.process == process ? missing + 1 : 0;
    if (missing < kLooks || !board_->may_tell()) continue;
    std::fflush(stdout);
    std::fprintf(stderr,
                 "meshtrain: %s is gone without a word, killed from outside or for want of memory; it was in %s\n",
                 next.name.data(), next.place.data());
    abort_mpi(1);
  }
}

}  // namespace meshtrain
