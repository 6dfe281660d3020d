#include "runtime/training/data/documents.h"

#include <numeric>

#include "mesh/device/aten.h"
#include "runtime/training/data/samples.h"

namespace meshtrain {

std::vector<int64_t> find_documents(const int64_t* tokens, int64_t count, int64_t separator) {
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] == separator) starts.push_back(i + 1);
  }
  return starts;
}

std::vector<int64_t> divide_sample(std::vector<int64_t> starts, int64_t sequence_length, int64_t* labels) {
  for (const int64_t start : starts) {
    if (labels != nullptr) labels[start - 1] = kIgnoredLabel;
  }
  if (!starts.empty() && starts.back() == sequence_length) starts.pop_back();
  return starts;
}

at::Tensor document_positions(const DocumentStarts& starts, int64_t sequence_length) {
  at::Tensor positions = at::empty({static_cast<int64_t>(starts.size()), sequence_length}, at::kLong);
  int64_t* row = positions.data_ptr<int64_t>();
  for (const std::vector<int64_t>& begins : starts) {
    int64_t first = 0;
    for (const int64_t next : begins) {
      std::iota(row + first, row + next, int64_t{0});
      first = next;
    }
    std::iota(row + first, row + sequence_length, int64_t{0});
    row += sequence_length;
  }
  return positions;
}

}  // namespace meshtrain
