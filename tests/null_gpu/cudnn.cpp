// cuDNN's graphs: descriptors keep their attributes, every graph has a plan, and a plan's pointers are checked.
#include <cudnn.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/emulated_gpu/cuda/capture.h"
#include "tests/null_gpu/log.h"
#include "tests/null_gpu/work.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace meshtrain::null_gpu {
namespace {

constexpr int64_t kWorkspaceBytes = 1 << 20;

/// A tensor of a graph.
struct Operand {
  int alignment;
  bool by_value;  ///< its pointer is to the host's memory
};

/// A descriptor: the bytes of its attributes.
struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<cudnnBackendAttributeName_t, std::string> attributes;
  std::map<int64_t, Operand> operands;  ///< those of its parts, by their numbers in the graph

  template <class T>
  std::vector<T> get(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
    return values;
  }
  template <class T>
  T one(cudnnBackendAttributeName_t name, T otherwise) const {
    const std::vector<T> values = get<T>(name);
    return values.empty() ? otherwise : values[0];
  }
  bool is_set(cudnnBackendAttributeName_t name) const { return one<uint8_t>(name, 0) != 0; }
};

Descriptor& of(cudnnBackendDescriptor_t handle) {
  return *static_cast<Descriptor*>(handle);
}

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    default:
      return 4;
  }
}

/// Returns what is wrong with the pointers that a plan gets; empty when nothing is.
std::string graph_fault(const Descriptor& plan, const Descriptor& pack) {
  const auto numbers = pack.get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.get<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (numbers.size() != pointers.size()) return "numbers and pointers differ in count";
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto operand = plan.operands.find(numbers[i]);
    if (operand == plan.operands.end()) return "no tensor has number " + std::to_string(numbers[i]);
    if (operand->second.by_value) continue;
    if (const std::string wrong = memory_fault(pointers[i], 1, operand->second.alignment); !wrong.empty()) {
      return "tensor " + std::to_string(numbers[i]) + " is " + wrong;
    }
  }
  return {};
}

}  // namespace
}  // namespace meshtrain::null_gpu

using namespace meshtrain::null_gpu;

extern "C" {

size_t cudnnGetVersion() {
  return CUDNN_VERSION;
}

size_t cudnnGetCudartVersion() {
  return CUDART_VERSION;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (meshtrain::emulated::refuse_while_capturing(__func__) != cudaSuccess) return CUDNN_STATUS_INTERNAL_ERROR;
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* handle) {
  *handle = new Descriptor{type, {}, {}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t handle) {
  delete &of(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  Descriptor& tensor = of(handle);
  if (tensor.type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || tensor.is_set(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) {
    return CUDNN_STATUS_SUCCESS;
  }
  tensor.operands[tensor.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0)] = {
      static_cast<int>(tensor.one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1)),
      tensor.is_set(CUDNN_ATTR_TENSOR_IS_BY_VALUE)};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  if (values == nullptr) return CUDNN_STATUS_SUCCESS;
  Descriptor& descriptor = of(handle);
  descriptor.attributes[name].assign(static_cast<const char*>(values), static_cast<size_t>(count) * size_of(type));
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  for (const cudnnBackendDescriptor_t part : descriptor.get<cudnnBackendDescriptor_t>(name)) {
    if (part != nullptr) descriptor.operands.insert(of(part).operands.begin(), of(part).operands.end());
  }
  return CUDNN_STATUS_SUCCESS;
}

// Answers like a cuDNN with one engine for every graph. The engine has neither knobs nor notes.
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* values) {
  const bool is_number = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_INT32;
  const bool is_engine = name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE;
  if (count != nullptr) *count = is_number || is_engine ? 1 : 0;
  if (values == nullptr || wanted < 1) return CUDNN_STATUS_SUCCESS;
  if (is_engine) of(*static_cast<cudnnBackendDescriptor_t*>(values)).operands = of(handle).operands;
  if (is_number) {
    const int64_t number = name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE ? kWorkspaceBytes : 0;
    std::memcpy(values, &number, size_of(type));
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  if (const std::string wrong = graph_fault(of(plan), of(pack)); !wrong.empty()) {
    refuse("invalid graph of cuDNN: " + wrong);
    return CUDNN_STATUS_BAD_PARAM;
  }
  return give(handle->stream, "graph", "cudnn") == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
