#include "mesh/backends/mpi/call.h"

#include <mpi.h>

#include <stdexcept>
#include <string>

namespace meshtrain {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(call) + ": " + text);
}

}  // namespace meshtrain
