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
/// With one rank every collective is a copy or nothing at all.
class Group {
 public:
  /// A group of this process alone.
  Group();
  /// `ranks`: world ranks of the members, by group rank. `coordinate`: "rank 3 (dp=0 tp=1 cp=1)", for messages.
  Group(std::shared_ptr<Backend> backend, std::string name, std::vector<int64_t> ranks, std::string coordinate);

  int rank() const;
  int size() const;
  const std::string& name() const;
  /// World ranks of the members, by group rank.
  const std::vector<int64_t>& ranks() const;
  /// Returns this process's rank and coordinate, for messages: "rank 3 (dp=0 tp=1 cp=1)".
  const std::string& coordinate_text() const;

  /// The same group, whose traffic is counted under `purpose` ("tp.linear", "dp.gradients").
  Group with_purpose(std::string purpose) const;

  /// `tensor` becomes the elementwise reduction over the group. Halves are summed in fp32, in the order of ranks:
  /// every rank gets the same bits.
  Work all_reduce(at::Tensor& tensor, Reduce op = Reduce::Sum) const;
  /// output [n * size, ...] receives every rank's shard [n, ...] by group rank; `shard` may be its own place in
  /// `output`.
  Work all_gather(at::Tensor& output, const at::Tensor& shard) const;
  /// shard [n, ...] receives this rank's part of the reduction of input [n * size, ...]; it may be one of the parts of
  /// `input`. Only the shard is written.
  Work reduce_scatter(at::Tensor& shard, const at::Tensor& input, Reduce op = Reduce::Sum) const;
  /// Part i of input [n * size, ...] goes to rank i; output [n * size, ...], apart from it, holds what each rank sent.
  Work all_to_all(at::Tensor& output, const at::Tensor& input) const;
  /// The same with parts of any size, none included: the first sent[0] rows of `input` go to rank 0, the next sent[1]
  /// to rank 1, ...; `output` holds received[0] rows of rank 0, and so on. What one rank says it sends to another, that
  /// one must say it receives.
  Work all_to_all(at::Tensor& output, std::vector<int64_t> received, const at::Tensor& input,
                  std::vector<int64_t> sent) const;
  /// `sent` goes to group rank `to` while `received`, of the same shape, comes from group rank `from`: one hop of a
  /// ring.
  Work exchange(at::Tensor& received, int from, const at::Tensor& sent, int to) const;
  /// `tensor` of group rank `root` to all.
  Work broadcast(at::Tensor& tensor, int root) const;
  void barrier() const;

  /// Throws what has ended the communication of this process's groups, if anything has. To be called when the host has
  /// read what a device computed from collectives: Work::wait() does not wait for those of a device, and what they gave
  /// counts only if they have not failed until then. Not collective.
  void check() const;

  /// Returns a smaller group. `members`: ranks of this group, this one among them, in the new order. Every rank of this
  /// group must call it, each with the list of its own new group and the same traits. Traffic of the new group is
  /// counted in the same ledger, under its name.
  Group split(const std::vector<int>& members, GroupTraits traits) const;
  Group split(const std::vector<int>& members, std::string name) const {
    return split(members, GroupTraits{std::move(name)});
  }

  /// The same ranks with a queue of their own: collectives of this group and of that one do not wait for each other,
  /// and are still issued in one order on all ranks. This group itself where the backend has one queue for all. Every
  /// rank of the group must call it. Traffic of both is counted under this group's name.
  Group second_queue() const;

  /// How many of its ranks share memory with this one, itself included: those of one host, where the number is the same
  /// on each. 1 where there are no windows.
  int host_ranks() const;

  /// A tensor [numel] of zeros that collectives of this group, and of groups within it, take in place between ranks of
  /// one host. Every rank of the group calls it, with the same arguments, before training starts: it blocks, and space
  /// is reserved for good or refused. It lives until the last rank's last view of it is gone; each rank frees alone.
  ///
  /// Own: reduce_scatter reads the peers' inputs, all_gather and all_reduce write the peers' outputs.
  /// Common: write your own part and all_gather it from there: nothing moves on the host. A rank may write its part
  ///   again once every rank has begun a collective after its last look (a barrier, or any sum that all have the result
  ///   of). all_reduce refuses such a tensor.
  /// Undefined where windows are not to be had (one rank, other devices than the CPU, a host without the space, hosts
  ///   with different numbers of the group's ranks), on all ranks alike; one line on stderr says so where space lacks.
  /// Bytes in windows are counted by WindowMemory, not by HostMemory.
  at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement) const;

  /// A window, or ordinary memory, Private, where there is none. A group of one rank gives what is asked for.
  GroupMemory allocate(int64_t numel, const at::TensorOptions& options, Placement placement) const;

  /// What carries the collectives out: for decorating it, and for groups made of it.
  const std::shared_ptr<Backend>& backend() const { return backend_; }

 private:
  struct Identity {
    std::string name;
    std::vector<int64_t> ranks;
    std::string coordinate;
  };

  Work issue(Collective collective) const;
  /// What keeps the tensors of a collective from being communicated; empty when nothing does.
  std::string problem(const Collective& collective) const;
  [[noreturn]] void refuse(const Collective& collective, const std::string& problem) const;

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const Identity> identity_;
  std::string purpose_ = "other";
};

}  // namespace meshtrain
