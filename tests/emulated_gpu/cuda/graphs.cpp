#include <algorithm>
#include <set>

#include "errors.h"
#include "state.h"
#include "streams.h"

struct CUgraphExec_st {
  std::shared_ptr<std::vector<std::function<void()>>> work;
  meshtrain::emulated::Mark last;  ///< end of its last launch: only one runs at a time
};

namespace meshtrain::emulated {
namespace {

std::set<cudaGraphExec_t>& runs() {
  static auto& known = *new std::set<cudaGraphExec_t>;
  return known;
}

}  // namespace
}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* run, cudaGraph_t graph, unsigned long long) {
  if (run == nullptr || graph == nullptr) return tell(cudaErrorInvalidValue);
  auto work = std::make_shared<std::vector<std::function<void()>>>();
  for (const auto& node : graph->nodes) work->push_back(node->work);
  *run = new CUgraphExec_st{std::move(work), {}};
  const Lock lock(lock_of_streams());
  runs().insert(*run);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph == nullptr) return tell(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t run) {
  {
    const Lock lock(lock_of_streams());
    if (runs().erase(run) == 0) return tell(cudaErrorInvalidValue);
  }
  delete run;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t run, cudaStream_t handle) {
  const Lock lock(lock_of_streams());
  CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr) return tell(cudaErrorInvalidResourceHandle);
  if (!runs().contains(run)) return tell(cudaErrorInvalidValue);
  if (device_error() != cudaSuccess) return tell(device_error());
  const auto launch = [work = run->work] {
    for (const auto& piece : *work) piece();
  };
  if (stream->capture != nullptr) return tell(keep(*stream, launch, lock));
  if (const cudaError_t error = refuse_implicit(*stream, __func__, lock); error != cudaSuccess) return tell(error);
  push_implicit_waits(*stream, lock);
  push_wait(*stream, run->last, lock);
  push(*stream, launch, Lateness::Always, lock);
  run->last = {stream, stream->given};
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData* edges,
                                         size_t* count) {
  if (node == nullptr || count == nullptr) return tell(cudaErrorInvalidValue);
  if (nodes != nullptr) {
    const size_t known = std::min(*count, node->after.size());
    std::copy_n(node->after.begin(), known, nodes);
    if (edges != nullptr) std::fill_n(edges, known, cudaGraphEdgeData{});
  }
  *count = node->after.size();
  return cudaSuccess;
}

}  // extern "C"
