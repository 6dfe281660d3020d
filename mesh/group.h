#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/backend.h"

namespace meshtrain {

/// Ranks that communicate: a value, copies share the communicator. Every rank of the group must call each
/// collective, with the same shapes and in the same order. Tensors are contiguous; collectives act on dim 0.
/// A call whose tensors do not fit throws std::invalid_argument with rank, coordinate, group, collective and shapes.
///
/// In a group of one rank every collective is a copy, or does nothing.
class Group {
 public:
  /// A group of this process alone.
  Group();
  /// `ranks`: world ranks of the members, by group rank. `coordinate`: "rank 3 (dp=0 tp=1 cp=1)", for messages.
  Group(std::shared_ptr<Backend> backend, std::string name, std::vector<int64_t> ranks, std::string coordinate);

  int rank() const;
  int size() const;
  const std::string& name() const;
  /// Returns the world ranks of the members, by group rank.
  const std::vector<int64_t>& ranks() const;
  /// Returns this process's rank and coordinate, for messages: "rank 3 (dp=0 tp=1 cp=1)".
  const std::string& coordinate_text() const;

  /// Returns this group with its traffic counted under `purpose` ("tp.linear", "dp.gradients").
  Group with_purpose(std::string purpose) const;

  /// Replaces `tensor` by the elementwise reduction over the group. Halves are summed in fp32, in the order of ranks:
  /// every rank gets the same bits.
  Work all_reduce(at::Tensor& tensor, Reduce op = Reduce::Sum) const;
  /// Gathers every rank's shard [n, ...] into output [n * size, ...] by group rank; `shard` may be this rank's slice of
  /// `output`.
  Work all_gather(at::Tensor& output, const at::Tensor& shard) const;
  /// Writes this rank's part of the reduction of input [n * size, ...] to shard [n, ...], which may be one of the
  /// slices of `input`. Writes nothing else.
  Work reduce_scatter(at::Tensor& shard, const at::Tensor& input, Reduce op = Reduce::Sum) const;
  /// Sends slice i of input [n * size, ...] to rank i; slice i of output [n * size, ...], other memory, comes from it.
  Work all_to_all(at::Tensor& output, const at::Tensor& input) const;
  /// All-to-all of slices of any size, 0 included: the first sent[0] rows of `input` go to rank 0, the next sent[1] to
  /// rank 1, ...; `output` holds received[0] rows of rank 0, and so on. The number of rows that a rank sends to another
  /// must be the number that the other receives from it.
  Work all_to_all(at::Tensor& output, std::vector<int64_t> received, const at::Tensor& input,
                  std::vector<int64_t> sent) const;
  /// Sends `sent` to group rank `to` while `received`, of the same shape, comes from group rank `from`: one hop of a
  /// ring.
  Work exchange(at::Tensor& received, int from, const at::Tensor& sent, int to) const;
  /// Copies `tensor` of group rank `root` to all ranks.
  Work broadcast(at::Tensor& tensor, int root) const;
  /// Copies `tensor` of group rank `from` to group rank `to`. In groups of two ranks, of which both call it: Link.
  Work message(at::Tensor& tensor, int from, int to) const;
  void barrier() const;

  /// Rethrows a pending asynchronous communication failure of any group of this process. Call it when the host has read
  /// numbers that a device computed from collectives: Work::wait() does not wait for a device, so numbers of a failed
  /// collective would be taken for results. Not collective.
  void check() const;

  /// Returns a smaller group. `members`: ranks of this group, this one among them, in the new order. Every rank of this
  /// group must call it, each with the list of its own new group and the same traits. Traffic of the new group is
  /// counted in the same ledger, under its name.
  Group split(const std::vector<int>& members, GroupTraits traits) const;
  Group split(const std::vector<int>& members, std::string name) const {
    return split(members, GroupTraits{std::move(name)});
  }

  /// Returns a group of the same ranks with another queue: collectives of the two do not wait for each other, but must
  /// still be issued in one order on all ranks. Returns this group where the backend has one queue for all. Every rank
  /// of the group must call it. Traffic of both is counted under this group's name.
  Group second_queue() const;

  /// Returns how many ranks of the group share memory with this one, this one included: the ranks of a host, where
  /// every host has the same number of them. 1 without windows.
  int host_ranks() const;

  /// Allocates a tensor [numel] of zeros that ranks of one host read and write in place in collectives of this group
  /// and of groups within it. Every rank of the group calls it, with the same arguments, before training starts: it
  /// blocks, and reserves the space or refuses. The memory lives until the last rank's last view of it is freed; each
  /// rank frees alone.
  ///
  /// Own: reduce_scatter reads the peers' inputs, all_gather and all_reduce write the peers' outputs.
  /// Common: a rank writes its own part and gathers it from there: nothing moves on the host. A rank may write its part
  ///   again once every rank has begun a collective after its last read (a barrier, or any sum of which all have the
  ///   result); earlier writes would change what a peer still reads. all_reduce refuses such a tensor.
  /// Undefined, on all ranks alike, where windows are impossible: one rank, other devices than the CPU, a host without
  ///   the space, hosts with different numbers of the group's ranks. One line on stderr reports a lack of space.
  /// Bytes in windows are counted by WindowMemory, not by HostMemory.
  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement) const;

  /// Allocates a window, or ordinary memory, Private, where windows are impossible. A group of one rank returns the
  /// kind that was asked for.
  GroupMemory allocate(int64_t numel, const at::TensorOptions& options, Placement placement) const;

  /// The transport of the group: for decorators, and for groups that are made of it.
  const std::shared_ptr<Backend>& backend() const { return backend_; }

 private:
  struct Identity {
    std::string name;
    std::vector<int64_t> ranks;
    std::string coordinate;
  };

  Work issue(Collective collective) const;
  /// Returns why the tensors of a collective cannot be communicated; empty when they can.
  std::string problem(const Collective& collective) const;
  [[noreturn]] void refuse(const Collective& collective, const std::string& problem) const;

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const Identity> identity_;
  std::string purpose_ = "other";
};

}  // namespace meshtrain
