#include "mesh/backend.h"

#include <sstream>

#include "mesh/device/aten.h"

namespace meshtrain {

const char* name(Collective::Kind kind) {
  switch (kind) {
    case Collective::Kind::AllReduce:
      return "all_reduce";
    case Collective::Kind::AllGather:
      return "all_gather";
    case Collective::Kind::ReduceScatter:
      return "reduce_scatter";
    case Collective::Kind::AllToAll:
      return "all_to_all";
    case Collective::Kind::Exchange:
      return "exchange";
    case Collective::Kind::Broadcast:
      return "broadcast";
    case Collective::Kind::Barrier:
      return "barrier";
    case Collective::Kind::Message:
      return "message";
  }
  return "collective";
}

bool only_reads(const Collective& collective, int rank) {
  const bool has_source =
      collective.kind == Collective::Kind::Broadcast || collective.kind == Collective::Kind::Message;
  return has_source && collective.from == rank;
}

std::string describe(const Collective& collective, int size) {
  std::ostringstream text;
  text << collective.coordinate << ": " << name(collective.kind) << " on group " << collective.group << " (" << size
       << (size == 1 ? " rank" : " ranks") << "), purpose " << collective.purpose;
  const auto add = [&](const char* role, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    text << ", " << role << ' ' << tensor.sizes() << ' ' << tensor.scalar_type() << ' ' << tensor.device();
  };
  add("output", collective.output);
  add("input", collective.input);
  return text.str();
}

std::shared_ptr<Backend> Backend::second_queue() {
  return nullptr;
}

at::Tensor Backend::window(int64_t, const at::TensorOptions&, Placement) {
  return {};
}

int Backend::host_ranks() const {
  return 1;
}

std::vector<int> Backend::hosts() const {
  return std::vector<int>(static_cast<size_t>(size()), 0);
}

}  // namespace meshtrain
