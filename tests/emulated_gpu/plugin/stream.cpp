#include "tests/emulated/stream.h"

#include "tests/emulated_gpu/cuda/streams.h"

namespace meshtrain::emulated {

void in_stream(cudaStream_t stream, std::function<void()> work) {
  launch(stream, std::move(work));
}

}  // namespace meshtrain::emulated
