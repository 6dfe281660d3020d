// Asks LibTorch about CUDA as soon as it is loaded, by LD_PRELOAD: before a program can open LibTorch's CUDA library.
#include <ATen/Context.h>

namespace {

[[maybe_unused]] const bool has_cuda = at::hasCUDA();

}  // namespace
