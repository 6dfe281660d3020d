#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace meshtrain::testing {

/// Returns true under `tools/test --full`: tests then run completely, not as a sample or on fewer ranks.
inline bool is_full_run() {
  return std::getenv("MESHTRAIN_FULL_MATRIX") != nullptr;
}

/// Returns the number that decides which part of a large table a short run tries.
inline uint64_t cover_seed() {
  const char* const asked = std::getenv("MESHTRAIN_COVER_SEED");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 2026;
}

/// Returns true if this case of a TEST_P runs: in a full run every case, otherwise every other one, the even or the odd
/// ones by cover_seed().
inline bool is_in_sample() {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const uint64_t number = std::strtoull(name.substr(name.rfind('/') + 1).c_str(), nullptr, 10);
  return is_full_run() || number % 2 == cover_seed() % 2;
}

}  // namespace meshtrain::testing
