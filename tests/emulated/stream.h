#pragma once

#include <functional>

struct CUstream_st;

namespace meshtrain::emulated {

/// Runs `work` in the order of `stream`; at once when there are no streams (emulated_tests).
void in_stream(CUstream_st* stream, std::function<void()> work);

}  // namespace meshtrain::emulated
