#include "runtime/text/chat/chat_template.h"

#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/base/files/download.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_object.h"
#include "runtime/text/tokenizer/config_tokens.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kDefault = "default";

bool file_exists(const fs::path& path) {
  std::error_code ignored;
  return has_entry(path) && !fs::is_directory(path, ignored);
}

/// Returns the folder of a tokenizer, empty for `bytes`.
fs::path folder_of(const std::string& tokenizer) {
  if (tokenizer == "bytes") return {};
  std::error_code ignored;
  fs::path folder = tokenizer;
  if (!fs::is_directory(folder, ignored)) folder = folder.parent_path().empty() ? "." : folder.parent_path();
  const bool is_model = fs::path(tokenizer).extension() == ".model" ||
                        (fs::is_directory(tokenizer, ignored) && !file_exists(folder / "tokenizer.json") &&
                         file_exists(folder / "tokenizer.model"));
  if (is_model) {
    throw InputError(tokenizer +
                     ": a SentencePiece model does not recognise the special tokens that a chat template writes: give "
                     "the tokenizer.json that transformers' save_pretrained() makes of it");
  }
  return folder;
}

json read_if_there(const fs::path& file) {
  return file_exists(file) ? read_json_object(file.string()) : json::object();
}

/// Returns ChatTemplate::warning(). `config`: tokenizer_config.json.
std::string class_warning(const fs::path& folder, const json& config) {
  const json name = config.value("tokenizer_class", json()), legacy = config.value("legacy", json());
  if ((name != "LlamaTokenizer" && name != "LlamaTokenizerFast") || legacy == true) return "";
  const json normalizer = read_if_there(folder / "tokenizer.json").value("normalizer", json());
  if (normalizer.dump().find("\"Prepend\"") == std::string::npos) return "";
  return "ids are those of " + (folder / "tokenizer.json").string() + ", whose normalizer begins each text " +
         "after a special token with a space; transformers 5 leaves it out, as tokenizer_config.json names the "
         "class " +
         name.get<std::string>();
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& tokenizer, const std::optional<fs::path>& file) {
  const fs::path folder = folder_of(tokenizer);
  const fs::path config_file = folder / "tokenizer_config.json";
  const json config = folder.empty() ? json::object() : read_if_there(config_file);
  const auto add = [&](const std::string& name, const fs::path& path, std::string_view source) {
    jinja::Template text(path.string() + (name == kDefault ? "" : " (" + name + ")"), source);
    templates_.insert_or_assign(name, NamedTemplate{std::move(text), source.find("tools") != std::string_view::npos});
  };
  if (file) {
    name_ = file->string();
    add(kDefault, *file, read_all(*file).text());
  } else if (const fs::path own = folder / "chat_template.jinja"; !folder.empty() && file_exists(own)) {
    name_ = own.string();
    add(kDefault, own, read_all(own).text());
    std::error_code none;
    for (fs::directory_iterator entry(folder / "additional_chat_templates", none), end; !none && entry != end;
         entry.increment(none)) {
      const fs::path& path = entry->path();
      if (path.extension() == ".jinja") add(path.stem().string(), path, read_all(path).text());
    }
  } else if (config.contains("chat_template") && !config["chat_template"].is_null()) {
    name_ = config_file.string() + ": chat_template";
    const json& found = config["chat_template"];
    const auto refuse = [&] { throw InputError(name_ + " is neither a string nor a list of {name, template}"); };
    if (found.is_string()) {
      add(kDefault, name_, found.get<std::string>());
    } else if (found.is_array()) {
      for (const json& entry : found) {
        const bool named = entry.is_object() && entry.contains("name") && entry.contains("template") &&
                           entry["name"].is_string() && entry["template"].is_string();
        if (!named) refuse();
        add(entry["name"].get<std::string>(), name_, entry["template"].get<std::string>());
      }
    } else {
      refuse();
    }
  } else {
    throw InputError(
        "the tokenizer " + tokenizer + " has no chat template" +
        (folder.empty() ? "" : ": neither chat_template.jinja nor \"chat_template\" in tokenizer_config.json") +
        ": name one with --chat-template FILE.jinja");
  }
  if (!folder.empty()) warning_ = class_warning(folder, config);
  const ConfigTokens beside = folder.empty() ? ConfigTokens() : read_config_tokens(folder, nullptr);
  for (const auto& [key, token] : beside.named) {
    special_tokens_.emplace_back(key, jinja::Value::text(token.token.content));
  }
  const std::time_t seconds = std::time(nullptr);
  localtime_r(&seconds, &now_);
}

const ChatTemplate::NamedTemplate& ChatTemplate::template_for(const Conversation& conversation) const {
  auto found = conversation.tools.is_none() ? templates_.end() : templates_.find("tool_use");
  if (found == templates_.end()) found = templates_.find(kDefault);
  if (found != templates_.end()) return found->second;
  throw InputError(name_ + " has templates, but none that is called default: name one with --chat-template FILE.jinja");
}

bool ChatTemplate::has_generation(const Conversation& conversation) const {
  return template_for(conversation).text.has_generation();
}

bool ChatTemplate::reads_tools(const Conversation& conversation) const {
  return template_for(conversation).reads_tools;
}

jinja::RenderResult ChatTemplate::render(const Conversation& conversation, size_t count,
                                         bool add_generation_prompt) const {
  const auto& all = conversation.messages->values;
  jinja::RenderOptions options;
  options.messages = conversation.messages;
  if (count < all.size()) {
    jinja::List some{{all.begin(), all.begin() + static_cast<ptrdiff_t>(count)}, false, conversation.messages->depth};
    options.messages = std::make_shared<const jinja::List>(std::move(some));
  }
  options.now = now_;
  options.variables = special_tokens_;
  options.variables.insert(options.variables.end(), conversation.variables.begin(), conversation.variables.end());
  options.variables.emplace_back("messages", options.messages);
  options.variables.emplace_back("tools", conversation.tools);
  options.variables.emplace_back("documents", conversation.documents);
  options.variables.emplace_back("add_generation_prompt", add_generation_prompt);
  return template_for(conversation).text.render(options);
}

}  // namespace meshtrain
