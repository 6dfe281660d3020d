#include "access.h"

#include <sys/mman.h>

#include <exception>
#include <thread>

#include "streams.h"

namespace meshtrain::emulated {

int protection_key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);  // existing threads get no access
  return key;
}

void allow_access() {
  if (protection_key() >= 0) pkey_set(protection_key(), 0);
}

void deny_access() {
  if (protection_key() >= 0) pkey_set(protection_key(), PKEY_DISABLE_ACCESS);
}

void run_beside_streams(const std::function<void()>& work) {
  std::exception_ptr problem;
  std::thread([&] {
    allow_access();
    try {
      work();
    } catch (...) {
      problem = std::current_exception();
    }
  }).join();
  if (problem) std::rethrow_exception(problem);
}

}  // namespace meshtrain::emulated
