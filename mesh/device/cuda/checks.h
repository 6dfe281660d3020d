#pragma once

#include <istream>
#include <string>
#include <vector>

#include "mesh/base/error.h"

namespace meshtrain {

/// An error of device: cuda, which this process cannot use. The message is "device: cuda: PROBLEM: REMEDY, or use
/// device: cpu".
class CudaUnavailable : public InputError {
 public:
  CudaUnavailable(const std::string& problem, const std::string& remedy);
  /// Returns "PROBLEM: REMEDY", for users who did not ask for cuda.
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// Returns true when kernels compiled for `architectures` run on a GPU of compute capability major.minor. The list is
/// CMake's: "90" is code and PTX, "90-real" code alone, "90-virtual" PTX alone, divided by ";". Code runs on its own
/// major version from its minor one on, PTX on everything later; with a letter, "90a", on that capability alone.
bool runs_on(const std::string& architectures, int major, int minor);

/// Returns the files of `library` ("libnccl.so") that this process has mapped, each once, by /proc/self/maps.
std::vector<std::string> mapped_files(std::istream& maps, const std::string& library);

}  // namespace meshtrain
