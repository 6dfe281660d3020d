#include "mesh/device/cuda/libraries.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "mesh/device/cuda/checks.h"

namespace meshtrain {
namespace {

constexpr const char* kSetUp = "run tools/setup --cuda";
constexpr const char* kCompleteLibTorch =
    "run tools/setup --cuda, or build with -DMESHTRAIN_LIBTORCH=DIR, site-packages/torch of torch 2.11 for CUDA 13";

using std::filesystem::path;

void open_library(const path& file, const std::string& role, const std::string& remedy) {
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const char* const problem = dlerror();
  throw CudaUnavailable(role + " cannot be opened: " + (problem != nullptr ? problem : file.string()), remedy);
}

/// Paths in `folder`, sorted by name; none when it cannot be read.
std::vector<path> entries(const path& folder) {
  std::error_code unreadable;
  std::vector<path> all;
  for (std::filesystem::directory_iterator entry(folder, unreadable), end; !unreadable && entry != end;
       entry.increment(unreadable)) {
    all.push_back(entry->path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// The file in `folder` whose name begins with `prefix`; empty when there is none.
path find_file(const path& folder, const std::string& prefix) {
  for (const path& file : entries(folder)) {
    if (file.filename().string().starts_with(prefix)) return file;
  }
  return {};
}

}  // namespace

path libtorch_folder() {
  Dl_info about{};
  const auto address = reinterpret_cast<const void*>(&at::globalContext);
  if (dladdr(address, &about) == 0 || about.dli_fname == nullptr) {
    throw CudaUnavailable("LibTorch's own folder is not found", kSetUp);
  }
  return std::filesystem::absolute(about.dli_fname).parent_path();
}

std::vector<path> nvidia_folders(const path& torch_lib, int major) {
  const path wheels = (torch_lib / "../../nvidia").lexically_normal();
  const path best = wheels / ("cu" + std::to_string(major));
  std::vector<path> folders = {best / "lib"};
  for (const path& wheel : entries(wheels)) {
    if (wheel != best) folders.push_back(wheel / "lib");
  }
  folders.push_back(torch_lib);
  std::error_code unreadable;
  std::erase_if(folders, [&](const path& folder) { return !std::filesystem::is_directory(folder, unreadable); });
  return folders;
}

void open_runtime_compiler(const path& torch_lib, int major) {
  const std::string version = std::to_string(major), compiler = "libnvrtc.so." + version;
  for (const path& folder : nvidia_folders(torch_lib, major)) {
    std::error_code unreadable;
    if (!std::filesystem::exists(folder / compiler, unreadable)) continue;
    const path builtins = find_file(folder, "libnvrtc-builtins.so." + version);
    if (builtins.empty()) {
      throw CudaUnavailable("libnvrtc-builtins.so." + version + " is missing next to " + (folder / compiler).string(),
                            kCompleteLibTorch);
    }
    open_library(builtins, "CUDA's run-time compiler", kCompleteLibTorch);
    open_library(folder / compiler, "CUDA's run-time compiler", kCompleteLibTorch);
    const path linker = find_file(folder, "libnvJitLink.so." + version);  // not in every distribution
    if (!linker.empty()) open_library(linker, "CUDA's run-time linker", kCompleteLibTorch);
    return;
  }
  open_library(compiler, "CUDA's run-time compiler, which is not in LibTorch's folders,", kCompleteLibTorch);
}

void open_torch_cuda(const path& torch_lib) {
  constexpr const char* kLibrary = "libtorch_cuda.so";
  if (dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) == nullptr) {
    open_library(torch_lib / kLibrary, "LibTorch's CUDA library", kCompleteLibTorch);
  }
  if (!at::detail::getCUDAHooks().hasCUDART()) {  // false of the hooks that stand in where the library is missing
    throw CudaUnavailable(
        "LibTorch does not see its CUDA library " + (torch_lib / kLibrary).string() +
            ": something in this process asked LibTorch about CUDA before the library was open",
        "open the device before any other call that may ask, and report this if it is meshtrain's own");
  }
  if (!at::hasCUDA()) throw CudaUnavailable("LibTorch finds no GPU, though the driver does", "see nvidia-smi");
}

}  // namespace meshtrain
