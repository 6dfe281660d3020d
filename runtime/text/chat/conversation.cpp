#include "runtime/text/chat/conversation.h"

#include <algorithm>
#include <array>
#include <memory>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"
#include "runtime/text/jinja/failure.h"

namespace meshtrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepestJson = 200;
constexpr int kMostKeys = 10000;        // an object is searched for each new one
constexpr size_t kMostMessages = 4096;  // each is rendered with those before it

Json parse_json(std::string_view text) {
  try {
    std::array<int, kDeepestJson + 2> keys{};  // of the objects that are open, by their depth
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json&) {
      if (depth > kDeepestJson) throw InputError("its values are nested more than 200 levels deep");
      const auto level = static_cast<size_t>(depth);
      if (event == Json::parse_event_t::object_start) keys[level + 1] = 0;
      if (event == Json::parse_event_t::key && ++keys[level] > kMostKeys) {
        throw InputError("an object in it has more than 10,000 keys");
      }
      return true;
    });
  } catch (const Json::exception& error) {
    std::string replaced(text);
    if (replace_lone_surrogates(replaced) > 0) return parse_json(replaced);
    std::string reason = error.what();
    if (const size_t at = reason.find("column "); at != std::string::npos) reason.erase(0, at);
    throw InputError("not valid JSON: " + reason.substr(0, 200));
  }
}

Json parse_line(std::string_view text) {
  Json object = parse_json(text);
  if (object.is_array()) {
    const bool are_messages = object.empty() || (object[0].is_object() && object[0].contains("role"));
    if (are_messages) return Json{{"messages", std::move(object)}};
    throw InputError(
        "a JSON array whose elements are not messages: write each conversation on its own line (jq -c '.[]' "
        "does)");
  }
  if (!object.is_object()) throw InputError("not a JSON object");
  return object;
}

Json message(const char* role, const Json& content) {
  return Json{{"role", role}, {"content", content}};
}

/// The keys of a message that say whether its labels count. OpenAI and axolotl call it "weight", axolotl "train" too,
/// ms-swift "loss".
constexpr std::array<const char*, 3> kWeights = {"weight", "train", "loss"};

/// Throws InputError for a "weight" that is neither 0 nor 1: there are no weights between.
void check_weight(const Json& message, const std::string& where) {
  const auto weight = message.find("weight");
  if (weight == message.end() || weight->is_boolean() || !weight->is_number()) return;
  if (*weight == 0 || *weight == 1) return;
  throw InputError(where + ".weight is " + weight->dump() + ": it must be 0 or 1: a label counts or does not");
}

/// Returns the role of a message of ShareGPT by its "from".
const char* role_of_sharegpt(const std::string& from) {
  if (from == "human" || from == "user") return "user";
  if (from == "gpt" || from == "assistant") return "assistant";
  return from == "system" ? "system" : nullptr;
}

/// Returns the messages of ShareGPT's "conversations", which have {from, value} instead of {role, content}. A text
/// "system" becomes the first message.
Json messages_of_sharegpt(const Json& object) {
  const Json& list = object["conversations"];
  if (!list.is_array()) throw InputError("\"conversations\" is not a list of messages");
  Json messages = Json::array();
  const auto system = object.find("system");
  if (system != object.end() && system->is_string() && !system->get_ref<const std::string&>().empty()) {
    messages.push_back(message("system", *system));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = "conversations[" + std::to_string(i) + "]";
    const bool is_theirs = list[i].is_object() && list[i].contains("from") && list[i].contains("value");
    if (!is_theirs) {
      messages.push_back(list[i]);
      continue;
    }
    const std::string from = list[i]["from"].is_string() ? list[i]["from"].get<std::string>() : "";
    const char* const role = role_of_sharegpt(from);
    if (role == nullptr) {
      throw InputError(
          where + ".from is " + list[i]["from"].dump().substr(0, 40) +
          ": it must be human, user, gpt, assistant or system; write other roles as \"messages\" of {role, content}");
    }
    messages.push_back(message(role, list[i]["value"]));
    for (const char* key : kWeights) {
      if (list[i].contains(key)) messages.back()[key] = list[i][key];
    }
  }
  return messages;
}

/// Returns what to do with an object that has none of the keys of a conversation.
std::string advice_for(const Json& object, bool is_open) {
  const auto has = [&](const char* key) { return object.contains(key); };
  if (is_open && has("instruction")) return R"(: write "instruction" and "input" as "prompt")";
  if (has("instruction") && has("output")) {
    return R"(: write "instruction", "input" and "output" as {"prompt": the first two, "completion": "output"})";
  }
  if (has("prompt") && has("response")) return R"(: call "response" "completion")";
  std::string keys;
  for (const auto& [key, value] : object.items()) {
    if (keys.size() < 80) keys += (keys.empty() ? "" : ", ") + key.substr(0, 40);
  }
  return keys.empty() ? ": it has no keys" : ": its keys are " + keys;
}

/// Returns the list of messages under `key`, of which a text is one of `role`.
Json messages_of(const Json& object, const std::string& key, const char* role) {
  const Json& value = object.at(key);
  if (value.is_string() && role != nullptr) return Json::array({message(role, value)});
  if (!value.is_array()) {
    throw InputError("\"" + key + "\" is not a list of messages" + (role != nullptr ? " or a string" : ""));
  }
  if (value.size() > kMostMessages) throw InputError("\"" + key + "\" has more than 4,096 messages");
  for (size_t i = 0; i < value.size(); ++i) {
    const bool has_role = value[i].is_object() && value[i].contains("role") && value[i]["role"].is_string();
    if (!has_role) throw InputError(key + "[" + std::to_string(i) + "] is not an object with a \"role\"");
    const auto content = value[i].find("content");
    const bool known = content == value[i].end() || content->is_string() || content->is_null() || content->is_array() ||
                       content->is_object();
    if (!known) throw InputError(key + "[" + std::to_string(i) + "].content is neither a string nor a list");
    check_weight(value[i], key + "[" + std::to_string(i) + "]");
  }
  return value;
}

/// Returns a message as transformers 5 passes it to a template: without keys whose value is null, and with its
/// reasoning under the name of templates (reasoning_content) and of those of gpt-oss (thinking), whatever it was
/// called.
Json as_passed(const Json& message) {
  Json passed = Json::object();
  const auto is_given = [&](const char* key) { return message.contains(key) && !message[key].is_null(); };
  const std::array<const char*, 3> names = {"reasoning_content", "thinking", "reasoning"};
  const auto name = std::ranges::find_if(names, is_given);
  if (name != names.end()) passed["thinking"] = message[is_given("thinking") ? "thinking" : *name];
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) passed[key] = value;
  }
  if (name != names.end()) passed["reasoning_content"] = message[*name];
  return passed;
}

/// Returns the role of a message as it is passed; every message has one.
const std::string& role_of(const jinja::Value& message) {
  return message.dict().find("role")->text();
}

jinja::Value list_or_none(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return jinja::None{};
  if (!found->is_array()) throw InputError("\"" + std::string(key) + "\" is not a list");
  return jinja::from_json(*found);
}

Conversation conversation_of(Json object, bool is_open) try {
  const auto has = [&](const char* key) { return object.contains(key) && !object[key].is_null(); };
  Json messages;
  Conversation conversation;
  const std::string list = has("messages") ? "messages" : "conversations";
  if (has(list.c_str())) {
    if (list == "conversations") object["conversations"] = messages_of_sharegpt(object);
    messages = messages_of(object, list, nullptr);
    if (has("prompt") || has("completion")) {
      throw InputError("\"" + list + "\" is given together with \"prompt\" or \"completion\": remove one");
    }
  } else if (has("prompt") && (is_open || has("completion"))) {
    messages = messages_of(object, "prompt", "user");
    conversation.first_counted = messages.size();
    if (!is_open) {
      for (const Json& added : messages_of(object, "completion", "assistant")) messages.push_back(added);
    }
  } else {
    throw InputError(std::string("neither \"messages\" nor \"prompt\"") + (is_open ? "" : " and \"completion\"") +
                     advice_for(object, is_open));
  }
  if (messages.empty()) throw InputError("the list of messages is empty");
  for (Json& message : messages) message = as_passed(message);
  conversation.messages = jinja::from_json(messages).list_ptr();
  conversation.tools = list_or_none(object, "tools");
  conversation.documents = list_or_none(object, "documents");
  if (has("chat_template_kwargs")) {
    const Json& kwargs = object["chat_template_kwargs"];
    if (!kwargs.is_object()) throw InputError("\"chat_template_kwargs\" is not an object");
    for (const auto& [key, value] : kwargs.items()) conversation.variables.emplace_back(key, jinja::from_json(value));
  }
  return conversation;
} catch (const jinja::Failure& failure) {
  throw InputError(failure.what());
}

}  // namespace

bool is_usual_role(std::string_view role) {
  constexpr std::array<std::string_view, 7> kUsual = {"system", "developer", "user",   "assistant",
                                                      "tool",   "function",  "ipython"};
  return std::ranges::find(kUsual, role) != kUsual.end();
}

Conversation parse_conversation(std::string_view text) {
  return conversation_of(parse_line(text), /*is_open=*/false);
}

Conversation parse_open_conversation(std::string_view text) {
  Json json = parse_json(text);
  if (json.is_array()) json = Json{{"messages", std::move(json)}};
  if (!json.is_object()) throw InputError("neither a JSON object nor a list of messages");
  return conversation_of(std::move(json), /*is_open=*/true);
}

bool has_no_weight(const jinja::Value& message) {
  return std::ranges::any_of(kWeights, [&](const char* key) {
    const jinja::Value* const weight = message.dict().find(key);
    const bool is_number = key == std::string_view("weight") && weight != nullptr && weight->is_number();
    return weight != nullptr && (is_number || weight->is_bool()) && !weight->is_true();
  });
}

bool ends_with_assistant(const Conversation& conversation) {
  return role_of(conversation.messages->values.back()) == "assistant";
}

Conversation after_system(const Conversation& conversation, const std::string& system) {
  const auto& own = conversation.messages->values;
  if (role_of(own.front()) == "system")
    throw InputError("the conversation already has a system message: remove it, or leave --system out");
  jinja::List messages{{jinja::from_json(message("system", system))}, false, conversation.messages->depth};
  messages.values.insert(messages.values.end(), own.begin(), own.end());
  Conversation longer = conversation;
  longer.messages = std::make_shared<const jinja::List>(std::move(messages));
  ++longer.first_counted;
  return longer;
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
