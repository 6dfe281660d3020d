#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace meshtrain {

class KnownKeys;
struct YamlValue;

/// The keys that a recipe can have, `extends` among them.
const KnownKeys& recipe_keys();

/// The recipe, as to_yaml() says it, of the checkpoint that a run of this name goes on from; empty: there is none.
using SavedRecipe = std::function<std::string(const std::string& name)>;

/// Reads a recipe strictly: `file`, laid over those it `extends`, under `overrides` ("train.steps=20", values are
/// YAML, the last one of a key counts), under `mesh` ("dp=2,tp=auto"; empty: none), which replaces the whole mesh.
/// Paths in a file are relative to that file, those of overrides to the working directory. The shape of a model given
/// as a Hugging Face folder is read from its config.json, and where the folder is gone, from what `saved` gives.
///
/// Throws InputError, one line that begins with file:line:column or the option, names the key, and for a misspelling
/// the key that was meant. Called by one rank; the others are given to_yaml of the result.
Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const std::string& mesh, const SavedRecipe& saved = {});

/// Every key of `recipe` as YAML. load_recipe of it gives the same recipe, save for `file`.
std::string to_yaml(const Recipe& recipe);

/// The recipe that `yaml`, of to_yaml, says. Opens no file. Throws InputError as load_recipe.
Recipe parse_recipe(const std::string& yaml);
Recipe parse_recipe(const YamlValue& yaml);

}  // namespace meshtrain
