#include "mesh/backends/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "mesh/backends/mpi_engine.h"
#include "mesh/size_text.h"

namespace meshtrain {
namespace {

std::atomic<int64_t> held_bytes = 0;  // of this rank, in all mappings

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

/// How a host's first rank tells the others where the memory is.
struct Ticket {
  int64_t process = 0;
  int64_t file = -1;
  uint64_t inode = 0;
  uint64_t id = 0;
};

/// From the first rank of a host to the others there, and to no other host.
Ticket share_ticket(MPI_Comm comm, const HostLayout& layout, int leader, Ticket ticket) {
  if (layout.place != 0) {
    check_mpi(MPI_Recv(&ticket, sizeof ticket, MPI_BYTE, leader, 0, comm, MPI_STATUS_IGNORE), "MPI_Recv");
    return ticket;
  }
  for (int place = 1; place < layout.places; ++place) {
    check_mpi(MPI_Send(&ticket, sizeof ticket, MPI_BYTE, leader + place, 0, comm), "MPI_Send");
  }
  return ticket;
}

/// The problem of the lowest rank that has one, on all of them; empty when none has. Only a number is compared where
/// all is well.
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

int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = -1;
  return file >> number ? number : -1;
}

/// What this host can still give without swapping or ending a process.
int64_t available_bytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream memory("/proc/meminfo");
  for (std::string word; memory >> word;) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && memory >> kib) available = kib << 10;
  }
  struct Limit {
    const char* most;
    const char* used;
  };
  for (const Limit& limit :
       {Limit{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        Limit{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const int64_t most = number_in(limit.most), used = number_in(limit.used);
    if (most >= 0 && used >= 0) available = std::min(available, std::max<int64_t>(most - used, 0));
  }
  return available;
}

/// Reserves this rank's part of the file and maps the whole; the reason when that fails.
std::string reserve(const File& file, const Ticket& ticket, const HostLayout& layout, int64_t rank_bytes,
                    std::byte*& base) {
  const auto failed = [](const std::string& what) { return what + " failed: " + std::strerror(errno); };
  struct stat found {};
  if (!file.is_open()) return failed("opening the memory of another rank through /proc");
  if (fstat(file.number(), &found) != 0) return failed("fstat");
  const int64_t bytes = rank_bytes * layout.places;
  if (found.st_ino != ticket.inode || found.st_size != bytes) {
    return "/proc shows another file: the ranks do not share one process namespace";
  }
  errno = posix_fallocate(file.number(), layout.place * rank_bytes, rank_bytes);
  if (errno != 0) return failed("reserving the memory");
  void* const address = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (address == MAP_FAILED) return failed("mmap");
  base = static_cast<std::byte*>(address);
  return "";
}

}  // namespace

HostLayout HostLayout::of(const std::vector<int>& hosts_of_ranks, int rank) {
  const auto size = static_cast<int>(hosts_of_ranks.size());
  int places = 1;
  while (places < size && hosts_of_ranks[places] == hosts_of_ranks[0]) ++places;
  std::vector<int> seen;
  bool regular = size % places == 0;
  for (int first = 0; regular && first < size; first += places) {
    const auto begin = hosts_of_ranks.begin() + first;
    regular = std::count(begin, begin + places, *begin) == places &&
              std::find(seen.begin(), seen.end(), *begin) == seen.end();
    seen.push_back(*begin);
  }
  if (!regular) places = 1;
  return {size / places, rank / places, places, rank % places};
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
  const int leader = rank - layout.place;
  const int64_t bytes = rank_bytes * layout.places;

  // 1. The first rank of each host makes the memory and says where it is.
  std::string problem;
  int made = -1;
  Ticket ticket;
  if (rank_bytes > rank_limit - held_bytes) {
    problem = "a rank may hold " + size_text(rank_limit) + " in windows and holds " + size_text(held_bytes);
  } else if (layout.place == 0) {
    static std::atomic<uint32_t> counter = 0;
    const int64_t available = available_bytes();
    struct stat found {};
    if (bytes > available) {
      problem = "the host has " + size_text(available) + " left";
    } else if ((made = memfd_create("meshtrain", MFD_CLOEXEC)) < 0 || ftruncate(made, bytes) != 0 ||
               fstat(made, &found) != 0) {
      problem = std::string("memfd_create failed: ") + std::strerror(errno);
    }
    ticket = {getpid(), made, found.st_ino, static_cast<uint64_t>(getpid()) << 32 | ++counter};
  }
  const File file_made(made);
  ticket = share_ticket(comm, layout, leader, ticket);

  // 2. Everyone reserves its own part, which therefore lies near its own processor, and maps the whole.
  std::byte* base = nullptr;
  if (problem.empty() && ticket.file >= 0) {
    const std::string path = "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.file);
    const File file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    problem = reserve(file, ticket, layout, rank_bytes, base);
  }
  const auto mapping = base ? std::make_shared<HostMapping>(base, bytes, rank_bytes, ticket.id) : nullptr;

  // 3. All have it, or none.
  const std::string failing = first_problem(comm, rank, size, problem);
  if (!failing.empty()) {
    return {nullptr, "asked for " + size_text(rank_bytes) + " of memory that ranks of one host share, for each of " +
                         std::to_string(layout.places) + " ranks; " + failing};
  }
#ifdef MADV_POPULATE_WRITE
  madvise(base, static_cast<size_t>(bytes), MADV_POPULATE_WRITE);  // no faults in the first step; may be refused
#endif
  return {mapping, ""};
}

}  // namespace meshtrain
