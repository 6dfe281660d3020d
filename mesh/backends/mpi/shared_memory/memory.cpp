#include "mesh/backends/mpi/shared_memory/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "mesh/backends/mpi/call.h"
#include "mesh/base/available_memory.h"
#include "mesh/base/size_text.h"
#include "mesh/host_map.h"

namespace meshtrain {
namespace {

std::atomic<int64_t> held_bytes = 0;  // of this rank, in all mappings

/// The bytes that a rank reserves at a time: so much of the host's memory is counted twice meanwhile.
constexpr int64_t kSliceBytes = 32 << 20;

/// A file descriptor that closes itself.
class File {
 public:
  explicit File(int number = -1) : number_(number) {}
  ~File() {
    if (number_ >= 0) close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

/// The message by which a host's first rank names the memory to the others.
struct Ticket {
  int64_t process = 0;
  int64_t file = -1;
  uint64_t inode = 0;
  uint64_t id = 0;
};

/// Sends `ticket` of the first rank of a host to the others there, and to no other host.
Ticket share_ticket(MPI_Comm comm, const HostLayout& layout, int leader, Ticket ticket) {
  if (layout.local_rank != 0) {
    check_mpi(MPI_Recv(&ticket, sizeof ticket, MPI_BYTE, leader, 0, comm, MPI_STATUS_IGNORE), "MPI_Recv");
    return ticket;
  }
  for (int local_rank = 1; local_rank < layout.local_size; ++local_rank) {
    check_mpi(MPI_Send(&ticket, sizeof ticket, MPI_BYTE, layout.rank_at(layout.host, local_rank), 0, comm), "MPI_Send");
  }
  return ticket;
}

/// Returns the problem of the lowest rank that has one, on all of them; empty when none has. Only a number is sent when
/// no rank has a problem.
std::string first_problem(MPI_Comm comm, int rank, int size, const std::string& problem) {
  const int mine = problem.empty() ? 0 : size - rank;
  int largest = 0;
  check_mpi(MPI_Allreduce(&mine, &largest, 1, MPI_INT, MPI_MAX, comm), "MPI_Allreduce");
  if (largest == 0) return "";
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), "%s", problem.c_str());
  check_mpi(MPI_Bcast(text.data(), static_cast<int>(text.size()), MPI_BYTE, size - largest, comm), "MPI_Bcast");
  return text.data();
}

/// Bytes that ranks of this host were promised and have not reserved yet, in memory of them all.
using Counter = std::atomic<int64_t>;
static_assert(Counter::is_always_lock_free);
Counter* promised_bytes = nullptr;

/// Promises `bytes` to a group when the host has them beside earlier promises; returns the bytes it has otherwise.
std::optional<int64_t> shortage(int64_t bytes) {
  // Before what is available is read: bytes that others reserve in between count twice, not never.
  const int64_t others = promised_bytes ? promised_bytes->fetch_add(bytes) : 0;
  const int64_t left = std::max<int64_t>(available_host_memory() - others, 0);
  if (bytes <= left) return std::nullopt;
  if (promised_bytes) promised_bytes->fetch_sub(bytes);
  return left;
}

/// This rank's part of its group's promise.
class Promise {
 public:
  explicit Promise(int64_t bytes) : bytes_(bytes) {}
  ~Promise() { end(bytes_); }
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

  /// Takes back `bytes` of the promise: they are reserved, or never will be.
  void end(int64_t bytes) {
    bytes_ -= bytes;
    if (promised_bytes) promised_bytes->fetch_sub(bytes);
  }

 private:
  int64_t bytes_;
};

/// Reserves this rank's part of the file and maps the complete file. Returns the reason when that fails, else an empty
/// text.
std::string reserve(const File& file, const Ticket& ticket, const HostLayout& layout, int64_t rank_bytes,
                    Promise& promise, std::byte*& base) {
  const auto failed = [](const std::string& what) { return what + " failed: " + std::strerror(errno); };
  struct stat found {};
  if (!file.is_open()) return failed("opening the memory of another rank through /proc");
  if (fstat(file.number(), &found) != 0) return failed("fstat");
  const int64_t bytes = rank_bytes * layout.local_size;
  if (found.st_ino != ticket.inode || found.st_size != bytes) {
    return "/proc shows another file: the ranks do not share one process namespace";
  }
  for (int64_t done = 0; done < rank_bytes;) {
    const int64_t size = std::min(kSliceBytes, rank_bytes - done);
    errno = posix_fallocate(file.number(), layout.local_rank * rank_bytes + done, size);
    if (errno != 0) return failed("reserving the memory");
    promise.end(size);
    done += size;
  }
  void* const address = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (address == MAP_FAILED) return failed("mmap");
  base = static_cast<std::byte*>(address);
  return "";
}

}  // namespace

HostLayout HostLayout::of(const std::vector<int>& hosts_of_ranks, int rank) {
  const HostMap map(hosts_of_ranks);
  HostLayout layout{map.num_hosts(), map.host_of(rank), static_cast<int>(map.ranks_of(0).size()), map.local_rank(rank)};
  layout.ranks.clear();
  for (int host = 0; host < layout.hosts; ++host) {
    const std::vector<int>& ranks = map.ranks_of(host);
    if (static_cast<int>(ranks.size()) != layout.local_size)
      return apart(static_cast<int>(hosts_of_ranks.size()), rank);
    layout.ranks.insert(layout.ranks.end(), ranks.begin(), ranks.end());
  }
  return layout;
}

HostLayout HostLayout::apart(int size, int rank) {
  HostLayout layout{size, rank, 1, 0};
  layout.ranks.resize(static_cast<size_t>(size));
  std::iota(layout.ranks.begin(), layout.ranks.end(), 0);
  return layout;
}

bool HostLayout::has_this_local_rank(int rank) const {
  for (int other = 0; other < hosts; ++other) {
    if (rank_at(other, local_rank) == rank) return true;
  }
  return false;
}

uint64_t HostLayout::order(int fan_out) const {
  if (local_size == 1 || (hosts == 1 && local_size <= fan_out)) return 0;
  uint64_t number = 14695981039346656037U;  // FNV-1a, of local_size and ranks
  const auto take = [&](int value) { number = (number ^ static_cast<uint64_t>(value)) * 1099511628211U; };
  take(local_size);
  for (const int rank : ranks) take(rank);
  return number;
}

HostMapping::HostMapping(std::byte* base, int64_t bytes, int64_t rank_bytes, uint64_t id)
    : base_(base), bytes_(bytes), rank_bytes_(rank_bytes), id_(id) {
  held_bytes += rank_bytes_;
}

HostMapping::~HostMapping() {
  munmap(base_, static_cast<size_t>(bytes_));
  held_bytes -= rank_bytes_;
}

SharedMemory share_memory(MPI_Comm comm, const HostLayout& layout, int64_t rank_bytes, int64_t rank_limit) {
  int size = 1;
  int rank = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  const int leader = layout.rank_at(layout.host, 0);
  const int64_t bytes = rank_bytes * layout.local_size;

  // 1. The first rank of each host makes the memory and says where it is.
  std::string problem;
  int made = -1;
  Ticket ticket;
  if (rank_bytes > rank_limit - held_bytes) {
    problem = "a rank may hold " + size_text(rank_limit) + " in windows and holds " + size_text(held_bytes);
  } else if (layout.local_rank == 0) {
    static std::atomic<uint32_t> counter = 0;
    struct stat found {};
    if (const std::optional<int64_t> left = shortage(bytes)) {
      problem = "the host has " + size_text(*left) + " left";
    } else if ((made = memfd_create("meshtrain", MFD_CLOEXEC)) < 0 || ftruncate(made, bytes) != 0 ||
               fstat(made, &found) != 0) {
      problem = std::string("memfd_create failed: ") + std::strerror(errno);
      Promise(bytes).end(bytes);
      if (made >= 0) close(std::exchange(made, -1));
    }
    ticket = {getpid(), made, found.st_ino, static_cast<uint64_t>(getpid()) << 32 | ++counter};
  }
  const File file_made(made);
  ticket = share_ticket(comm, layout, leader, ticket);

  // 2. Every rank reserves its own part, which then lies near its processor, and maps the complete file.
  std::byte* base = nullptr;
  Promise promise(ticket.file >= 0 ? rank_bytes : 0);
  if (problem.empty() && ticket.file >= 0) {
    const std::string path = "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.file);
    const File file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    problem = reserve(file, ticket, layout, rank_bytes, promise, base);
  }
  const auto mapping = base ? std::make_shared<HostMapping>(base, bytes, rank_bytes, ticket.id) : nullptr;

  // 3. All have it, or none.
  const std::string failing = first_problem(comm, rank, size, problem);
  if (!failing.empty()) {
    return {nullptr, "asked for " + size_text(rank_bytes) + " of shared memory for each of " +
                         std::to_string(layout.local_size) + " ranks on one host; " + failing};
  }
#ifdef MADV_POPULATE_WRITE
  // Avoids page faults in the own part during the first step; the system may refuse. The other ranks' parts are left
  // out. A rank touches only a slice of each, and page tables for the full window would take 8 bytes a page in every
  // rank.
  madvise(base + layout.local_rank * rank_bytes, static_cast<size_t>(rank_bytes), MADV_POPULATE_WRITE);
#endif
  return {mapping, ""};
}

void reserve_together(MPI_Comm host) {
  static bool done = false;
  static std::shared_ptr<HostMapping> mapping;
  if (std::exchange(done, true)) return;
  int size = 1;
  int rank = 0;
  check_mpi(MPI_Comm_size(host, &size), "MPI_Comm_size");
  check_mpi(MPI_Comm_rank(host, &rank), "MPI_Comm_rank");
  const HostLayout layout = HostLayout::of(std::vector<int>(static_cast<size_t>(size), 0), rank);
  mapping = share_memory(host, layout, kHostPage, std::numeric_limits<int64_t>::max()).mapping;
  if (!mapping) return;
  held_bytes -= kHostPage;  // no part of a window
  promised_bytes = reinterpret_cast<Counter*>(mapping->base());
}

}  // namespace meshtrain
