#include "mesh/device/cuda/checks.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace meshtrain {

CudaUnavailable::CudaUnavailable(const std::string& problem, const std::string& remedy)
    : InputError("device", "cuda: " + problem + ": " + remedy + ", or use device: cpu"),
      reason_(problem + ": " + remedy) {}

bool runs_on(const std::string& architectures, int major, int minor) {
  std::istringstream list(architectures);
  const int capability = 10 * major + minor;
  for (std::string entry; std::getline(list, entry, ';');) {
    const size_t dash = entry.find('-');
    const std::string number = entry.substr(0, dash), kind = dash == std::string::npos ? "" : entry.substr(dash + 1);
    const int built = std::atoi(number.c_str());
    if (built == 0) continue;
    const bool exact = std::isalpha(static_cast<unsigned char>(number.back())) != 0;
    const bool code = kind != "virtual" && built / 10 == major && built <= capability;
    const bool ptx = kind != "real" && built <= capability;
    if (exact ? built == capability : code || ptx) return true;
  }
  return false;
}

std::vector<std::string> mapped_files(std::istream& maps, const std::string& library) {
  std::vector<std::string> files;
  for (std::string line; std::getline(maps, line);) {
    const size_t begin = line.find('/');
    if (begin == std::string::npos) continue;
    const std::string file = line.substr(begin), name = file.substr(file.rfind('/') + 1);
    const bool is_library = name.starts_with(library) && (name.size() == library.size() || name[library.size()] == '.');
    if (is_library && std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
  }
  return files;
}

}  // namespace meshtrain
