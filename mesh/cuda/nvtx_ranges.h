#pragma once

namespace meshtrain::cuda {

/// Shows each place of the flight recorder, "forward of block 3", as an NVTX range from now on, for Nsight Systems. It
/// costs nothing without such a tool. Ranges are those of the process: a backward may run on another thread.
void show_places_as_ranges();

}  // namespace meshtrain::cuda
