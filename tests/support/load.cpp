#include "tests/support/load.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace meshtrain::testing {

std::chrono::duration<double> within(std::chrono::duration<double> idle) {
  double load = 0;
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  return getloadavg(&load, 1) == 1 ? idle * std::max(load / cores, 1.0) : idle;
}

}  // namespace meshtrain::testing
