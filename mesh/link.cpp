#include "mesh/link.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "mesh/base/error.h"

namespace meshtrain {

Link::Link(const Group& group, int from, int to) {
  const std::string name = group.name() + " " + std::to_string(from) + ">" + std::to_string(to);
  const auto is_in_group = [&](int rank) { return rank >= 0 && rank < group.size(); };
  if (!is_in_group(from) || !is_in_group(to) || from == to) {
    throw RankError<std::invalid_argument>(group.coordinate_text() + ": link " + name +
                                           ": expected two ranks of group " + group.name() + ", which has " +
                                           std::to_string(group.size()));
  }
  if (group.rank() == from) end_ = End::Sender;
  if (group.rank() == to) end_ = End::Receiver;
  const std::vector<int> members = end_ == End::None ? std::vector<int>{group.rank()} : std::vector<int>{from, to};
  pair_ =
      group.split(members, {.name = name, .urgency = Urgency::Awaited, .messages_only = true, .family = group.name()});
}

Work Link::send(const at::Tensor& tensor) const {
  if (!is_sender()) refuse("send");
  at::Tensor sent = tensor;
  return pair_.message(sent, 0, 1);
}

Work Link::receive(at::Tensor& tensor) const {
  if (!is_receiver()) refuse("receive");
  return pair_.message(tensor, 0, 1);
}

Link Link::with_purpose(std::string purpose) const {
  Link link = *this;
  link.pair_ = pair_.with_purpose(std::move(purpose));
  return link;
}

void Link::refuse(const char* call) const {
  const char* const end = end_ == End::None ? "neither of its ends" : is_sender() ? "its sender" : "its receiver";
  throw RankError<std::invalid_argument>(pair_.coordinate_text() + ": " + call + " on link " + pair_.name() +
                                         ": this rank is " + end);
}

}  // namespace meshtrain
