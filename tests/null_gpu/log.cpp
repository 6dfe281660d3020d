#include "tests/null_gpu/log.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "tests/emulated_gpu/cuda/model.h"
#include "tests/emulated_gpu/cuda/observer.h"

namespace meshtrain::null_gpu {
namespace {

const char* folder() {
  static const char* const name = std::getenv("MESHTRAIN_NULL_GPU_LOG");
  return name;
}

std::FILE* open() {
  const std::string file = std::string(folder()) + "/" + std::to_string(getpid()) + ".log";
  std::FILE* const log = std::fopen(file.c_str(), "w");
  if (log == nullptr) {
    std::fprintf(stderr, "%s: %s cannot be written: MESHTRAIN_NULL_GPU_LOG must be a folder\n", emulated::model().name,
                 file.c_str());
    std::exit(2);
  }
  return log;
}

}  // namespace

bool is_noting() {
  return folder() != nullptr;
}

void note(const char* what, const std::string& detail) {
  if (!is_noting()) return;
  static std::mutex& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  static std::FILE* const log = open();
  std::fprintf(log, "%s %s\n", what, detail.c_str());
  std::fflush(log);  // a process may end by _exit
}

void refuse(const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", emulated::model().name, why.c_str());
  note("refused", why);
}

}  // namespace meshtrain::null_gpu

namespace meshtrain::emulated {

void observe(const char* what, const std::string& detail) {
  null_gpu::note(what, detail);
}

}  // namespace meshtrain::emulated
