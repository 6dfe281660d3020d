// cuBLAS: checks the operands of products and computes nothing. Layouts are read with the real cublasLt.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <dlfcn.h>

#include <cstdint>
#include <string>
#include <utility>

#include "tests/emulated_gpu/cuda/capture.h"
#include "tests/null_gpu/log.h"
#include "tests/null_gpu/work.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};

namespace meshtrain::null_gpu {
namespace {

constexpr int kWorkspaceAlignment = 256;

int size_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_64F:
      return 8;
    default:
      return 0;
  }
}

/// A matrix in column order, or `count` of them that are `stride` elements apart.
struct Matrix {
  const void* data;
  cudaDataType type;
  int64_t rows, columns, leading;
  int64_t count = 1, stride = 0;
};

/// Returns what is wrong with an operand; empty when nothing is.
std::string operand_fault(const Matrix& matrix) {
  const int size = size_of(matrix.type);
  if (size == 0) return "of type " + std::to_string(matrix.type) + ", which no product here has";
  if (matrix.rows == 0 || matrix.columns == 0 || matrix.count == 0) return {};
  if (matrix.leading < matrix.rows) return "of rows that overlap";
  const int64_t last = (matrix.columns - 1) * matrix.leading + matrix.rows + (matrix.count - 1) * matrix.stride;
  return memory_fault(matrix.data, static_cast<size_t>(last * size), size);
}

std::string text(const Matrix& matrix) {
  return std::to_string(matrix.rows) + "x" + std::to_string(matrix.columns) + ":" + std::to_string(matrix.type) +
         (memory_fault(matrix.data, 1, 16).empty() && matrix.leading * size_of(matrix.type) % 16 == 0
              ? ""
              : " not in words");
}

/// Checks the operands of c = a b and adds the product to the stream.
cublasStatus_t multiply(const char* call, cudaStream_t stream, const Matrix& a, const Matrix& b, const Matrix& c) {
  const std::string line = std::string(call) + " " + text(a) + " " + text(b) + " " + text(c);
  for (const Matrix& matrix : {a, b, c}) {
    if (const std::string wrong = operand_fault(matrix); !wrong.empty()) {
      refuse("invalid product: an operand is " + wrong + ": " + line);
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  return give(stream, "product", line) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

/// Returns the matrix as it is stored. `rows`, `columns`: after `how` is applied.
Matrix operand(cublasOperation_t how, int64_t rows, int64_t columns, const void* data, cudaDataType type,
               int64_t leading, int64_t count = 1, int64_t stride = 0) {
  if (how != CUBLAS_OP_N) std::swap(rows, columns);
  return {data, type, rows, columns, leading, count, stride};
}

/// Returns a function of the real cublasLt, which the process has loaded; null when it has not.
template <class Function>
Function* of_real(const char* name) {
  void* const library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

template <class T>
T attribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which) {
  static auto* const get = of_real<decltype(cublasLtMatrixLayoutGetAttribute)>("cublasLtMatrixLayoutGetAttribute");
  T value{};
  size_t written = 0;
  if (get != nullptr) get(layout, which, &value, sizeof value, &written);
  return value;
}

Matrix matrix_of(cublasLtMatrixLayout_t layout, const void* data) {
  return {data,
          static_cast<cudaDataType>(attribute<uint32_t>(layout, CUBLASLT_MATRIX_LAYOUT_TYPE)),
          static_cast<int64_t>(attribute<uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_ROWS)),
          static_cast<int64_t>(attribute<uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_COLS)),
          attribute<int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_LD),
          attribute<int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT),
          attribute<int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)};
}

}  // namespace
}  // namespace meshtrain::null_gpu

using namespace meshtrain::null_gpu;

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (meshtrain::emulated::refuse_while_capturing(__func__) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void* data, size_t bytes) {
  if (bytes == 0) return CUBLAS_STATUS_SUCCESS;
  const std::string wrong = memory_fault(data, bytes, kWorkspaceAlignment);
  if (wrong.empty()) return CUBLAS_STATUS_SUCCESS;
  refuse("the workspace of cuBLAS is " + wrong);
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = handle->math;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  handle->pointers = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = handle->pointers;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m,
                                          int n, int k, const void*, const void* a, cudaDataType type_a, int ld_a,
                                          long long stride_a, const void* b, cudaDataType type_b, int ld_b,
                                          long long stride_b, const void*, void* c, cudaDataType type_c, int ld_c,
                                          long long stride_c, int count, cublasComputeType_t, cublasGemmAlgo_t) {
  return multiply("cublas", handle->stream, operand(of_a, m, k, a, type_a, ld_a, count, stride_a),
                  operand(of_b, k, n, b, type_b, ld_b, count, stride_b), {c, type_c, m, n, ld_c, count, stride_c});
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType type_a, int ld_a, const void* b,
                            cudaDataType type_b, int ld_b, const void* beta, void* c, cudaDataType type_c, int ld_c,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  return cublasGemmStridedBatchedEx(handle, of_a, of_b, m, n, k, alpha, a, type_a, ld_a, 0, b, type_b, ld_b, 0, beta, c,
                                    type_c, ld_c, 0, 1, compute, algorithm);
}

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n, int k,
                             const float* alpha, const void* a, cudaDataType type_a, int ld_a, const void* b,
                             cudaDataType type_b, int ld_b, const float* beta, void* c, cudaDataType type_c, int ld_c) {
  return cublasGemmEx(handle, of_a, of_b, m, n, k, alpha, a, type_a, ld_a, b, type_b, ld_b, beta, c, type_c, ld_c,
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n,
                              int k, const float* alpha, const float* a, int ld_a, const float* b, int ld_b,
                              const float* beta, float* c, int ld_c) {
  return cublasSgemmEx(handle, of_a, of_b, m, n, k, alpha, a, CUDA_R_32F, ld_a, b, CUDA_R_32F, ld_b, beta, c,
                       CUDA_R_32F, ld_c);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m,
                                         int n, int k, const float* alpha, const float* a, int ld_a, long long stride_a,
                                         const float* b, int ld_b, long long stride_b, const float* beta, float* c,
                                         int ld_c, long long stride_c, int count) {
  return cublasGemmStridedBatchedEx(handle, of_a, of_b, m, n, k, alpha, a, CUDA_R_32F, ld_a, stride_a, b, CUDA_R_32F,
                                    ld_b, stride_b, beta, c, CUDA_R_32F, ld_c, stride_c, count, CUBLAS_COMPUTE_32F,
                                    CUBLAS_GEMM_DEFAULT);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void*, const void*, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t*, void* workspace,
                              size_t bytes, cudaStream_t stream) {
  if (cublasSetWorkspace_v2(nullptr, workspace, bytes) != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_INVALID_VALUE;
  return multiply("cublasLt", stream, matrix_of(layout_a, a), matrix_of(layout_b, b), matrix_of(layout_d, d));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t* result,
                                              int* count) {
  *result = {};
  result->state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
