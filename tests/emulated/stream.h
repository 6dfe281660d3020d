#pragma once

#include <functional>

struct CUstream_st;

namespace meshtrain::emulated {

/// Does `work` in the order of `stream`. Where there are no streams (emulated_tests): at once.
void in_stream(CUstream_st* stream, std::function<void()> work);

}  // namespace meshtrain::emulated
