// Every file is read or refused, whatever its content: no crash, no read beyond its end, no allocation that only its
// content justifies, no case longer than a second. MESHTRAIN_FUZZ_SECONDS=600 runs new cases for so long, over all
// readers.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "mesh/base/error.h"
#include "tests/fuzz/readers.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif
constexpr double kMostSeconds = kSanitized ? 5 : 1;
constexpr unsigned kMostWallSeconds = 60;
constexpr rlim_t kMostMemory = rlim_t{1} << 30;  // more than the machine has

char current_case[512];

/// Prints the number of the case in which a signal ends the test.
void tell(int number) {
  const ssize_t ignored = ::write(STDERR_FILENO, current_case, std::strlen(current_case));
  static_cast<void>(ignored);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

/// Uses a separate stack: the usual one may have overflowed.
void tell_of_signals() {
  static char stack[1 << 16];
  stack_t other{};
  other.ss_sp = stack;
  other.ss_size = sizeof stack;
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = tell;
  action.sa_flags = SA_ONSTACK;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGALRM}) {
    if (!kSanitized || number == SIGALRM) ::sigaction(number, &action, nullptr);
  }
}

/// A limit of kMostMemory, while this object lives.
class LittleMemory {
 public:
  LittleMemory() {
    getrlimit(RLIMIT_AS, &before_);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + kMostMemory, before_.rlim_max};
    if (!kSanitized && pages > 0) setrlimit(RLIMIT_AS, &limit);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  rlimit before_{};
};

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Returns the seconds requested for this reader; nullopt: a fixed number of cases.
std::optional<double> seconds() {
  const char* all = std::getenv("MESHTRAIN_FUZZ_SECONDS");
  if (all == nullptr) return std::nullopt;
  return std::strtod(all, nullptr) / static_cast<double>(fuzzed_readers().size());
}

class Fuzz : public ::testing::TestWithParam<FuzzedReaderMaker> {
 protected:
  void SetUp() override { tell_of_signals(); }

  /// Returns what is wrong with the way `bytes` are read; empty when nothing is.
  std::string complaint(const FuzzedReader& reader, const std::string& bytes) {
    write_file(folder_.path() / reader.file, bytes);
    const double start = processor_seconds();
    ::alarm(kMostWallSeconds);
    std::string what;
    try {
      reader.read(folder_.path());
    } catch (const InputError&) {
      ++num_refused_;
    } catch (const std::exception& error) {
      what = std::string("throws ") + error.what();
    } catch (...) {
      what = "throws something";
    }
    ::alarm(0);
    const double taken = processor_seconds() - start;
    if (what.empty() && taken > kMostSeconds) what = "takes " + std::to_string(taken) + " s";
    return what;
  }

  ScratchFolder folder_;
  int num_refused_ = 0;
};

TEST_P(Fuzz, ReadsOrRefuses) {
  const auto& [name, make] = GetParam();
  const FuzzedReader reader = make(folder_.path());
  for (const std::string& full : reader.corpus) {
    if (full.empty()) continue;
    EXPECT_EQ(complaint(reader, full), "");
  }
  EXPECT_EQ(num_refused_, 0) << "of those that are whole";
  num_refused_ = 0;

  const LittleMemory little;
  const auto begin = Clock::now();
  const std::optional<double> wanted = seconds();
  const auto goes_on = [&](int number) {
    return wanted ? std::chrono::duration<double>(Clock::now() - begin).count() < *wanted : number < reader.num_cases;
  };
  int number = 0, num_failures = 0;
  for (; goes_on(number) && num_failures < 5; ++number) {
    std::snprintf(current_case, sizeof current_case, "%s: case %d, %s\n", name.c_str(), number,
                  (folder_.path() / reader.file).c_str());
    Mutator mutator(static_cast<uint64_t>(number));
    const std::string& full = reader.corpus[mutator.below(reader.corpus.size())];
    const std::string bytes = reader.damage(full, mutator);
    const std::string what = complaint(reader, bytes);
    if (what.empty()) continue;
    ++num_failures;
    const std::filesystem::path kept =
        std::filesystem::temp_directory_path() / ("fuzz-" + name + "-" + std::to_string(number));
    write_file(kept, bytes);
    ADD_FAILURE() << name << " " << what << " in case " << number << ", " << kept;
  }
  std::printf("%s: %d cases, %d refused\n", name.c_str(), number, num_refused_);
  EXPECT_GT(num_refused_, number / 10);
}

INSTANTIATE_TEST_SUITE_P(Readers, Fuzz, ::testing::ValuesIn(fuzzed_readers()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace meshtrain::testing
