#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/recipe/documented.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/training/checkpoint/manifest.h"

namespace meshtrain {

class KnownKeys;
struct YamlValue;

/// Returns the keys that a recipe can have, including `extends`.
const KnownKeys& recipe_keys();

/// Returns the recipe, as to_yaml() wrote it, in the checkpoint that the run of this name resumes from; empty without
/// one.
using SavedRecipe = std::function<std::string(const std::string& name)>;

/// Reads a recipe strictly: `file`, laid over the files that it `extends`, under `overrides` ("train.steps=20"; values
/// are YAML, the last one for a key counts), under `mesh` ("dp=2,tp=auto"; empty: none), which replaces the complete
/// mesh; an override may not give an axis another size. Paths in a file are relative to that file, paths in overrides
/// to the working directory. The shape of a model given as a Hugging Face folder is read from its config.json, or, when
/// the folder is gone, from the recipe that `saved` returns.
///
/// Throws InputError: one line that begins with file:line:column or the option, names the key, and suggests the right
/// key for a misspelt one. Call on one rank, and send to_yaml() of the result to the others.
Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const std::string& mesh, const SavedRecipe& saved = {});

/// A recipe file with its section `documented`.
struct DocumentedFile {
  Recipe recipe;
  std::optional<DocumentedRun> documented;  ///< none where neither the file nor one that it extends has the section
};

/// Reads `file` under `overrides` as load_recipe() does.
DocumentedFile load_documented(const std::filesystem::path& file, const std::vector<std::string>& overrides);

/// Returns true when an override ("parallel.mesh.pp=2") sets parallel.mesh or an axis of it.
bool sets_mesh(const std::string& override);

/// Returns `recipe` with `overrides` over it, as load_recipe() takes them. Opens no file; messages begin with the key.
Recipe with_overrides(const Recipe& recipe, const std::vector<std::string>& overrides);

/// An option of a command that sets one key of a recipe: {"--dtype", "evaluate.dtype", "uint32"}.
struct KeyOption {
  std::string option, key;
  std::optional<std::string> value;  ///< none: removes the key
};

/// Reads the recipe `yaml`, which to_yaml() returned, under `options`, whose paths are relative to the working
/// directory. Opens no file. Throws InputError that begins with the option.
Recipe parse_recipe(const std::string& yaml, const std::vector<KeyOption>& options);
/// Reads a recipe that has the model of a Hugging Face folder, with its weights, and `options`; other keys that a
/// recipe needs have values that mean nothing. Throws InputError likewise, and for the folder.
Recipe recipe_of_folder(const std::filesystem::path& folder, const std::vector<KeyOption>& options);

/// Returns every key of `recipe` as YAML. load_recipe() of it returns the same recipe, except `file`.
std::string to_yaml(const Recipe& recipe);

/// Reads the manifest of the checkpoint in `folder` as read_manifest() does. Throws InputError when it has no recipe:
/// then a program that uses the library saved it.
Manifest read_run_manifest(const std::filesystem::path& folder);

/// Parses `yaml`, which to_yaml() returned. Opens no file. Throws InputError as load_recipe() does.
Recipe parse_recipe(const std::string& yaml);
Recipe parse_recipe(const YamlValue& yaml);

}  // namespace meshtrain
