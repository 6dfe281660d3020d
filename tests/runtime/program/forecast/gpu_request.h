#pragma once

#include <cstdint>
#include <memory>

#include "runtime/program/forecast/search.h"

namespace meshtrain::testing {

/// Returns a request for meshes of `ranks` ranks on h100 GPUs, `ranks_per_host` on a host.
inline ForecastRequest gpu_request(int64_t ranks, int64_t ranks_per_host = 8) {
  ForecastRequest request;
  request.ranks = ranks;
  request.hosts = {ranks_per_host, true};
  request.machine = std::make_shared<const Machine>(load_machine("h100"));
  return request;
}

}  // namespace meshtrain::testing
