#include "runtime/chat/conversation.h"

#include <algorithm>
#include <array>
#include <optional>

#include "mesh/error.h"
#include "runtime/files/json_object.h"
#include "runtime/jinja/failure.h"

namespace meshtrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepestJson = 200;
constexpr int kMostKeys = 10000;        // an object is searched for each new one
constexpr size_t kMostMessages = 4096;  // each is rendered with those before it

Json parse_line(std::string_view text) {
  Json object;
  try {
    std::array<int, kDeepestJson + 2> keys{};  // of the objects that are open, by their depth
    object = Json::parse(text, [&](int depth, Json::parse_event_t event, Json&) {
      if (depth > kDeepestJson) throw InputError("its values are nested more than 200 levels deep");
      const auto level = static_cast<size_t>(depth);
      if (event == Json::parse_event_t::object_start) keys[level + 1] = 0;
      if (event == Json::parse_event_t::key && ++keys[level] > kMostKeys) {
        throw InputError("an object in it has more than 10,000 keys");
      }
      return true;
    });
  } catch (const Json::exception& error) {
    std::string reason = error.what();
    if (const size_t at = reason.find("column "); at != std::string::npos) reason.erase(0, at);
    throw InputError("not valid JSON: " + reason.substr(0, 200));
  }
  if (!object.is_object()) throw InputError("not a JSON object");
  return object;
}

Json message(const char* role, const Json& content) {
  return Json{{"role", role}, {"content", content}};
}

/// Returns the list of messages under `key`, of which a text is one of `role`.
Json messages_of(const Json& object, const std::string& key, const char* role) {
  const Json& value = object.at(key);
  if (value.is_string() && role != nullptr) return Json::array({message(role, value)});
  if (!value.is_array()) {
    throw InputError("\"" + key + "\" is no list of messages" + (role != nullptr ? " and no text" : ""));
  }
  if (value.size() > kMostMessages) throw InputError("\"" + key + "\" has more than 4,096 messages");
  for (size_t i = 0; i < value.size(); ++i) {
    const bool has_role = value[i].is_object() && value[i].contains("role") && value[i]["role"].is_string();
    if (!has_role) throw InputError(key + "[" + std::to_string(i) + "] is no object with a \"role\"");
    const auto content = value[i].find("content");
    const bool known = content == value[i].end() || content->is_string() || content->is_null() || content->is_array() ||
                       content->is_object();
    if (!known) throw InputError(key + "[" + std::to_string(i) + "].content is neither a text nor a list");
  }
  return value;
}

jinja::Value list_or_none(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return jinja::None{};
  if (!found->is_array()) throw InputError("\"" + std::string(key) + "\" is no list");
  return jinja::from_json(*found);
}

}  // namespace

Conversation parse_conversation(std::string_view text) try {
  const Json object = parse_line(text);
  const auto has = [&](const char* key) { return object.contains(key) && !object[key].is_null(); };
  Json messages;
  Conversation conversation;
  if (has("messages")) {
    messages = messages_of(object, "messages", nullptr);
    if (has("prompt") || has("completion")) throw InputError("\"messages\" stands beside \"prompt\" or \"completion\"");
  } else if (has("prompt") && has("completion")) {
    messages = messages_of(object, "prompt", "user");
    conversation.first_counted = messages.size();
    for (const Json& added : messages_of(object, "completion", "assistant")) messages.push_back(added);
  } else {
    throw InputError("neither \"messages\" nor \"prompt\" and \"completion\"");
  }
  if (messages.empty()) throw InputError("the list of messages is empty");
  conversation.messages = jinja::from_json(messages).list_ptr();
  conversation.tools = list_or_none(object, "tools");
  conversation.documents = list_or_none(object, "documents");
  if (has("chat_template_kwargs")) {
    const Json& kwargs = object["chat_template_kwargs"];
    if (!kwargs.is_object()) throw InputError("\"chat_template_kwargs\" is no object");
    for (const auto& [key, value] : kwargs.items()) conversation.variables.emplace_back(key, jinja::from_json(value));
  }
  return conversation;
} catch (const jinja::Failure& failure) {
  throw InputError(failure.what());
}

Conversation ask(const std::string& text, const std::string* system) {
  Json messages = Json::array();
  if (system != nullptr) messages.push_back(message("system", *system));
  messages.push_back(message("user", text));
  Conversation conversation;
  conversation.messages = jinja::from_json(messages).list_ptr();
  return conversation;
}

}  // namespace meshtrain
