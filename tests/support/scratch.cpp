#include "tests/support/scratch.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "mesh/device/aten.h"

namespace meshtrain::testing {

ScratchFolder::ScratchFolder(const Group& world) : world_(world) {
  static int counter = 0;
  at::Tensor owner = at::full({1}, static_cast<int64_t>(getpid()), at::kLong);
  world_.broadcast(owner, 0).wait();
  const char* temporary = std::getenv("TMPDIR");
  path_ = std::filesystem::path(temporary != nullptr ? temporary : "/tmp") /
          ("meshtrain_test_" + std::to_string(owner.item<int64_t>()) + "_" + std::to_string(counter++));
  std::filesystem::create_directories(path_);
}

ScratchFolder::~ScratchFolder() {
  world_.barrier();
  std::error_code ignored;
  if (world_.rank() == 0) std::filesystem::remove_all(path_, ignored);
}

}  // namespace meshtrain::testing
