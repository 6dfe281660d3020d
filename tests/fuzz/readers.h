#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

namespace meshtrain::testing {

/// A reader of files that others wrote.
struct FuzzedReader {
  std::vector<std::string> corpus;                                  ///< intact files
  std::string file;                                                 ///< name of the file
  std::function<std::string(const std::string&, Mutator&)> damage;  ///< returns one of them damaged
  std::function<void(const std::filesystem::path& folder)> read;    ///< reads and uses the files in `folder`
  int num_cases;                                                    ///< number of cases by default
};

struct FuzzedReaderMaker {
  std::string name;
  /// Writes the other files that the reader needs to `folder`.
  FuzzedReader (*make)(const std::filesystem::path& folder);
};

const std::vector<FuzzedReaderMaker>& fuzzed_readers();

}  // namespace meshtrain::testing
