#pragma once

namespace meshtrain {

/// Throws std::runtime_error with MPI's own text when `code`, which `call` returned, is an error.
void check_mpi(int code, const char* call);

}  // namespace meshtrain
