#include "tests/emulated/stream.h"

namespace meshtrain::emulated {

void in_stream(CUstream_st*, std::function<void()> work) {
  work();
}

}  // namespace meshtrain::emulated
