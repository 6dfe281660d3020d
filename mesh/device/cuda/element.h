#pragma once

namespace meshtrain::cuda {

/// The type of a number that a kernel reads and writes; it computes in fp32.
enum class Element { Float, BFloat16, Half };

}  // namespace meshtrain::cuda
