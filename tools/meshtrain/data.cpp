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

constexpr const char* kDtypeHelp = "Type of a token in the file: uint8, uint16 or uint32";
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
    log_warning(glob + " matches no file below the given folders");
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
                     " has no eos_token: give --separator with an id, a token or none");
  }
  const int64_t largest = std::max(tokenizer->vocabulary_size() - 1, options.separator.value_or(0));
  options.dtype = arguments.dtype.value_or(largest < 1 << 16 ? "uint16" : "uint32");
  const PrepareTextProgress done = prepare_text(*tokenizer, options, show);
  if (done.kept_parts > 0) {
    log_info(with_separators(done.kept_parts) + " of " + counted(done.total_parts, "part") +
             (done.kept_parts == 1 ? " was" : " were") + " ready from an earlier run");
  }
  const std::string invalid =
      done.not_utf8 > 0 ? ", " + counted(done.not_utf8, "byte") + " of the files not UTF-8" : "";
  std::printf("%s: %s, %s, of %s in %s of text%s%s\n", options.output.c_str(), counted(done.tokens, "token").c_str(),
              options.dtype.c_str(), counted(done.documents, "document").c_str(),
              counted(done.text_bytes, "byte").c_str(), invalid.c_str(), describe_separator(options).c_str());
  return 0;
}

void add_prepare(CLI::App& data, int& status) {
  CLI::App* command = data.add_subcommand("prepare", "Makes a token file from text");
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
  CLI::Option* tokenizer = command
                               ->add_option("--tokenizer", arguments->text.tokenizer,
                                            std::string("For --text and --chat: ") + kTokenizerHelp)
                               ->type_name("NAME");
  CLI::Option* bytes =
      command
          ->add_option("--bytes", arguments->bytes,
                       "Files and folders whose bytes become the tokens, unchanged and joined in this order")
          ->type_name("FILE...");
  command->add_option("--out", arguments->text.output, "The token file")->required()->type_name("FILE");
  CLI::Option* dtype =
      command
          ->add_option("--dtype", arguments->dtype,
                       std::string(kDtypeHelp) + ". Default: uint16, or uint32 if the tokenizer's ids need it")
          ->type_name("TYPE");
  CLI::Option* separator =
      command
          ->add_option("--separator", arguments->separator,
                       "Token to write after each document that is not empty, for the recipe's data.documents: an id, "
                       "a token, or none. Default: the tokenizer's eos_token with --text, none with --bytes")
          ->type_name("TOKEN");
  command
      ->add_option("--include", arguments->text.filter.include,
                   "From folders, takes only files whose names match one of these globs, such as '*.md'; a glob with a "
                   "/ is compared with paths below the folder")
      ->type_name("GLOB...");
  command
      ->add_option("--exclude", arguments->text.filter.exclude,
                   "From folders, takes no files that match one of these globs, even if --include matches them")
      ->type_name("GLOB...");
  CLI::Option* per_line = command->add_flag("--document-per-line", arguments->text.format.document_per_line,
                                            "For --text: each line of a text file is a document");
  CLI::Option* field =
      command
          ->add_option("--field", arguments->text.format.field, "Key of the text in JSON lines; its column in Parquet")
          ->default_str("text")
          ->type_name("KEY");
  CLI::Option* workers =
      command
          ->add_option("--workers", arguments->text.threads, "For --text and --chat: number of threads that tokenise")
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
      "OUT.json, written next to OUT, describes its contents; train compares its recipe with it.\n"
      "Example: meshtrain data prepare --text books/ pages.jsonl --tokenizer models/SmolLM2-1.7B --out data/mine.bin\n"
      "After an interruption, give the same command again to continue: finished parts are kept in OUT.parts.\n"
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
      throw InputError("the input is missing: give --text, --bytes or --chat");
    }
    for (const CLI::Option* option : {tokenizer, workers}) {
      if (bytes->count() == 0 || option->count() == 0) continue;
      throw InputError(option->get_name() + " is an option for --text and --chat: leave it out with --bytes");
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
                             tokenizer ? "" : ": give --tokenizer to name a token by its text");
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
  CLI::App* command =
      data.add_subcommand("inspect", "Describes a token file: its size, its ids, its documents, its first tokens");
  const auto arguments = std::make_shared<InspectArguments>();
  command->add_option("file", arguments->file, "The token file")->required()->type_name("FILE");
  command
      ->add_option("--dtype", arguments->dtype,
                   std::string(kDtypeHelp) +
                       ", or megatron: FILE is NAME.bin, and NAME.idx next to it has the type. Default: megatron if "
                       "NAME.idx exists, else the type in FILE.json, else uint16")
      ->type_name("TYPE");
  command
      ->add_option("--count", arguments->count,
                   "Number of tokens to show of each sample. Default: 32, or complete conversations")
      ->check(whole_number(0))
      ->type_name("N");
  command
      ->add_option("--samples", arguments->samples,
                   "Number of samples to show, from the first on, spread over the file. Default: 1, or 3 conversations")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N");
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   std::string("Shows tokens as text: ") + kTokenizerHelp + ". Default: the tokenizer in FILE.json")
      ->type_name("NAME");
  command
      ->add_option("--separator", arguments->separator,
                   "Token that ends a document, an id or its text: documents are counted, and samples begin after it. "
                   "none: no token ends documents. Default: the separator in FILE.json")
      ->type_name("TOKEN");
  command->footer(
      "Example: meshtrain data inspect data/mine.bin --tokenizer models/SmolLM2-1.7B --samples 3\n"
      "Bytes: meshtrain data inspect data/mine.bin --dtype uint8 --count 100\n"
      "A Megatron file, with theirs.idx next to it: meshtrain data inspect data/theirs.bin");
  command->callback([arguments, &status] {
    refuse_several_ranks("meshtrain data inspect");
    const Progress progress("inspection of " + arguments->file.string());
    status = inspect(*arguments);
  });
}

}  // namespace

void add_data_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("data", "Makes token files, and describes them");
  command->require_subcommand(1);
  add_prepare(*command, status);
  add_data_inspect(*command, status);
}

}  // namespace meshtrain
