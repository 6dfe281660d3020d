#include "runtime/training/trainer/pipeline_links.h"

namespace meshtrain {

PipelineLinks::PipelineLinks(const Group& ranks) : ranks_(ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const int next = (rank + 1) % ranks.size();
    for (const auto& [from, to] : {std::pair{rank, next}, {next, rank}}) {
      if (from != to && !links_.contains({from, to})) links_.emplace(std::pair{from, to}, Link(ranks, from, to));
    }
  }
}

}  // namespace meshtrain
