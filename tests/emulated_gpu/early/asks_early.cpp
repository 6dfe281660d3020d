// Queries LibTorch for CUDA when LD_PRELOAD loads it: before a program can open LibTorch's CUDA library.
#include <ATen/Context.h>

namespace {

[[maybe_unused]] const bool has_cuda = at::hasCUDA();

}  // namespace
