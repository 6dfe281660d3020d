#include "runtime/program/yaml/layers.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "runtime/program/yaml/flat_keys.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

class Layers : public ::testing::Test {
 protected:
  std::filesystem::path write_layer(const std::string& name, const std::string& text) const {
    write_file(folder_.path() / name, text);
    return folder_.path() / name;
  }

  const ScratchFolder folder_;
  const KnownKeys keys_{{{"train", "a map of keys", {}, ""},
                         {"train.steps", "a whole number", {}, ""},
                         {"train.memory", "a map of keys", {}, "mode"},
                         {"train.memory.mode", "a word", {}, ""}}};
};

TEST_F(Layers, AFileLiesOverThoseThatItExtendsWithoutTheirName) {
  write_layer("base/small.yaml", "name: small\ntrain: {steps: 3, seed: 1}\n");
  write_layer("base/middle.yaml", "extends: small.yaml\ntrain: {seed: 2}\n");
  const YamlValue top = read_layers(write_layer("top.yaml", "extends: base/middle.yaml\ntrain: {steps: 4}\n"));
  EXPECT_EQ(flat_text(top), "{train: {steps: 4, seed: 2}}");
  EXPECT_EQ(top.find("train")->find("seed")->location.text(), (folder_.path() / "base/middle.yaml").string() + ":2:15");
  EXPECT_EQ(top.location.text(), (folder_.path() / "top.yaml").string());
}

TEST_F(Layers, APathBeginsAtTheFileThatNamesIt) {
  write_layer("base/small.yaml", "tokens: a.bin\n");
  const YamlValue top = read_layers(write_layer("top.yaml", "extends: base/small.yaml\nmask: b.bin\n"));
  EXPECT_EQ(top.find("tokens")->location.source->folder, folder_.path() / "base");
  EXPECT_EQ(top.find("mask")->location.source->folder, folder_.path());
}

TEST_F(Layers, AFileWithoutEndIsReadAsFarAsARecipeMayBe) {
  EXPECT_EQ(read_short_file("/dev/zero", "").size(), (size_t{1} << 20) + 1);
  EXPECT_EQ(message<InputError>([&] { read_short_file(folder_.path(), "r: "); }),
            "r: is a folder: give the recipe in it, such as " + (folder_.path() / "recipe.yaml").string());
}

TEST_F(Layers, AnOptionIsALayerOfItsKeyAlone) {
  EXPECT_EQ(flat_text(override_layer("train.steps=20", keys_)), "{train: {steps: 20}}");
  EXPECT_EQ(flat_text(override_layer("steps=20", keys_)), "{train: {steps: 20}}");
  EXPECT_EQ(flat_text(override_layer("train.memory=full", keys_)), "{train: {memory: {mode: full}}}");
  EXPECT_EQ(flat_text(override_layer("train.memory={mode: full}", keys_)), "{train: {memory: {mode: full}}}");
  EXPECT_EQ(flat_text(override_layer("a.2.b=[1, 2]", keys_)), "{a: {2: {b: [1, 2]}}}");
  EXPECT_EQ(override_layer("memory=full", keys_).location.source->option_key, "train.memory.mode");
}

TEST_F(Layers, NumbersInAPathAreIndices) {
  EXPECT_EQ(with_indices("data.mixture.0.weight"), "data.mixture[0].weight");
  EXPECT_EQ(with_indices("0.a"), "0.a") << "a number at the beginning is a key";
  EXPECT_EQ(with_indices("a.1b"), "a.1b");
}

}  // namespace
}  // namespace meshtrain::testing
