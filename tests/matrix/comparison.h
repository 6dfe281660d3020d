#pragma once

#include <map>
#include <string>

#include "mesh/device_mesh.h"
#include "runtime/recipe/recipe.h"
#include "runtime/verify/comparison.h"
#include "tests/matrix/cell.h"

namespace meshtrain::testing {

/// Trains `recipe` on `mesh` and keeps this rank's parts of everything. Every rank of the mesh must call it.
Trace train(const Recipe& recipe, const DeviceMesh& mesh);

/// Trains `recipe` on this rank alone: what a mesh is held against.
Reference train_reference(Recipe recipe);

/// Trains `recipe` on `mesh` and says where the result differs from `reference`, the run on one rank, by more than
/// design rule 9 allows: a line with name, difference, bound and rank for each, the same on every rank; empty when they
/// are equal. `reference` is that of rank `root`; others may have an empty one. Every rank of the mesh must call it.
/// `shares`: becomes at least what share of its bound each kind of number took, by precision and kind.
std::string train_and_compare(const Recipe& recipe, const DeviceMesh& mesh, const Reference& reference,
                              std::map<std::string, double>* shares = nullptr, int root = 0);

/// The mesh of a cell, of all ranks of the world.
DeviceMesh mesh_of(const Cell& cell);

/// The mesh of one rank.
DeviceMesh one_rank_mesh();

}  // namespace meshtrain::testing
