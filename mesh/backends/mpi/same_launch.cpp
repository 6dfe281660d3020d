#include "mesh/backends/mpi/same_launch.h"

#include <elf.h>
#include <link.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <vector>

#include "mesh/backends/mpi/call.h"
#include "mesh/backends/mpi/engine.h"
#include "mesh/backends/mpi/launcher.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/base/quiet_thread.h"
#include "mesh/base/size_text.h"
#include "mesh/host_map.h"

namespace meshtrain {
namespace {

constexpr std::chrono::seconds kPatience{20}, kLimit{600};

/// One process of a launch. Two builds exchange it before they know that they differ, so its layout never changes.
struct Member {
  std::array<char, 64> host{}, build{};
  std::array<char, 256> program{};
  uint64_t arguments = 0;  // their hash
};
static_assert(sizeof(Member) == 392);

template <size_t kSize>
void put(std::array<char, kSize>& field, const std::string& text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), kSize - 1));
}

uint64_t hash_of(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

/// Appends the build id among the notes of `program`, the first object that dl_iterate_phdr() visits.
int add_build_id(dl_phdr_info* program, size_t, void* text) {
  for (size_t i = 0; i < program->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = program->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const auto padded = [](size_t bytes) { return (bytes + 3) / 4 * 4; };
    const auto* at = reinterpret_cast<const unsigned char*>(program->dlpi_addr + header.p_vaddr);
    for (const auto* const end = at + header.p_memsz; end - at > static_cast<ptrdiff_t>(sizeof(ElfW(Nhdr)));) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const unsigned char* const id = at + sizeof note + padded(note.n_namesz);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(id - 4, "GNU", 4) == 0) {
        for (size_t byte = 0; byte < note.n_descsz; ++byte) {
          char digits[3];
          std::snprintf(digits, sizeof digits, "%02x", id[byte]);
          *static_cast<std::string*>(text) += digits;
        }
        return 1;
      }
      at = id + padded(note.n_descsz);
    }
  }
  return 1;
}

/// Returns the words of this process's command line after the program, each with its zero byte.
std::string own_arguments() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  const std::string words(std::istreambuf_iterator<char>(stream), {});
  return words.substr(std::min(words.find('\0'), words.size() - 1) + 1);
}

Member own_member(const std::string& arguments) {
  Member own;
  std::string build;
  dl_iterate_phdr(add_build_id, &build);
  std::error_code ignored;
  put(own.host, host_name());
  put(own.build, build);
  put(own.program, std::filesystem::read_symlink("/proc/self/exe", ignored).string());
  own.arguments = hash_of(arguments);
  return own;
}

/// Returns `text` of rank `root`. Every rank must call it.
std::string text_of(std::string text, int root) {
  uint64_t size = text.size();
  check_mpi(MPI_Bcast(&size, 1, MPI_UINT64_T, root, MPI_COMM_WORLD), "MPI_Bcast");
  text.resize(size);
  check_mpi(MPI_Bcast(text.data(), static_cast<int>(size), MPI_BYTE, root, MPI_COMM_WORLD), "MPI_Bcast");
  return text;
}

std::vector<std::string> words_of(const std::string& arguments) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < arguments.size(); begin += words.back().size() + 1) {
    words.push_back(arguments.substr(begin, arguments.find('\0', begin) - begin));
  }
  return words;
}

/// Returns "rank 3 on node7".
std::string describe(size_t rank, const Member& member) {
  return "rank " + std::to_string(rank) + " on " + member.host.data();
}

std::string describe_builds(const std::vector<Member>& members, size_t other) {
  const auto program = [](const Member& member) {
    return std::string(member.program.data()) + " (build " + std::string(member.build.data()).substr(0, 12) + ")";
  };
  return "the ranks of one launch are different builds: " + describe(0, members[0]) + " is " + program(members[0]) +
         ", " + describe(other, members[other]) + " is " + program(members[other]) +
         ": start the same build on all hosts";
}

/// `first`, `second`: the arguments of rank 0 and of rank `other`.
std::string describe_arguments(const std::vector<Member>& members, size_t other, const std::string& first,
                               const std::string& second) {
  const std::vector<std::string> a = words_of(first), b = words_of(second);
  const auto differs = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto word = [&](const std::vector<std::string>& words) {
    if (differs == words.size()) return std::string("no further argument");
    return "\"" + (differs > 0 ? words[differs - 1] + " " : "") + words[differs] + "\"";
  };
  return "the ranks of one launch are given different commands: " + describe(0, members[0]) + " has " + word(a) +
         " where " + describe(other, members[other]) + " has " + word(b) + ": start all ranks with the same command";
}

/// Names two ranks that differ. Every rank must call it.
[[noreturn]] void refuse(const Member& own, const std::string& arguments) {
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  std::vector<Member> members(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, members.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD),
            "MPI_Allgather");
  const auto first_other = [&](auto field) {
    const auto found = std::ranges::find_if(members, [&](const Member& m) { return m.*field != members[0].*field; });
    return static_cast<size_t>(found - members.begin());
  };
  const size_t build = first_other(&Member::build), other = first_other(&Member::arguments);
  if (build < members.size()) throw InputError(describe_builds(members, build));
  const std::string first = text_of(arguments, 0), second = text_of(arguments, static_cast<int>(other));
  throw InputError(describe_arguments(members, other, first, second));
}

/// Says after kPatience that this process waits for others to start, and ends it after kLimit.
class StartWatch {
 public:
  StartWatch() : thread_(quiet_thread([](const std::stop_token& stop) { watch(stop); })) {}

 private:
  static void watch(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any ended;
    std::unique_lock lock(mutex);
    const auto never = [] { return false; };
    if (ended.wait_for(lock, stop, kPatience, never) || stop.stop_requested()) return;
    if (is_announced_first()) log_warning(describe_wait(kPatience));
    if (ended.wait_for(lock, stop, kLimit - kPatience, never) || stop.stop_requested()) return;
    if (is_announced_first()) log_failure(describe_wait(kLimit) + ": the job ends");
    MpiEngine::abort(1);
  }

  static std::string describe_wait(std::chrono::seconds time) {
    return "rank 0 on " + host_name() + " has waited " + std::to_string(time.count()) + " s for " +
           (announced_ranks() > 1 ? "the other " + counted(announced_ranks() - 1, "rank") : "the other ranks") +
           " to start: one may be a different program, may have ended, or may be on a host that cannot be reached";
  }

  std::jthread thread_;
};

}  // namespace

void check_same_launch() {
  const StartWatch watch;
  const std::string arguments = own_arguments();
  const Member own = own_member(arguments);
  const uint64_t build = hash_of(own.build.data());
  MpiEngine::get().block([&] {
    std::array<uint64_t, 4> sent = {build, ~build, own.arguments, ~own.arguments}, largest{};
    check_mpi(MPI_Allreduce(sent.data(), largest.data(), sent.size(), MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD),
              "MPI_Allreduce");
    if (largest[0] != ~largest[1] || largest[2] != ~largest[3]) refuse(own, arguments);
  });
}

}  // namespace meshtrain
