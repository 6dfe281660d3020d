#pragma once

#include <string>

#include "mesh/group.h"

namespace meshtrain {

/// One direction between two ranks of a group: messages in the order in which both ends issue them. Each link has a
/// queue of its own, so a message waits for no collective and for no message of another link, the opposite one
/// included. Messages of one queue for both directions deadlock under the usual orders of pipelines: one end's send
/// stands before its receive, which the other end's send waits for.
class Link {
 public:
  /// `from`, `to`: group ranks, which must differ. Every rank of `group` must call it, with the same arguments; ranks
  /// besides the two get a link that they can only pass on. Messages are counted and reported under the group's name
  /// and both ranks: "pp 0>1". FlightRecorder::costs() sums all links of a group under its name. Throws
  /// std::invalid_argument for ranks that are not in the group, or the same.
  Link(const Group& group, int from, int to);

  /// Returns true on the rank that sends, and on the one that receives.
  bool is_sender() const { return end_ == End::Sender; }
  bool is_receiver() const { return end_ == End::Receiver; }

  /// Sends `tensor`, which must not change until the work is done. The sender calls it, as often as the receiver calls
  /// receive(), with tensors of the same shape and dtype. Throws std::invalid_argument on other ranks.
  Work send(const at::Tensor& tensor) const;
  /// Overwrites `tensor` with the sender's. The receiver calls it; throws std::invalid_argument on other ranks.
  Work receive(at::Tensor& tensor) const;

  /// Returns this link with its traffic counted under `purpose`.
  Link with_purpose(std::string purpose) const;

 private:
  enum class End { Sender, Receiver, None };

  [[noreturn]] void refuse(const char* call) const;

  Group pair_;  // sender and receiver, in this order; this rank alone where it is neither
  End end_ = End::None;
};

}  // namespace meshtrain
