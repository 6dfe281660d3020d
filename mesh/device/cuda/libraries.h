#pragma once

#include <filesystem>
#include <vector>

namespace meshtrain {

// The shared libraries that device: cuda opens in addition to the plug-in. They are opened with RTLD_GLOBAL, for all
// code of the process, and never closed. Errors are CudaUnavailable.

/// Returns the folder of LibTorch's libraries in this process, ".../torch/lib".
std::filesystem::path libtorch_folder();

/// Returns the folders that may hold NVIDIA's libraries of the LibTorch in `torch_lib`, best first: those of the Python
/// wheels beside it (".../nvidia/cu13/lib" for `major` 13, then ".../nvidia/*/lib" by name), then `torch_lib` itself.
/// Only folders that exist.
std::vector<std::filesystem::path> nvidia_folders(const std::filesystem::path& torch_lib, int major);

/// Opens the run-time compiler and linker of CUDA `major` (libnvrtc-builtins, libnvrtc, libnvJitLink) out of the first
/// of nvidia_folders() that has the compiler, or else the compiler that the loader finds. cuDNN opens libnvrtc by its
/// bare name to compile fused attention, and libnvrtc its builtins. A bare name is found in the folders that the
/// opening library knows, or when the library is loaded already. cuDNN knows the folder of libnvrtc; libnvrtc does not
/// know that of its builtins. Without them attention ends with "no valid execution plans".
void open_runtime_compiler(const std::filesystem::path& torch_lib, int major);

/// Opens libtorch_cuda.so of `torch_lib`, unless the process has one. Must be called before anything asks LibTorch
/// about CUDA: LibTorch keeps its first answer (at::detail::getCUDAHooks()). Throws when it was asked too early.
void open_torch_cuda(const std::filesystem::path& torch_lib);

}  // namespace meshtrain
