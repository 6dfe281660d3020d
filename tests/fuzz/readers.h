#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

namespace meshtrain::testing {

/// Something that reads files that others wrote.
struct FuzzedReader {
  std::vector<std::string> corpus;                                  ///< files that are whole
  std::string file;                                                 ///< their name
  std::function<std::string(const std::string&, Mutator&)> damage;  ///< one of them, otherwise
  std::function<void(const std::filesystem::path& folder)> read;    ///< reads and uses what lies in `folder`
  int num_cases;                                                    ///< where nobody asks for more
};

struct FuzzedReaderMaker {
  std::string name;
  /// Puts what lies beside the file into `folder`.
  FuzzedReader (*make)(const std::filesystem::path& folder);
};

const std::vector<FuzzedReaderMaker>& fuzzed_readers();

}  // namespace meshtrain::testing
