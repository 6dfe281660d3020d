#include "runtime/program/watch/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "mesh/base/files/descriptor.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// The location of a host's memory: a file that its first rank has open.
enum Ticket { kProcess, kFile, kDevice, kInode, kTicketNumbers };

Descriptor make_memory(size_t bytes) {
  Descriptor file(memfd_create("meshtrain-watch", MFD_CLOEXEC));
  const bool made = file.is_open() && posix_fallocate(file.number(), 0, static_cast<off_t>(bytes)) == 0;
  return made ? std::move(file) : Descriptor();
}

/// Returns device and inode, which no two files of a host share; zeros for none.
std::pair<int64_t, int64_t> identity_of(const Descriptor& file) {
  struct stat about {};
  if (!file.is_open() || fstat(file.number(), &about) != 0) return {};
  return {static_cast<int64_t>(about.st_dev), static_cast<int64_t>(about.st_ino)};
}

}  // namespace

Board::Board(const Group& world, const HostMap& hosts)
    : size_(static_cast<int>(hosts.ranks_of(hosts.host_of(world.rank())).size())),
      index_(hosts.local_rank(world.rank())),
      bytes_((static_cast<size_t>(size_) + 1) * sizeof(Slot)) {
  Descriptor file = index_ == 0 ? make_memory(bytes_) : Descriptor();
  at::Tensor tickets = at::zeros({hosts.num_hosts(), kTicketNumbers}, at::kLong);
  int64_t* const ticket = tickets.mutable_data_ptr<int64_t>() + hosts.host_of(world.rank()) * kTicketNumbers;
  if (file.is_open()) {
    ticket[kProcess] = getpid();
    ticket[kFile] = file.number();
    std::tie(ticket[kDevice], ticket[kInode]) = identity_of(file);
  }
  world.all_reduce(tickets).wait();
  if (index_ != 0 && ticket[kProcess] != 0) {
    const std::string path = "/proc/" + std::to_string(ticket[kProcess]) + "/fd/" + std::to_string(ticket[kFile]);
    file = Descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (identity_of(file) != std::pair(ticket[kDevice], ticket[kInode]))
      file.reset();  // the number means another process here
  }
  if (file.is_open()) {
    void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (memory != MAP_FAILED) memory_ = memory;
  }
  world.barrier();  // the first rank keeps the file open until every rank has it
}

Board::~Board() {
  if (memory_ == nullptr) return;
  own().process = 0;
  munmap(memory_, bytes_);
}

Board::Slot& Board::slot(int index) const {
  return static_cast<Slot*>(memory_)[1 + index];  // the first slot belongs to may_report()
}

Sighting Board::Slot::sight() const {
  Sighting seen = last.read();
  const NewestFlight now = newest.read();
  GroupSight& of_last = seen.activity.last;
  if (now.flight.number <= of_last.pending.number) return seen;
  of_last = {now.key, now.group, now.flight.in_group, of_last.key == now.key ? of_last.ended : 0, now.flight};
  return seen;
}

Board::Slot& Board::next() const {
  for (int offset = 1; offset < size_; ++offset) {
    Slot& other = slot((index_ + offset) % size_);
    if (other.process != 0) return other;
  }
  return own();
}

std::vector<Board::Slot*> Board::slots() const {
  std::vector<Slot*> all;
  for (int index = 0; memory_ != nullptr && index < size_; ++index) all.push_back(&slot(index));
  return all;
}

bool Board::is_reported() const {
  return memory_ != nullptr && static_cast<Slot*>(memory_)->process != 0;
}

bool Board::may_report() const {
  return memory_ == nullptr || static_cast<Slot*>(memory_)->process.exchange(1) == 0;
}

namespace {

/// Returns the fields of /proc/PROCESS/stat from the third, the state, on; none when the process does not exist.
std::vector<std::string> fields_of(int64_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may have blanks
  if (name_end == std::string::npos) return {};
  std::istringstream rest(text.substr(name_end + 1));
  return {std::istream_iterator<std::string>(rest), {}};
}

/// Returns the system's letter for what a process does; R when it does not say.
char state_of(int64_t process) {
  const std::vector<std::string> fields = fields_of(process);
  return fields.empty() ? 'R' : fields.front().front();
}

}  // namespace

bool is_gone(int64_t process) {
  if (kill(static_cast<pid_t>(process), 0) != 0) return errno == ESRCH;
  const char state = state_of(process);
  return state == 'Z' || state == 'X';
}

int signal_of_end(int64_t process) {
  constexpr size_t kExitCode = 52 - 3;  // in proc(5), as waitpid() has it
  const std::vector<std::string> fields = fields_of(process);
  if (fields.size() <= kExitCode || fields.front() != "Z") return 0;
  const int status = std::atoi(fields[kExitCode].c_str());
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

bool is_stopped(int64_t process) {
  const char state = state_of(process);
  return state == 'T' || state == 't';
}

}  // namespace meshtrain
