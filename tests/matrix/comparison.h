#pragma once

#include <map>
#include <string>

#include "mesh/device_mesh.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/program/verify/comparison.h"
#include "tests/matrix/cell.h"

namespace meshtrain::testing {

/// Trains `recipe` on `mesh` and returns this rank's parts of all results. Every rank of the mesh must call it.
Trace train(const Recipe& recipe, const DeviceMesh& mesh);

/// Trains `recipe` on this rank alone, as the reference for a mesh.
Reference train_reference(Recipe recipe);

/// Trains `recipe` on `mesh` and returns the differences from `reference`, the run on one rank, that rule 9 of
/// arithmetic does not allow: a line with name, difference, bound and rank for each, the same on every rank; empty when
/// there are none. Only the `reference` of rank `root` is used; that of other ranks may be empty. Every rank of the
/// mesh must call it. `shares`: raised to the share of its bound that each kind of number used, by precision and kind.
std::string train_and_compare(const Recipe& recipe, const DeviceMesh& mesh, const Reference& reference,
                              std::map<std::string, double>* shares = nullptr, int root = 0);

/// Returns the name of the first number or parameter for which this rank's parts of two runs differ in a bit; empty
/// when they do not differ. Not collective.
std::string first_difference(const Trace& seen, const Trace& wanted);

/// Returns the mesh of a cell, over all ranks of the world.
DeviceMesh mesh_of(const Cell& cell);

/// Returns the mesh of one rank.
DeviceMesh one_rank_mesh();

}  // namespace meshtrain::testing
