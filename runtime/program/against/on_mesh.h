#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "runtime/program/verify/setup.h"

namespace meshtrain {

/// A dumped step (StepDump) that this program computes on a mesh.
class StepOnMesh {
 public:
  /// Prepares the step for a mesh of `world`. `mesh`, `overrides`: as load_recipe() takes them, over the recipe that
  /// computes the step. Throws InputError, the same on every rank, also for a step that the mesh cannot share. Every
  /// rank of `world` must call it, and reads the folder.
  StepOnMesh(const std::filesystem::path& folder, const std::string& mesh, const std::vector<std::string>& overrides,
             VerifyOptions options, const Group& world);

  /// Computes the step on the mesh and on rank 0 alone, compares them, and prints as verify() does. Every rank of the
  /// world must call it.
  bool verify(const std::function<void(const std::string&)>& print) const;

 private:
  Group world_;
  VerifyOptions options_;
  std::unique_ptr<Samples> samples_;
  std::optional<VerifySetup> setup_;
};

}  // namespace meshtrain
