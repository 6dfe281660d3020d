#include "runtime/data/documents.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace meshtrain {

DocumentStarts find_documents(const at::Tensor& tokens, int64_t separator) {
  const auto ids = tokens.accessor<int64_t, 2>();
  DocumentStarts starts(static_cast<size_t>(ids.size(0)));
  for (int64_t row = 0; row < ids.size(0); ++row) {
    for (int64_t i = 1; i < ids.size(1); ++i) {
      if (ids[row][i - 1] == separator) starts[static_cast<size_t>(row)].push_back(i);
    }
  }
  const bool undivided = std::ranges::all_of(starts, [](const auto& row) { return row.empty(); });
  return undivided ? DocumentStarts() : starts;
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
