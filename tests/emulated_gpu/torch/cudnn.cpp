#include "tests/emulated_gpu/torch/cudnn.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace meshtrain::emulated {

void require_runtime_compiler() {
  for (const char* library : {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0"}) {
    // Not loaded here: this machine's loader may find a CUDA toolkit that a user's machine lacks.
    TORCH_CHECK(dlopen(library, RTLD_NOW | RTLD_NOLOAD) != nullptr, "cuDNN: no valid execution plans built: ", library,
                " cannot be opened by its name");
  }
}

}  // namespace meshtrain::emulated
