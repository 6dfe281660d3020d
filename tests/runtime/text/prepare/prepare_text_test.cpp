#include "runtime/text/prepare/prepare_text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>

#include "mesh/base/error.h"
#include "runtime/training/data/token_file.h"
#include "runtime/training/data/token_sidecar.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::content;
using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::SmallDisk;
using testing::write_file;

/// A tokenizer of bytes, with a token before and after each text. Counts its texts and fails at one of them.
class CountingTokenizer final : public Tokenizer {
 public:
  explicit CountingTokenizer(int64_t fails_at = -1) : fails_at_(fails_at) {}

  void encode(std::string_view text, std::vector<int64_t>& ids, bool) const override {
    if (count_++ == fails_at_) throw std::runtime_error("the machine is gone");
    ids.push_back(300);
    bytes_->encode(text, ids);
    ids.push_back(301);
  }
  std::string decode(const std::vector<int64_t>& ids, bool) const override { return bytes_->decode(ids); }
  int64_t vocabulary_size() const override { return 302; }
  std::optional<int64_t> token_id(const std::string&) const override { return std::nullopt; }
  const std::vector<SpecialToken>& special_tokens() const override { return bytes_->special_tokens(); }
  int64_t count() const { return count_; }

 private:
  std::shared_ptr<const Tokenizer> bytes_ = load_tokenizer("bytes");
  int64_t fails_at_;
  mutable std::atomic<int64_t> count_ = 0;
};

class PrepareText : public ::testing::Test {
 protected:
  PrepareText() {
    options_.inputs = {scratch_.path() / "text"};
    options_.output = scratch_.path() / "out.bin";
    options_.tokenizer = "bytes";
    options_.separator = 400;
  }

  void file(const std::string& name, const std::string& text) { write_file(scratch_.path() / "text" / name, text); }

  // Returns the documents of the output.
  std::vector<std::string> documents() const {
    const TokenFile tokens(options_.output, options_.dtype);
    std::vector<int64_t> ids(static_cast<size_t>(tokens.size()));
    tokens.read(0, tokens.size(), ids.data());
    std::vector<std::string> all(1);
    for (const int64_t id : ids) {
      if (id == 300) {
        EXPECT_EQ(all.back(), "");
      }
      if (id < 256) all.back() += static_cast<char>(id);
      if (id == 400) all.emplace_back();
    }
    EXPECT_EQ(all.back(), "");
    all.pop_back();
    return all;
  }

  std::filesystem::path parts() const { return scratch_.path() / "out.bin.parts"; }

  ScratchFolder scratch_;
  CountingTokenizer tokenizer_;
  PrepareTextOptions options_;
};

using Texts = std::vector<std::string>;

TEST_F(PrepareText, TakesEachFileAsADocument) {
  file("b.txt", "B\nb");
  file("a/z.md", "Z");
  file("empty", "");
  file(".git/hidden", "H");
  const PrepareTextProgress done = prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"Z", "B\nb"}));
  EXPECT_EQ(done.documents, 2);
  EXPECT_EQ(done.tokens, 4 + 2 * 3);
  EXPECT_EQ(done.bytes, 4);
  EXPECT_EQ(done.total_bytes, 4);
  EXPECT_FALSE(std::filesystem::exists(parts()));
  options_.separator = std::nullopt;
  EXPECT_EQ(prepare_text(tokenizer_, options_).tokens, 4 + 2 * 2);
}

TEST_F(PrepareText, SaysBesideTheFileWhatItHolds) {
  file("a.txt", "text");
  options_.command = "the command";
  options_.output = scratch_.path() / "made.bin";
  prepare_text(tokenizer_, options_);
  const TokenSidecar sidecar = read_sidecar(options_.output).value();
  EXPECT_EQ(sidecar.dtype, "uint16");
  EXPECT_EQ(sidecar.tokens, 4 + 2 + 1);
  EXPECT_EQ(sidecar.text_bytes, 4);
  EXPECT_EQ(sidecar.separator, 400);
  EXPECT_EQ(sidecar.vocabulary_size, 401) << "the separator is beyond the tokenizer's ids";
  EXPECT_EQ(sidecar.tokenizer_checksum, "bytes");
  EXPECT_EQ(sidecar.command, "the command");
  options_.separator = std::nullopt;
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(read_sidecar(options_.output)->vocabulary_size, 302);
}

// Counts the text, not the file around it; a second run takes the count from the parts of the first.
TEST_F(PrepareText, CountsTheBytesOfTheTexts) {
  file("a.jsonl", "{\"text\": \"one\", \"more\": 1}\n{\"text\": \"\\u00e9\"}\n");
  file("b.txt", "four");
  options_.output = scratch_.path() / "made.bin";
  const PrepareTextProgress done = prepare_text(tokenizer_, options_);
  EXPECT_EQ(done.text_bytes, 3 + 2 + 4);
  EXPECT_GT(done.bytes, done.text_bytes);
  EXPECT_EQ(read_sidecar(options_.output)->text_bytes, done.text_bytes);
}

TEST_F(PrepareText, TakesLines) {
  file("a.txt", "one\n\ntwo\r\n \nthree");
  options_.format.document_per_line = true;
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"one", "two", " ", "three"}));
}

TEST_F(PrepareText, TakesJsonLines) {
  file("a.jsonl",
       "{\"text\": \"one\\n\\u00e9\\ud83d\\ude00\", \"x\": [1]}\r\n\n  \n{\"text\": \"\"}\n{\"text\":\"t\xffwo\"}");
  file("b.txt", "plain\ntext");
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"one\n\u00e9\U0001F600", "t\uFFFDwo", "plain\ntext"}));
  file("b.txt", "");
  file("a.jsonl", "{\"text\": null}\n{\"text\": \"null\"}");
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"null"}));
  file("a.jsonl", "{\"body\": \"here\"}");
  options_.format.field = "body";
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"here"}));
}

TEST_F(PrepareText, KnowsJsonLinesByAnyOfTheirNames) {
  for (const char* name : {"a.ndjson", "b.JSONL", "c.NdJson"}) file(name, "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"one", "two", "one", "two", "one", "two"}));
}

// C4 and Dolma name JSON lines *.json.gz, and WikiExtractor gives them names without an ending.
TEST_F(PrepareText, KnowsJsonLinesByTheirBeginning) {
  const std::string lines = "{\"text\": \"one\", \"url\": {\"a\": [1]}}\n\n{\"text\": \"two\"}\n";
  file("a.json", lines);
  file("b.JSON", "\n\xEF\xBB\xBF{\"text\": \"three\"}");
  file("c.json.gz", "");
  ASSERT_EQ(std::system(("gzip -c '" + (scratch_.path() / "text/a.json").string() + "' > '" +
                         (scratch_.path() / "text/c.json.gz").string() + "'")
                            .c_str()),
            0);
  file("wiki_00", lines);
  file("x.json", "{\n  \"name\": \"a package\"\n}\n");
  file("y.json", "{\"version\": 3}\n");
  file("z.txt", lines);
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"one", "two", "three", "one", "two", "one", "two", "{\n  \"name\": \"a package\"\n}\n",
                                "{\"version\": 3}\n", lines}));
  const auto refusal = [&] { return message<InputError>([&] { prepare_text(tokenizer_, options_); }); };
  options_.format.field = "body";
  EXPECT_TRUE(has(refusal(), "a.json, line 1: no \"body\"")) << refusal();
  const std::string large = std::string(300'000, 'x');
  options_.format.field.reset();
  options_.inputs = {scratch_.path() / "text/large.json"};
  file("large.json", "{\"text\": \"" + large + "\"}\n{\"text\": \"two\"}");
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{large, "two"})) << "a first line of many blocks";
}

TEST_F(PrepareText, AJsonDocumentWithTextsIsRefused) {
  const std::string path = scratch_.path() / "text/a.json";
  const auto refusal = [&](const std::string& text) {
    file("a.json", text);
    return message<InputError>([&] { prepare_text(tokenizer_, options_); });
  };
  EXPECT_EQ(refusal("[{\"text\": \"a\"},\n {\"text\": \"b\"}]"),
            path + " is a JSON document with \"text\", not JSON lines: jq -c '.[]' " + path +
                " > FILE.jsonl makes them; a file whose name ends in .txt is read as one text");
  EXPECT_TRUE(has(refusal("{\n \"text\" : \"a\"\n}"), ": jq -c . " + path));
  EXPECT_EQ(refusal("[\"text\", \"b\"]"), "") << "a value";
  EXPECT_FALSE(std::filesystem::exists(parts()));
}

TEST_F(PrepareText, RefusesWhatADownloadLeft) {
  const auto refusal = [&](const std::string& name, const std::string& bytes) {
    file(name, bytes);
    const std::string text = message<InputError>([&] { prepare_text(tokenizer_, options_); });
    EXPECT_TRUE(has(text, name)) << text;
    std::filesystem::remove(scratch_.path() / "text" / name);
    return text;
  };
  file("0.txt", "text");
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 247\n";
  for (const char* name : {"a.txt", "a.jsonl", "a.jsonl.gz", "a.json.zst", "a.parquet"}) {
    EXPECT_TRUE(has(refusal(name, pointer), "it is a pointer of Git LFS")) << name;
  }
  const std::string page = "<!doctype html>\n<html><body>Sign in</body></html>\n";
  EXPECT_TRUE(has(refusal("a.jsonl", page), "a.jsonl is not text: it is a page of HTML: download it again"));
  EXPECT_TRUE(has(refusal("a.jsonl.gz", page), "it is a page of HTML, not the file itself: download it again"));
  EXPECT_TRUE(has(refusal("a.parquet", page), "it is not a Parquet file: it is a page of HTML"));
  EXPECT_TRUE(has(refusal("a.txt", "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code></Error>"),
                  "a.txt is not text: it is a server's error message: download it again"));
  EXPECT_TRUE(has(refusal("a.jsonl.zst", ""), "it is an empty file: download it again"));
  for (const char* name : {"a.txt.part", "a.jsonl.incomplete", "a.crdownload"}) {
    EXPECT_TRUE(has(refusal(name, "half a te"), "so its download is not complete")) << name;
  }
  EXPECT_TRUE(has(refusal(".cache/huggingface/download/b.jsonl.4d7a.incomplete", "half"),
                  "the download into " + (scratch_.path() / "text").string() + " is not complete"));
  EXPECT_FALSE(std::filesystem::exists(parts()));
  file("a.html", page);
  EXPECT_EQ(prepare_text(tokenizer_, options_).documents, 2) << "pages that are texts";
}

TEST_F(PrepareText, AKeyWithoutJsonLinesIsRefused) {
  file("a.txt", "text");
  options_.format.field = "body";
  EXPECT_TRUE(has(message<InputError>([&] { prepare_text(tokenizer_, options_); }),
                  "--field body is a key of JSON lines, and no input is *.jsonl or *.ndjson"));
  EXPECT_FALSE(std::filesystem::exists(parts()));
}

TEST_F(PrepareText, RefusesWhatIsNoText) {
  const auto refusal = [&](const std::string& name, const std::string& bytes) {
    file(name, bytes);
    const std::string text = message<InputError>([&] { prepare_text(tokenizer_, options_); });
    EXPECT_TRUE(has(text, name + " is not text: ")) << text;
    EXPECT_FALSE(std::filesystem::exists(options_.output));
    std::filesystem::remove(scratch_.path() / "text" / name);
    return text;
  };
  file("0.txt", "text");
  EXPECT_TRUE(has(refusal("a.txt", "\x1f\x8b\x08"),
                  "it is a file compressed by gzip: give it a name that ends in .gz, or decompress it first"));
  EXPECT_TRUE(has(refusal("a.txt", "\x28\xb5\x2f\xfd$"), "compressed by zstd: give it a name that ends in .zst"));
  EXPECT_TRUE(has(refusal("a.bz2", "BZh91AY&SY#"), "it is a file compressed by bzip2"));
  EXPECT_TRUE(has(refusal("a.xz",
                          "\xfd"
                          "7zXZ"),
                  "compressed by xz"));
  EXPECT_TRUE(has(refusal("a.zip", "PK\x03\x04"), "it is a ZIP archive"));
  EXPECT_TRUE(has(refusal("a.txt", std::string("ab\0c", 4)), "its byte 2 is 0: decompress it or convert it to UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(parts())) << "seen before anything was done";
  const std::string late = std::string(100'000, 'a') + std::string("\n\0", 2);
  EXPECT_TRUE(has(refusal("a.txt", late), "its byte 100001 is 0"));
  options_.format.document_per_line = true;
  EXPECT_TRUE(has(refusal("a.txt", late), "its byte 100001 is 0"));
  EXPECT_TRUE(has(refusal("a.jsonl", std::string(100'000, '\n') + std::string("{\0", 2)), "its byte 100001 is 0"));
  file("a.txt", "BZh9 is no mark, nor PK");
  EXPECT_EQ(prepare_text(tokenizer_, options_).documents, 2);
}

TEST_F(PrepareText, RefusesTheSameFileTwice) {
  file("a.txt", "text");
  file("b.txt", "text");
  const std::string folder = scratch_.path() / "text", a = folder + "/a.txt";
  const auto refusal = [&] { return message<InputError>([&] { prepare_text(tokenizer_, options_); }); };
  options_.inputs = {folder, folder + "/./a.txt"};
  EXPECT_TRUE(has(refusal(), "the inputs " + a + " and " + folder + "/./a.txt are the same file: leave one out"));
  options_.inputs = {folder};
  std::filesystem::create_symlink("a.txt", folder + "/c.txt");
  EXPECT_TRUE(has(refusal(), "the inputs " + a + " and " + folder + "/c.txt are the same file"));
  EXPECT_FALSE(std::filesystem::exists(parts()));
}

TEST_F(PrepareText, CountsBytesThatAreNoUtf8) {
  file("a.txt",
       "\xff"
       "fine\xe2\x82");  // half of a euro sign
  file("b.jsonl", "{\"text\": \"\xfe\"}\n{\"text\": \"\u00e9\"}");
  file("c.txt", "text");
  options_.part_bytes = 1;
  const auto failing = [&] { prepare_text(CountingTokenizer(2), options_); };
  EXPECT_EQ(message<std::runtime_error>(failing), "the machine is gone");
  const PrepareTextProgress done = prepare_text(tokenizer_, options_);
  EXPECT_GT(done.kept_parts, 0);
  EXPECT_EQ(done.not_utf8, 4) << "those of an earlier run too";
}

// Python's json.dumps() writes such escapes.
TEST_F(PrepareText, ReplacesHalfASurrogatePair) {
  file("a.jsonl",
       "{\"text\": \"a\\ud83d b\\ude00\"}\n{\"text\": \"\\ud83d\\ud83d\\ude00\\uDC00\", \"x\": \"\\ud83d\"}\n"
       "{\"text\": \"\\\\ud83d \\ud83d\\n\"}");
  const PrepareTextProgress done = prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"a\uFFFD b\uFFFD", "\uFFFD\U0001F600\uFFFD", "\\ud83d \uFFFD\n"}));
  EXPECT_EQ(done.not_utf8, 6 * 6);
}

TEST_F(PrepareText, TakesTheNumbersThatPythonWrites) {
  file("a.jsonl",
       "{\"text\": \"NaN \\\" NaN\", \"score\": NaN, \"of\": [-Infinity,Infinity]}\n{\"text\": NaN}\n"
       "{\"text\": \"\\ud83d\", \"score\": NaN}");
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"NaN \" NaN", "\uFFFD"}));
}

TEST_F(PrepareText, RefusesMalformedLines) {
  const auto refusal = [&](const std::string& line) {
    file("a.jsonl", "{\"text\": \"fine\"}\n\n" + line + "\n{\"text\": \"fine\"}\n");
    const std::string text = message<InputError>([&] { prepare_text(tokenizer_, options_); });
    EXPECT_TRUE(has(text, "a.jsonl, line 3: ")) << text;
    EXPECT_FALSE(std::filesystem::exists(options_.output));
    return text;
  };
  for (const int64_t part_bytes : {1, 20, 1000}) {
    options_.part_bytes = part_bytes;
    const std::string cut = refusal("{\"text\": ");
    EXPECT_TRUE(has(cut, ", line 3: not valid JSON: column 10: syntax error")) << cut;
    EXPECT_EQ(cut.find("line", cut.find("line 3") + 1), std::string::npos) << "one number of a line: " << cut;
    EXPECT_TRUE(has(refusal("{\"text\": 1e999}"), ", line 3: not valid JSON: number overflow"));
    EXPECT_TRUE(has(refusal("[1]"), "not a JSON object"));
    EXPECT_TRUE(has(refusal("{\"body\": \"\"}"), "no \"text\": name the text's key with --field"));
    EXPECT_TRUE(has(refusal("{\"text\": 5}"), "\"text\" is not a string, but of the type number: name the key"));
    EXPECT_TRUE(has(refusal("{\"text\": [\"a\"]}"), "\"text\" is not a string, but of the type array: "));
    EXPECT_TRUE(has(refusal("{\"text\": \"\\ud83d\""), ", line 3: not valid JSON: column "));
  }
}

TEST_F(PrepareText, GivesTheSameForAnyPartsAndThreads) {
  Texts expected;
  std::string lines, objects;
  for (int i = 0; i < 12; ++i) {
    expected.push_back("line " + std::to_string(i) + std::string(static_cast<size_t>(i * i % 17), 'x'));
    lines += expected.back() + (i % 3 == 0 ? "\r\n" : i % 5 == 0 ? "\n\n\n" : "\n");
    objects += "{\"text\": \"" + expected.back() + "\"}\n";
  }
  file("a.jsonl", objects);
  file("b.txt", lines);
  file("c.txt", "no end");
  Texts twice = expected;
  twice.insert(twice.end(), expected.begin(), expected.end());
  twice.push_back("no end");
  options_.format.document_per_line = true;
  for (const int64_t part_bytes : {3, 29, 64, 1 << 20}) {
    for (const int threads : {1, 4}) {
      options_.part_bytes = part_bytes;
      options_.threads = threads;
      const PrepareTextProgress done = prepare_text(tokenizer_, options_);
      EXPECT_EQ(documents(), twice) << part_bytes << " bytes a part, " << threads << " threads";
      EXPECT_EQ(done.documents, static_cast<int64_t>(twice.size()));
      EXPECT_EQ(done.bytes, static_cast<int64_t>(objects.size() + lines.size() + 6));
      EXPECT_EQ(done.parts, done.total_parts);
    }
  }
}

TEST_F(PrepareText, GoesOnWithThePartsThatAreThere) {
  Texts expected;
  for (int i = 10; i < 50; ++i) {
    expected.push_back("document " + std::to_string(i));
    file(std::to_string(i), expected.back());
  }
  options_.part_bytes = 25;  // two documents
  for (const int threads : {1, 3}) {
    options_.threads = threads;
    const CountingTokenizer failing(25);
    EXPECT_EQ(message<std::runtime_error>([&] { prepare_text(failing, options_); }), "the machine is gone");
    EXPECT_FALSE(std::filesystem::exists(options_.output));
    ASSERT_TRUE(std::filesystem::exists(parts() / "0.tokens"));
    write_file(parts() / "1.tokens",
               content(parts() / "1.tokens").substr(0, 30));  // as a file system that lost a piece
    write_file(parts() / "39.tokens.partial", "half");

    options_.threads = 4 - threads;
    const CountingTokenizer second;
    const PrepareTextProgress done = prepare_text(second, options_);
    EXPECT_EQ(documents(), expected);
    EXPECT_GE(done.kept_parts, 12 - threads);
    EXPECT_EQ(second.count(), 40 - 2 * done.kept_parts);
    EXPECT_EQ(done.documents, 40);
    EXPECT_FALSE(std::filesystem::exists(parts()));
    std::filesystem::remove(options_.output);
  }
}

TEST_F(PrepareText, BeginsAnewWhenSomethingElseIsAsked) {
  file("a", "first");
  file("b", "second");
  options_.part_bytes = 1;
  const auto kept_after = [&](const std::function<void()>& change) {
    EXPECT_NE(message<std::runtime_error>([&] { prepare_text(CountingTokenizer(1), options_); }), "");
    EXPECT_TRUE(std::filesystem::exists(parts() / "0.tokens"));
    change();
    return prepare_text(tokenizer_, options_).kept_parts;
  };
  EXPECT_EQ(kept_after([] {}), 1);
  EXPECT_EQ(kept_after([&] { options_.threads = 2; }), 1);
  options_.threads = 1;
  EXPECT_EQ(kept_after([&] { options_.separator = 401; }), 0);
  EXPECT_EQ(kept_after([&] { options_.dtype = "uint32"; }), 0);
  file("c.jsonl", "");
  EXPECT_EQ(kept_after([&] { options_.format.field = "other"; }), 0);
  EXPECT_EQ(kept_after([&] { file("b", "another length"); }), 0);
  EXPECT_EQ(kept_after([&] { file("d", "more"); }), 0);
}

TEST_F(PrepareText, IsDoneByOneAtATime) {
  file("a", "text");
  std::filesystem::create_directories(parts());
  const int lock = open((parts() / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  EXPECT_TRUE(has(message<InputError>([&] { prepare_text(tokenizer_, options_); }), "is in use"));
  close(lock);
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"text"}));
}

// Files with the names of the parts belong to somebody else.
TEST_F(PrepareText, RemovesNothingThatItDidNotWrite) {
  file("a", "text");
  const auto refusal = [&] { return message<InputError>([&] { prepare_text(tokenizer_, options_); }); };
  write_file(parts() / "chapter one", "a corpus");
  EXPECT_TRUE(has(refusal(), "but data prepare did not write chapter one there: name another --out"));
  EXPECT_EQ(content(parts() / "chapter one"), "a corpus");
  EXPECT_FALSE(std::filesystem::exists(parts() / "lock"));

  options_.inputs = {parts()};
  EXPECT_TRUE(has(refusal(), "is the folder that data prepare needs for the parts of --out"));
  EXPECT_EQ(content(parts() / "chapter one"), "a corpus");

  options_.inputs = {scratch_.path() / "text"};
  std::filesystem::rename(parts(), scratch_.path() / "elsewhere");
  std::filesystem::create_symlink("elsewhere", parts());
  EXPECT_TRUE(has(refusal(), "but that is a link: name another --out"));
  EXPECT_EQ(content(scratch_.path() / "elsewhere" / "chapter one"), "a corpus");

  std::filesystem::remove(parts());
  write_file(parts() / "plan.json", "of other texts");
  write_file(parts() / "0.tokens", "of other texts");
  write_file(parts() / "1.tokens.partial", "of one that was killed");
  prepare_text(tokenizer_, options_);
  EXPECT_EQ(documents(), (Texts{"text"}));
  EXPECT_FALSE(std::filesystem::exists(parts()));
}

TEST_F(PrepareText, KeepsPartsWhosePlanCannotBeRead) {
  file("a", std::string(1000, 'a'));
  file("b", std::string(1000, 'b'));
  options_.part_bytes = 1;
  EXPECT_EQ(message<std::runtime_error>([&] { prepare_text(CountingTokenizer(1), options_); }), "the machine is gone");
  testing::inject_faults("open:plan.json:ESTALE");
  EXPECT_TRUE(has(message<std::runtime_error>([&] { prepare_text(tokenizer_, options_); }), "cannot read "));
  testing::inject_faults("");
  EXPECT_EQ(prepare_text(tokenizer_, options_).kept_parts, 1);
}

// This file system has no locks.
TEST_F(PrepareText, NeverJoinsPartsOfAnotherRun) {
  file("a", "text");
  testing::inject_faults("flock:/lock:ENOLCK");
  const auto other = [&](const PrepareTextProgress& progress) {
    if (progress.parts > 0) write_file(parts() / "plan.json", "of another run");
  };
  EXPECT_TRUE(has(message<std::runtime_error>([&] { prepare_text(tokenizer_, options_, other); }),
                  "another data prepare changed the parts in " + parts().string()));
  testing::inject_faults("");
  EXPECT_FALSE(std::filesystem::exists(options_.output));
}

TEST_F(PrepareText, RefusesInputsThatChangeMeanwhile) {
  for (const std::string change : {"cut short", "written anew"}) {
    file("a.txt", std::string(3000, 'a'));
    file("b.txt", std::string(3000, 'b'));
    options_.part_bytes = 1000;
    bool is_first = true;
    const std::string said = message<InputError>([&] {
      prepare_text(tokenizer_, options_, [&](const PrepareTextProgress&) {
        if (!std::exchange(is_first, false)) return;
        const std::filesystem::path input = scratch_.path() / "text/b.txt";
        const auto later = std::filesystem::last_write_time(input) + std::chrono::seconds(1);
        if (change == "cut short") std::filesystem::resize_file(input, 1500);
        std::filesystem::last_write_time(input, later);
      });
    });
    EXPECT_TRUE(has(said, "the inputs of " + options_.output.string() + " changed while they were read")) << change;
    EXPECT_FALSE(std::filesystem::exists(options_.output)) << change;
  }
  prepare_text(tokenizer_, options_, {});
  EXPECT_EQ(documents(), (Texts{std::string(3000, 'a'), std::string(3000, 'b')}));
}

TEST_F(PrepareText, RefusesWhatDoesNotFit) {
  file("a", "text");
  const auto refusal = [&] { return message<InputError>([&] { prepare_text(tokenizer_, options_); }); };
  options_.dtype = "uint8";
  EXPECT_EQ(refusal(), "--dtype: uint8 cannot hold the ids of bytes, which are 0 to 301: use a wider one");
  options_.dtype = "uint16";
  options_.separator = 65'536;
  EXPECT_TRUE(has(refusal(), "--separator: 65536 does not fit into a file of uint16"));
  options_.separator = 400;
  options_.inputs = {scratch_.path() / "none"};
  EXPECT_TRUE(has(refusal(), "none: there is no such file or folder"));
  std::filesystem::create_symlink("gone", scratch_.path() / "link");
  options_.inputs = {scratch_.path() / "link"};
  EXPECT_TRUE(has(refusal(), "link: it is a link to gone, which does not exist: repair it, or remove it"));
  std::filesystem::rename(scratch_.path() / "link", scratch_.path() / "text" / "link");
  options_.inputs = {scratch_.path() / "text"};
  EXPECT_TRUE(has(refusal(), "text/link: it is a link to gone, which does not exist"));
  std::filesystem::remove(scratch_.path() / "text" / "link");
  options_.inputs = {scratch_.path() / "text"};
  file("a", "");
  EXPECT_TRUE(has(refusal(), "the inputs hold no text"));
  EXPECT_FALSE(std::filesystem::exists(parts()));
  file("a", "\n\n");
  options_.format.document_per_line = true;
  EXPECT_TRUE(has(refusal(), "the inputs hold no text"));
  EXPECT_FALSE(std::filesystem::exists(parts()));
}

TEST_F(PrepareText, KeepsPartsOnAFullDisk) {
  file("a", std::string(1000, 'a'));
  file("b", std::string(100'000, 'b'));
  options_.part_bytes = 1;
  {
    const SmallDisk disk(50'000);
    EXPECT_TRUE(has(message<std::runtime_error>([&] { prepare_text(tokenizer_, options_); }), "cannot write "));
  }
  EXPECT_FALSE(std::filesystem::exists(options_.output));
  EXPECT_EQ(prepare_text(tokenizer_, options_).kept_parts, 1);
}

}  // namespace
}  // namespace meshtrain
