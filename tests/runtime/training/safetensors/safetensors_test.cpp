#include "runtime/training/safetensors/folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/training/safetensors/writer.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::content;
using testing::damaged;
using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::SmallDisk;
using testing::write_file;

std::string safetensors(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

/// Writes a file with these tensors.
void write_tensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  SafetensorsWriter writer(path, entries);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

at::Tensor counting(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::arange(c10::multiply_integers(shape), at::kLong).view(shape).to(dtype);
}

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string refusal(const std::string& bytes) const {
    write_file(file_, bytes);
    const std::string text = message<InputError>([&] { SafetensorsFile file(file_); });
    EXPECT_TRUE(text.empty() || has(text, file_.string() + ": ")) << text;
    return text;
  }
  ScratchFolder folder_;
  std::filesystem::path file_ = folder_.path() / "model.safetensors";
};

TEST_F(SafetensorsTest, ReadsTheDocumentedForm) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  write_file(file_,
             safetensors(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[1,25]},)"
                         R"("a":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]}}  )",
                         "\1" + std::string(reinterpret_cast<const char*>(values), sizeof values)));
  const SafetensorsFile file(file_);
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.entries()[0].name, "a") << "in the order of the data";
  EXPECT_EQ(file.entry("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("__metadata__"));
  EXPECT_TRUE(at::equal(file.read("b"), at::tensor({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}).view({2, 3}))) << "unaligned";
  EXPECT_TRUE(file.read("a").item<bool>());
  EXPECT_TRUE(has(message<InputError>([&] { file.read("c"); }), "model.safetensors: has no tensor \"c\""));
}

TEST_F(SafetensorsTest, KeepsEveryDtype) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte,
        at::kBool, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kComplexFloat, at::kUInt16, at::kUInt32, at::kUInt64}) {
    tensors.emplace_back(c10::toString(dtype), counting({3, 5}, dtype));
  }
  write_tensors(file_, tensors);
  const SafetensorsFile file(file_);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file.read(name);
    ASSERT_EQ(read.scalar_type(), tensor.scalar_type());
    ASSERT_EQ(read.sizes(), tensor.sizes());
    EXPECT_EQ(std::memcmp(read.const_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()), 0) << name;
  }
}

TEST_F(SafetensorsTest, ABoxIsTheNarrowedWhole) {
  std::mt19937_64 random(3);
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {7}, {5, 6}, {4, 3, 5}, {2, 3, 4, 3}, {1, 9}, {9, 1}, {900, 300}, {3, 20000}}) {
    const at::Tensor full = counting(shape, at::kHalf);
    write_tensors(file_, {{"pad", counting({3}, at::kByte)}, {"w", full}});
    const SafetensorsFile file(file_);
    EXPECT_TRUE(at::equal(file.read("w"), full));
    for (int i = 0; i < 200; ++i) {
      Box box;
      at::Tensor expected = full;
      for (size_t dim = 0; dim < shape.size(); ++dim) {
        const int64_t start = static_cast<int64_t>(random() % static_cast<uint64_t>(shape[dim] + 1));
        const int64_t size = static_cast<int64_t>(random() % static_cast<uint64_t>(shape[dim] - start + 1));
        const bool all = random() % 3 == 0;  // complete dims make longer runs
        box.start.push_back(all ? 0 : start);
        box.size.push_back(all ? shape[dim] : size);
        expected = expected.narrow(static_cast<int64_t>(dim), box.start.back(), box.size.back());
      }
      const at::Tensor part = file.read("w", box);
      ASSERT_EQ(part.sizes(), expected.sizes());
      EXPECT_TRUE(part.is_contiguous());
      EXPECT_TRUE(at::equal(part, expected));
    }
  }
}

TEST_F(SafetensorsTest, AFileThatIsCutShortMeanwhileIsNamedWithTheTensor) {
  write_tensors(file_, {{"first", counting({6, 6})}, {"last", counting({4, 6})}});
  const SafetensorsFile file(file_);
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 8);
  EXPECT_TRUE(at::equal(file.read("first"), counting({6, 6})));
  const std::string said = message<InputError>([&] { file.read("last"); });
  EXPECT_TRUE(has(said, "cannot read " + file_.string() + ": it has ")) << said;
  EXPECT_TRUE(said.ends_with(": it was cut short since, for tensor \"last\"")) << said;
  EXPECT_EQ(message<InputError>([&] { file.read("last", {{3, 4}, {1, 2}}); }), said);
}

TEST_F(SafetensorsTest, RefusesABoxOutsideTheTensor) {
  write_tensors(file_, {{"w", counting({4, 6})}});
  const SafetensorsFile file(file_);
  for (const Box& box : {Box{{0}, {4}}, Box{{0, 0}, {5, 6}}, Box{{3, 0}, {2, 6}}, Box{{-1, 0}, {1, 1}},
                         Box{{0, 0}, {1, -1}}, Box{{0, INT64_MAX}, {1, INT64_MAX}}}) {
    EXPECT_TRUE(has(message<InputError>([&] { file.read("w", box); }), "tensor \"w\" has shape [4, 6], the part from"));
  }
}

TEST_F(SafetensorsTest, EmptyAndScalarTensors) {
  write_tensors(file_, {{"none", at::empty({0, 3})}, {"one", at::scalar_tensor(2.5)}, {"also", at::empty({4, 0})}});
  const SafetensorsFile file(file_);
  EXPECT_EQ(file.read("none").sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(file.read("one").item<double>(), 2.5);
  EXPECT_EQ(file.read("one").dim(), 0);
  EXPECT_EQ(file.read("also").numel(), 0);
}

TEST_F(SafetensorsTest, RefusesACutFile) {
  write_tensors(file_, {{"w", counting({4, 6})}});
  const std::string full = content(file_);
  EXPECT_TRUE(has(refusal(std::string(3, '\1')), "cut short: 3 bytes"));
  EXPECT_TRUE(has(refusal(full.substr(0, 7)), "cut short: 7 bytes"));
  EXPECT_TRUE(has(refusal(full.substr(0, 20)), "cut short, or not a safetensors file: its header should take"));
  EXPECT_TRUE(has(refusal(full.substr(0, full.size() - 1)),
                  "tensor \"w\" ends at byte 96 of the data, of which there "
                  "are 95: the file was cut short"));
  EXPECT_TRUE(has(refusal(full + "x"), "1 bytes after the last tensor"));
  for (size_t size = 0; size < full.size(); ++size) EXPECT_NE(refusal(full.substr(0, size)), "") << size;
  EXPECT_EQ(refusal(full), "");
}

TEST_F(SafetensorsTest, RefusesADamagedHeader) {
  const auto tensor = [&](const std::string& description) {
    return refusal(safetensors("{\"w\":" + description + "}", std::string(8, 'x')));
  };
  EXPECT_EQ(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(3)", "is not a JSON object"},
      {R"({"shape":[2],"data_offsets":[0,8]})", "has no dtype"},
      {R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})", "has dtype F31, which is not known"},
      {R"({"dtype":"F32","data_offsets":[0,8]})", "has no proper shape"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "has no proper shape"},
      {R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "has no proper shape"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})", "has no proper shape"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", "has the impossible shape"},
      {R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", "has the impossible shape"},
      {R"({"dtype":"F32","shape":[2]})", "has no proper data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})", "has no proper data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "has no proper data_offsets"},
      {R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", "takes 8 bytes, its shape [3] of F32 needs 12"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "has a gap before it"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]},"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
       "overlaps another"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})",
       "appears twice"},
      {R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})", "ends at byte 16 of the data, of which there are 8"},
  };
  for (const auto& [description, expected] : cases) {
    EXPECT_TRUE(has(tensor(description), expected)) << description << "\n" << tensor(description);
    EXPECT_TRUE(has(tensor(description), "tensor \"")) << description;
  }
  EXPECT_TRUE(has(refusal(safetensors("{\"w\":", "")), "header is not valid JSON"));
  EXPECT_TRUE(has(refusal(safetensors("[]", "")), "header is not a JSON object"));
  EXPECT_TRUE(has(refusal(safetensors(R"({"__metadata__":3})", "")), "__metadata__ is not"));
  EXPECT_TRUE(has(refusal(safetensors(R"({"__metadata__":{"a":3}})", "")), "\"a\" that is not a string"));
  EXPECT_TRUE(has(refusal(std::string(8, '\xff')), "should take 18446744073709551615 bytes"));
  EXPECT_NE(refusal(safetensors(std::string(1'000'000, '['), "")), "") << "deep nesting";
}

TEST_F(SafetensorsTest, DamageIsRefusedOrReadButNeverWorse) {
  write_tensors(file_,
                {{"a", counting({3, 4})}, {"b", counting({2, 2, 2}, at::kBFloat16)}, {"c", counting({5}, at::kByte)}});
  const std::string full = content(file_);
  std::mt19937_64 random(7);
  for (int i = 0; i < 3000; ++i) {
    write_file(file_, damaged(full, random));
    try {
      const SafetensorsFile file(file_);
      for (const TensorEntry& entry : file.entries()) file.read(entry.name);
    } catch (const InputError&) {
    }
  }
}

TEST_F(SafetensorsTest, WritesInAnyOrderAlignedAndPadded) {
  const at::Tensor bytes = counting({3}, at::kByte), floats = counting({5}), doubles = counting({2}, at::kDouble);
  SafetensorsWriter writer(file_, {{"u", at::kByte, {3}}, {"f", at::kFloat, {5}}, {"d", at::kDouble, {2}}});
  writer.write("f", floats);
  writer.write("u", bytes);
  EXPECT_EQ(writer.num_missing(), 1);
  EXPECT_THROW(writer.finish(), std::logic_error);
  EXPECT_FALSE(std::filesystem::exists(file_));
  writer.write("d", doubles);
  writer.finish();
  const std::string text = content(file_);
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  EXPECT_EQ((8 + length) % 8, 0u);
  const json header = json::parse(text.substr(8, length));
  EXPECT_EQ(header["__metadata__"], json({{"format", "pt"}}));
  EXPECT_EQ(header["d"]["data_offsets"][0], 0) << "wider dtypes first";
  const SafetensorsFile file(file_);
  EXPECT_TRUE(at::equal(file.read("u"), bytes));
  EXPECT_TRUE(at::equal(file.read("f"), floats));
  EXPECT_TRUE(at::equal(file.read("d"), doubles));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(SafetensorsTest, WritesViewsAndRounds) {
  SafetensorsWriter writer(file_, {{"w", at::kBFloat16, {4, 3}}});
  const at::Tensor source = (counting({3, 4}, at::kDouble) / 3).t().set_requires_grad(true);
  writer.write("w", source);
  writer.finish();
  EXPECT_TRUE(at::equal(SafetensorsFile(file_).read("w"), source.detach().to(at::kBFloat16)));
}

TEST_F(SafetensorsTest, WriterRefusesWhatWasNotDeclared) {
  EXPECT_THROW(SafetensorsWriter(file_, {{"w", at::kFloat, {1}}, {"w", at::kFloat, {1}}}), std::invalid_argument);
  EXPECT_THROW(SafetensorsWriter(file_, {{"w", at::kComplexDouble, {1}}}), std::invalid_argument);
  SafetensorsWriter writer(file_, {{"w", at::kFloat, {2, 3}}});
  EXPECT_THROW(writer.write("v", counting({2, 3})), std::invalid_argument);
  EXPECT_THROW(writer.write("w", counting({3, 2})), std::invalid_argument);
  writer.write("w", counting({2, 3}));
  EXPECT_THROW(writer.write("w", counting({2, 3})), std::invalid_argument);
}

TEST_F(SafetensorsTest, AFullDiskLeavesNothing) {
  std::string error;
  {
    SafetensorsWriter writer(file_, {{"w", at::kFloat, {1000}}, {"v", at::kFloat, {1000}}});
    const SmallDisk disk(6000);
    writer.write("w", counting({1000}));
    error = message<std::runtime_error>([&] { writer.write("v", counting({1000})); });
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
  EXPECT_TRUE(has(error, "cannot write " + file_.string() + ": ")) << error;
}

TEST_F(SafetensorsTest, SaysWhatIsThereInItsPlace) {
  EXPECT_TRUE(has(refusal("<html>" + std::string(500, ' ')), "not a safetensors file: it is a page of HTML"));
  EXPECT_TRUE(has(refusal(""), "not a safetensors file: it is an empty file"));
  EXPECT_TRUE(has(refusal(std::string(5000, '\0')), "not a safetensors file: it is nothing but zeros"));
  EXPECT_TRUE(has(refusal("Access to this model is restricted."), "a text that begins \"Access to this model"));
  EXPECT_TRUE(
      has(refusal(std::string("PK\x03\x04\xff\xff\xff\xff", 8)), "not a safetensors file: it is a ZIP archive"));
}

TEST_F(SafetensorsTest, ATensorInTwoFilesIsReadAsTheIndexSays) {
  write_tensors(folder_.path() / "a.safetensors", {{"w", counting({3})}, {"v", counting({1})}});
  write_tensors(folder_.path() / "b.safetensors", {{"w", counting({3}) + 1}, {"u", counting({2})}});
  const auto index = [&](const std::string& file) {
    const json weights = {{"w", file}, {"v", "a.safetensors"}, {"u", "b.safetensors"}};
    write_file(folder_.path() / "model.safetensors.index.json", json{{"weight_map", weights}}.dump());
  };
  for (const char* file : {"a.safetensors", "b.safetensors"}) {
    index(file);
    const SafetensorsFolder folder(folder_.path());
    EXPECT_EQ(folder.repeated(), std::vector<std::string>{"w"});
    EXPECT_EQ(folder.read("w")[0].item<float>(), file[0] == 'a' ? 0 : 1);
  }
}

TEST_F(SafetensorsTest, TensorsMayBeRenamed) {
  write_tensors(file_, {{"w", counting({3})}, {"v", counting({2})}});
  SafetensorsFolder folder(folder_.path());
  folder.rename("w", "x");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"v", "x"}));
  EXPECT_EQ(folder.read("x").numel(), 3);
  EXPECT_EQ(folder.read("x", {{1}, {2}})[0].item<float>(), 1);
  folder.rename("v", "x");
  EXPECT_EQ(folder.entry("x").shape, (std::vector<int64_t>{3})) << "its name is taken";
  EXPECT_TRUE(folder.contains("v"));
}

TEST_F(SafetensorsTest, AFolderIsOneFileOrAnIndexOfMany) {
  const auto open = [&] { return message<InputError>([&] { SafetensorsFolder folder(folder_.path()); }); };
  EXPECT_TRUE(has(open(), "there is no model.safetensors, nor its index, in "));
  const auto first = folder_.path() / "model-00001-of-00002.safetensors";
  const auto second = folder_.path() / "model-00002-of-00002.safetensors";
  const auto index = folder_.path() / "model.safetensors.index.json";
  write_tensors(first, {{"a", counting({3})}, {"unlisted", counting({1})}});
  write_tensors(second, {{"b", counting({4, 2})}});
  const json weights = {{"a", first.filename().string()}, {"b", second.filename().string()}};
  write_file(index, json{{"metadata", {{"total_size", 1}}}, {"weight_map", weights}}.dump());
  const SafetensorsFolder folder(folder_.path());
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a", "b", "unlisted"}));
  EXPECT_TRUE(folder.contains("b"));
  EXPECT_TRUE(folder.contains("unlisted")) << "as in transformers";
  EXPECT_TRUE(at::equal(folder.read("b", {{1, 0}, {2, 2}}), counting({4, 2}).narrow(0, 1, 2)));
  EXPECT_EQ(folder.entry("a").shape, (std::vector<int64_t>{3}));
  EXPECT_TRUE(has(message<InputError>([&] { folder.read("c"); }), "has no tensor \"c\""));

  const auto with = [&](const json& changes) {
    json changed = weights;
    changed.merge_patch(changes);
    write_file(index, json{{"weight_map", changed}}.dump());
    return open();
  };
  EXPECT_EQ(with(json::object()), "");
  EXPECT_TRUE(has(with({{"c", "model-3.safetensors"}}),
                  "tensor \"c\" is listed in model-3.safetensors, which is missing, as 1 of its 3 files is: finish the "
                  "download"));
  EXPECT_TRUE(
      has(with({{"c", second.filename().string()}}),
          "model-00002-of-00002.safetensors: has no tensor \"c\", though model.safetensors.index.json lists it there"));
  EXPECT_TRUE(has(with({{"c", 3}}), "tensor \"c\" has no file name"));
  for (const char* elsewhere : {"../x.safetensors", "/etc/passwd", "..", "", "sub/"}) {
    EXPECT_TRUE(has(with({{"c", elsewhere}}), "not the name of a file in the same folder")) << elsewhere;
  }
  write_file(index, "{}");
  EXPECT_TRUE(has(open(), "has no weight_map"));
  write_file(index, "{");
  EXPECT_TRUE(has(open(), "not valid JSON"));
  write_tensors(file_, {{"c", counting({2})}});
  EXPECT_EQ(SafetensorsFolder(folder_.path()).names(), std::vector<std::string>{"c"}) << "the single file goes first";
}

}  // namespace
}  // namespace meshtrain
