#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/files/shell_word.h"
#include "mesh/base/log.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "runtime/program/launch/threads.h"
#include "runtime/text/prepare/input_files.h"
#include "runtime/text/prepare/prepare.h"
#include "runtime/text/prepare/prepare_text.h"
#include "runtime/training/data/megatron_index.h"
#include "runtime/training/data/token_sidecar.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/data_chat.h"
#include "tools/meshtrain/launcher.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

struct PrepareArguments {
  ChatArguments chat;
  std::vector<std::filesystem::path> bytes;
  PrepareTextOptions text;
  std::optional<std::string> dtype;
  std::optional<std::string> separator;
};

struct InspectArguments {
  std::filesystem::path file;
  std::optional<std::string> dtype;
  std::optional<int64_t> count, samples;
  std::optional<std::string> separator;
  std::optional<std::string> tokenizer;
};

constexpr const char* kDtypeHelp = "Integer of a token in the file: uint8, uint16 or uint32";
constexpr const char* kTokenizerHelp =
    "bytes, or a tokenizer.json, a SentencePiece *.model, or a folder with tokenizer.json or tokenizer.model";

/// Returns a token by its id or, where there is a tokenizer, by its text. `advice`: the end of the message when it is
/// neither.
int64_t separator_id(const std::string& separator, const Tokenizer* tokenizer, const std::string& advice = "") {
  const std::optional<int64_t> token = tokenizer == nullptr ? std::nullopt : tokenizer->token_id(separator);
  const size_t sign = separator.starts_with('-') ? 1 : 0;
  const bool number = separator.size() > sign && separator.size() - sign < 18 &&
                      separator.find_first_not_of("0123456789", sign) == std::string::npos;
  if (number) return std::stoll(separator);
  if (token) return *token;
  throw InputError("--separator: \"" + separator + "\" is neither an id nor " +
                   (tokenizer == nullptr ? "none" : "a token of the tokenizer nor none") + advice);
}

/// Returns the words of this process's command line as a shell takes them.
std::string command_line() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  const std::string words(std::istreambuf_iterator<char>(stream), {});
  std::string line;
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find('\0', begin), words.size());
    line += (line.empty() ? "" : " ") + shell_word(words.substr(begin, end - begin));
    begin = end + 1;
  }
  return line;
}

/// Warns about globs that match no file.
void warn_of_unmatched(const std::vector<std::filesystem::path>& inputs, const PrepareTextOptions& options) {
  for (const std::string& glob : unmatched_globs(inputs, options.output, options.filter)) {
    log_warning(glob + " matches no file below the folders that are named");
  }
}

int prepare_from_bytes(const PrepareArguments& arguments) {
  const std::string dtype = arguments.dtype.value_or("uint16");
  std::optional<int64_t> separator;
  if (arguments.separator && *arguments.separator != "none") separator = separator_id(*arguments.separator, nullptr);
  const int64_t tokens =
      prepare_bytes(arguments.bytes, arguments.text.output, dtype, separator, arguments.text.filter, command_line());
  std::printf("%s: %s, %s\n", arguments.text.output.c_str(), counted(tokens, "token").c_str(), dtype.c_str());
  return 0;
}

std::string describe_separator(const PrepareTextOptions& options) {
  return options.separator ? ", separator " + std::to_string(*options.separator) : ", no separator";
}

int prepare_from_text(const PrepareArguments& arguments, const std::function<void(const PrepareTextProgress&)>& show) {
  PrepareTextOptions options = arguments.text;
  options.command = command_line();
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(options.tokenizer);
  options.separator = tokenizer->eos();
  if (arguments.separator) {
    options.separator = *arguments.separator == "none"
                            ? std::nullopt
                            : std::optional<int64_t>(separator_id(*arguments.separator, tokenizer.get()));
  } else if (!options.separator) {
    throw InputError("no token ends documents: " + options.tokenizer +
                     " names none; say --separator with an id, a token or none");
  }
  const int64_t largest = std::max(tokenizer->vocabulary_size() - 1, options.separator.value_or(0));
  options.dtype = arguments.dtype.value_or(largest < 1 << 16 ? "uint16" : "uint32");
  const PrepareTextProgress done = prepare_text(*tokenizer, options, show);
  if (done.kept_parts > 0) {
    log_info(with_separators(done.kept_parts) + " of " + counted(done.total_parts, "part") +
             (done.kept_parts == 1 ? " was" : " were") + " there from an earlier run");
  }
  const std::string invalid =
      done.not_utf8 > 0 ? ", " + counted(done.not_utf8, "byte") + " of the files were not UTF-8" : "";
  std::printf("%s: %s, %s, of %s in %s of text%s%s\n", options.output.c_str(), counted(done.tokens, "token").c_str(),
              options.dtype.c_str(), counted(done.documents, "document").c_str(),
              counted(done.text_bytes, "byte").c_str(), invalid.c_str(), describe_separator(options).c_str());
  return 0;
}

void add_prepare(CLI::App& data, int& status) {
  CLI::App* command = data.add_subcommand("prepare", "Makes a token file of text");
  const auto arguments = std::make_shared<PrepareArguments>();
  arguments->text.threads = static_cast<int>(find_processors().usable());
  CLI::Option* text =
      command
          ->add_option(
              "--text", arguments->text.inputs,
              "Files to tokenise, and folders for all files below them. A file is one document; in JSON lines "
              "(*.jsonl, *.ndjson, *.json) each line is one, and in *.parquet, if meshtrain was built with Arrow, "
              "each row. *.gz and *.zst are decompressed")
          ->type_name("FILE...");
  CLI::Option* tokenizer =
      command
          ->add_option("--tokenizer", arguments->text.tokenizer, std::string("Of --text and --chat: ") + kTokenizerHelp)
          ->type_name("NAME");
  CLI::Option* bytes = command
                           ->add_option("--bytes", arguments->bytes,
                                        "The same with a token for each byte: files as they are, joined in this order")
                           ->type_name("FILE...");
  command->add_option("--out", arguments->text.output, "The token file")->required()->type_name("FILE");
  CLI::Option* dtype = command
                           ->add_option("--dtype", arguments->dtype,
                                        std::string(kDtypeHelp) + "; uint16 unless ids of the tokenizer need more")
                           ->type_name("TYPE");
  CLI::Option* separator =
      command
          ->add_option("--separator", arguments->separator,
                       "Token to write after each document that is not empty, the one to name as data.documents: an "
                       "id, a token, or none. Of --text by default the tokenizer's eos_token, of --bytes none")
          ->type_name("TOKEN");
  command
      ->add_option("--include", arguments->text.filter.include,
                   "Of folders: only files whose names match one of these globs (with a /: whose paths below the "
                   "folder do), '*.md'")
      ->type_name("GLOB...");
  command
      ->add_option("--exclude", arguments->text.filter.exclude,
                   "Of folders: no files that match one of these globs, whatever --include says")
      ->type_name("GLOB...");
  CLI::Option* per_line = command->add_flag("--document-per-line", arguments->text.format.document_per_line,
                                            "Of --text: each line of a text file is a document");
  CLI::Option* field = command
                           ->add_option("--field", arguments->text.format.field,
                                        "Of JSON lines: the key of the text; of Parquet: its column")
                           ->default_str("text")
                           ->type_name("KEY");
  CLI::Option* workers =
      command->add_option("--workers", arguments->text.threads, "Of --text and --chat: threads that tokenise")
          ->capture_default_str()
          ->check(CLI::Range(1, 4096))
          ->type_name("N");
  CLI::Option* chat = add_chat_options(*command, arguments->chat);
  for (CLI::Option* tokenised : {text, chat}) tokenised->needs(tokenizer);
  for (CLI::Option* of_text : {per_line, field}) of_text->needs(text);
  bytes->excludes(text)->excludes(chat);
  text->excludes(chat);
  for (CLI::Option* chosen : {dtype, separator}) chat->excludes(chosen);
  command->footer(
      "Beside OUT stands OUT.json, which says what OUT holds; train compares its recipe with it.\n"
      "Example: meshtrain data prepare --text books/ pages.jsonl --tokenizer models/SmolLM2-1.7B --out data/mine.bin\n"
      "A run that was stopped goes on where it was when it is given again: parts are kept in OUT.parts.\n"
      "Conversations: meshtrain data prepare --chat chats.jsonl --tokenizer models/SmolLM2-1.7B-Instruct "
      "--sequence-length 2048 --out data/chat.bin\n"
      "Bytes: meshtrain data prepare --bytes README.md docs --out data/mine.bin --dtype uint8\n"
      "Packed documents of bytes: meshtrain data prepare --bytes docs --out data/docs.bin --separator 256");
  command->callback([arguments, text, bytes, chat, tokenizer, workers, &status] {
    refuse_several_ranks("meshtrain data prepare");
    Progress progress("preparation of " + arguments->text.output.string(), 0, "bytes");
    const auto show = [&progress, first = true](const PrepareTextProgress& now) mutable {
      if (std::exchange(first, false)) progress.start_at(now.bytes);
      progress.set_total(now.total_bytes);
      progress.set(now.bytes);
      progress.note(counted(now.documents, "document") + ", " + counted(now.tokens, "token"));
    };
    if (text->count() + bytes->count() + chat->count() == 0) {
      throw InputError("what to prepare is missing: --text or --bytes, or --chat");
    }
    for (const CLI::Option* option : {tokenizer, workers}) {
      if (bytes->count() == 0 || option->count() == 0) continue;
      throw InputError(option->get_name() + " goes with --text or --chat, and --bytes is given");
    }
    if (chat->count() > 0) {
      ChatArguments chats = arguments->chat;
      chats.options.filter = arguments->text.filter;
      chats.options.output = arguments->text.output;
      chats.options.threads = arguments->text.threads;
      chats.options.tokenizer = arguments->text.tokenizer;
      chats.options.command = command_line();
      status = prepare_from_chat(chats, show);
    } else {
      status = text->count() > 0 ? prepare_from_text(*arguments, show) : prepare_from_bytes(*arguments);
    }
    warn_of_unmatched(chat->count() > 0   ? arguments->chat.options.inputs
                      : text->count() > 0 ? arguments->text.inputs
                                          : arguments->bytes,
                      arguments->text);
  });
}

/// Returns the tokenizer that a sidecar names; null when there is none, or when it is no longer as it was.
std::shared_ptr<const Tokenizer> tokenizer_of(const std::optional<TokenSidecar>& sidecar) try {
  const bool is_same = sidecar && tokenizer_fingerprint(sidecar->tokenizer) == sidecar->tokenizer_checksum;
  return is_same ? load_tokenizer(sidecar->tokenizer) : nullptr;
} catch (const InputError&) {
  return nullptr;
}

int inspect(const InspectArguments& arguments) {
  const std::optional<TokenSidecar> sidecar = read_sidecar(arguments.file);
  const std::shared_ptr<const Tokenizer> tokenizer =
      arguments.tokenizer ? load_tokenizer(*arguments.tokenizer) : tokenizer_of(sidecar);
  std::optional<int64_t> separator = sidecar ? sidecar->separator : std::nullopt;
  if (arguments.separator == "none") {
    separator.reset();
  } else if (arguments.separator) {
    separator = separator_id(*arguments.separator, tokenizer.get(),
                             tokenizer ? "" : ": the text of a token is known with --tokenizer");
  }
  const std::string found = MegatronIndex::is_beside(arguments.file) ? "megatron"
                            : sidecar                                ? sidecar->data_dtype()
                                                                     : "uint16";
  inspect_tokens(std::cout, arguments.file, arguments.dtype.value_or(found), arguments.count, separator,
                 tokenizer.get(), arguments.samples);
  std::cout.flush();
  return 0;
}

void add_data_inspect(CLI::App& data, int& status) {
  CLI::App* command = data.add_subcommand("inspect", "Looks into a token file: how many tokens, which, the first ones");
  const auto arguments = std::make_shared<InspectArguments>();
  command->add_option("file", arguments->file, "The token file")->required()->type_name("FILE");
  command
      ->add_option(
          "--dtype", arguments->dtype,
          std::string(kDtypeHelp) +
              ", or megatron: FILE is NAME.bin and NAME.idx beside it says. Without it megatron where there is "
              "such a NAME.idx, else as FILE.json says, else uint16")
      ->type_name("TYPE");
  command
      ->add_option("--count", arguments->count,
                   "How many tokens to show of a sample. Default: 32; of conversations, each to its end")
      ->check(whole_number(0))
      ->type_name("N");
  command
      ->add_option("--samples", arguments->samples,
                   "How many samples to show: the first tokens, and others further on. Default: 1; of conversations, 3 "
                   "complete ones")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N");
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   std::string("Shows tokens as text: ") + kTokenizerHelp + ". Default: the one that FILE.json names")
      ->type_name("NAME");
  command
      ->add_option(
          "--separator", arguments->separator,
          "Token that ends a document, an id or a token: says how many there are, and samples begin after one; "
          "none: no token does. Default: as FILE.json says")
      ->type_name("TOKEN");
  command->footer(
      "Example: meshtrain data inspect data/mine.bin --tokenizer models/SmolLM2-1.7B --samples 3\n"
      "Bytes: meshtrain data inspect data/mine.bin --dtype uint8 --count 100\n"
      "Of Megatron, with theirs.idx beside it: meshtrain data inspect data/theirs.bin");
  command->callback([arguments, &status] {
    refuse_several_ranks("meshtrain data inspect");
    const Progress progress("inspection of " + arguments->file.string());
    status = inspect(*arguments);
  });
}

}  // namespace

void add_data_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("data", "Makes token files, and looks into them");
  command->require_subcommand(1);
  add_prepare(*command, status);
  add_data_inspect(*command, status);
}

}  // namespace meshtrain
