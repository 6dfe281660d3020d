#include "context_parallel/attention_choice.h"

#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

enum class Numbers { Halves, Fp32 };

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int64_t kLargestFlashHead = 256;

/// The shapes for which a kernel is used, and the GPUs. Some limits are the kernels' own: the largest head dim, its
/// multiple, and for cuDNN more than one key.
struct Line {
  Numbers numbers;
  std::optional<bool> causal = {};  // none: either
  int64_t largest_head_dim = kAny, multiple_of_head_dim = 1;
  int64_t least_queries = 1, least_keys = 1;
  int64_t multiple_of_lengths = 1;            // number of queries and of keys
  std::optional<int64_t> keys_past_128 = {};  // number of keys modulo 128
  std::optional<int> architecture = {};
  AttentionKernel kernel;
};

// The first line that fits counts:
// 1. cuDNN 9.19's backward on sm_90 works on 128 keys at once and masks the end of the keys in steps of 64. Where 64
//    are left over, a log-sum-exp below -88.7 makes dq NaN (pytorch#196678, cudnn-frontend#628). Causal calls mask
//    these keys anyway. AttentionOnGpu.CuDnnWithKeysLeftOver says whether cuDNN has the fault; on an H200 it has.
// 2., 3. cuDNN uses Hopper's own instructions, which flash does not: on an H200 it is faster from 128 queries and keys
//    on (docs/benchmarks.md). It builds a plan for each length, so prompts of any length below 512 are left to flash.
//    Only on sm_90: on sm_100 it corrupts texts of models with fewer than 8 KV heads (pytorch#193893, not checked).
constexpr Line kTable[] = {
    {.numbers = Numbers::Halves,
     .causal = false,
     .largest_head_dim = kLargestFlashHead,
     .multiple_of_head_dim = 8,
     .keys_past_128 = 64,
     .kernel = AttentionKernel::Flash},
    {.numbers = Numbers::Halves,
     .largest_head_dim = 128,
     .multiple_of_head_dim = 8,
     .least_queries = 512,
     .least_keys = 512,
     .architecture = 90,
     .kernel = AttentionKernel::CuDnn},
    {.numbers = Numbers::Halves,
     .largest_head_dim = 128,
     .multiple_of_head_dim = 8,
     .multiple_of_lengths = 128,
     .architecture = 90,
     .kernel = AttentionKernel::CuDnn},
    {.numbers = Numbers::Halves,
     .largest_head_dim = kLargestFlashHead,
     .multiple_of_head_dim = 8,
     .kernel = AttentionKernel::Flash},
    {.numbers = Numbers::Halves, .multiple_of_head_dim = 8, .kernel = AttentionKernel::Efficient},
    {.numbers = Numbers::Fp32, .multiple_of_head_dim = 4, .kernel = AttentionKernel::Efficient},
};

bool is_half(c10::ScalarType dtype) {
  return dtype == c10::kBFloat16 || dtype == c10::kHalf;
}

bool fits(const Line& line, const AttentionShape& shape, int architecture) {
  const bool halves = is_half(shape.dtype);
  if (line.numbers == Numbers::Halves ? !halves : shape.dtype != c10::kFloat) return false;
  if (line.architecture.value_or(architecture) != architecture) return false;
  if (line.causal.value_or(shape.causal) != shape.causal) return false;
  if (shape.window > 0 && line.kernel != AttentionKernel::Flash) return false;
  const int64_t keys_past_128 = shape.num_keys % 128;
  if (line.keys_past_128.value_or(keys_past_128) != keys_past_128) return false;
  if (shape.num_queries % line.multiple_of_lengths != 0 || shape.num_keys % line.multiple_of_lengths != 0) return false;
  return shape.head_dim <= line.largest_head_dim && shape.head_dim % line.multiple_of_head_dim == 0 &&
         shape.num_queries >= line.least_queries && shape.num_keys >= line.least_keys;
}

constexpr size_t kMostLines = 8;
constexpr int64_t kDocuments = 0;  // number of queries and keys in a note that covers any lengths

/// The choices made so far.
struct Notes {
  std::mutex mutex;
  std::map<AttentionShape, AttentionKernel> kernels;
};

Notes& notes() {
  static Notes notes;
  return notes;
}

void note(const AttentionShape& shape, AttentionKernel kernel) {
  const std::lock_guard lock(notes().mutex);
  notes().kernels.emplace(shape, kernel);
}

std::string describe(const AttentionShape& shape) {
  const bool documents = shape.num_queries == kDocuments;
  return (documents ? "documents of any lengths, "
                    : counted(shape.num_queries, "query", "queries") + ", " + counted(shape.num_keys, "key") + ", ") +
         (shape.causal ? "causal, " : "") +
         (shape.window > 0 ? "window of " + std::to_string(shape.window) + ", " : "") +
         counted(shape.num_heads, "head") + " of " + std::to_string(shape.head_dim) + " over " +
         counted(shape.num_kv_heads, "KV head") + ", " + c10::toString(shape.dtype);
}

}  // namespace

AttentionKernel choose_attention(const AttentionShape& shape, int architecture) {
  for (const Line& line : kTable) {
    if (!fits(line, shape, architecture)) continue;
    note(shape, line.kernel);
    return line.kernel;
  }
  throw std::invalid_argument("attention on CUDA: there is no kernel for " + std::string(c10::toString(shape.dtype)) +
                              " with head dim " + std::to_string(shape.head_dim) +
                              ": use a multiple of 8 for bf16 and fp16, of 4 for fp32; fp64 is only for the CPU");
}

bool flash_takes(c10::ScalarType dtype, int64_t head_dim) {
  return is_half(dtype) && head_dim % 8 == 0 && head_dim <= kLargestFlashHead;
}

void note_documents(AttentionShape shape) {
  shape.num_queries = shape.num_keys = kDocuments;
  note(shape, AttentionKernel::Flash);
}

const char* name(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::CuDnn:
      return "cudnn";
    case AttentionKernel::Flash:
      return "flash";
    case AttentionKernel::Efficient:
      return "efficient";
  }
  return "";
}

std::vector<std::string> chosen_attention() {
  const std::lock_guard lock(notes().mutex);
  const size_t count = notes().kernels.size();
  std::vector<std::string> lines;
  for (const auto& [shape, kernel] : notes().kernels) {
    if (lines.size() == kMostLines) {
      lines.push_back("and " + counted(count - kMostLines, "more shape"));
      break;
    }
    lines.push_back(std::string(name(kernel)) + ": " + describe(shape));
  }
  return lines;
}

}  // namespace meshtrain
