#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/tokenizer/hugging_face.h"

namespace meshtrain {
namespace {

// The pattern of GPT-2, which is ByteLevel's own.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int kDeepest = 20;  // Sequences within Sequences

SplitBehavior read_behavior(const JsonCursor& behavior) {
  const std::string name = behavior.text();
  if (name == "Removed") return SplitBehavior::Removed;
  if (name == "Isolated") return SplitBehavior::Isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::MergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::MergedWithNext;
  if (name == "Contiguous") return SplitBehavior::Contiguous;
  behavior.fail("is \"" + name + "\", not one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

Pattern read_pattern(const JsonCursor& pattern) {
  const std::optional<JsonCursor> expression = pattern.find("Regex");
  const std::string text = expression ? expression->text() : pattern.at("String").text();
  try {
    return expression ? Pattern(text) : Pattern::literal(text);
  } catch (const InputError& error) {
    pattern.fail(std::string("is refused: ") + error.what());
  }
}

SplitStep read_split(const JsonCursor& split) {
  return {read_pattern(split.at("pattern")), read_behavior(split.at("behavior")), split.flag_or("invert", false)};
}

// Returns a text of one character, which replaces spaces.
std::string read_character(const JsonCursor& character) {
  std::string text = character.text();
  const char* at = text.data();
  if (text.empty()) character.fail("is empty");
  next_code_point(at);
  if (at != text.data() + text.size()) character.fail("is not one character: \"" + text + "\"");
  return text;
}

void read_normalizer_steps(const JsonCursor& normalizer, std::vector<NormalizerStep>& steps, int depth) {
  refuse_deep(normalizer, depth);
  const std::string type = normalizer.type_of("NFC, NFD, NFKC, NFKD, Strip, Prepend, Replace, Sequence");
  if (type == "NFC") {
    steps.emplace_back(FormStep{NormalForm::Nfc});
  } else if (type == "NFD") {
    steps.emplace_back(FormStep{NormalForm::Nfd});
  } else if (type == "NFKC") {
    steps.emplace_back(FormStep{NormalForm::Nfkc});
  } else if (type == "NFKD") {
    steps.emplace_back(FormStep{NormalForm::Nfkd});
  } else if (type == "Strip") {
    steps.emplace_back(StripStep{normalizer.at("strip_left").flag(), normalizer.at("strip_right").flag()});
  } else if (type == "Prepend") {
    steps.emplace_back(PrependStep{normalizer.at("prepend").text()});
  } else if (type == "Replace") {
    steps.emplace_back(ReplaceStep{read_pattern(normalizer.at("pattern")), normalizer.at("content").text()});
  } else {
    const JsonCursor all = normalizer.at("normalizers");
    for (size_t i = 0; i < all.size(); ++i) read_normalizer_steps(all.at(i), steps, depth + 1);
  }
}

MetaspaceStep read_metaspace(const JsonCursor& metaspace) {
  MetaspaceStep step{.replacement = read_character(metaspace.at("replacement")),
                     .split = metaspace.flag_or("split", true)};
  const std::string scheme = metaspace.text_or("prepend_scheme", "always");
  if (scheme == "first") {
    step.prepend = MetaspaceStep::Prepend::First;
  } else if (scheme == "never") {
    step.prepend = MetaspaceStep::Prepend::Never;
  } else if (scheme != "always") {
    metaspace.at("prepend_scheme").fail("is \"" + scheme + "\", not one of always, first, never");
  }
  if (!metaspace.flag_or("add_prefix_space", true) && scheme != "never") {
    metaspace.at("add_prefix_space").fail("is false, but prepend_scheme is " + scheme);
  }
  return step;
}

void read_byte_level(const JsonCursor& byte_level, HuggingFaceParts& parts) {
  if (byte_level.at("add_prefix_space").flag()) parts.steps.emplace_back(PrefixSpaceStep{});
  if (byte_level.flag_or("use_regex", true)) parts.steps.emplace_back(SplitStep{Pattern(kByteLevelPattern)});
  parts.is_byte_level = true;
}

void read_pre_tokenizer_steps(const JsonCursor& pre_tokenizer, HuggingFaceParts& parts, int depth) {
  refuse_deep(pre_tokenizer, depth);
  if (parts.is_byte_level) pre_tokenizer.fail("follows a ByteLevel, which must be the last one");
  const std::string type =
      pre_tokenizer.type_of("ByteLevel, Metaspace, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Sequence");
  if (type == "ByteLevel") {
    read_byte_level(pre_tokenizer, parts);
  } else if (type == "Split") {
    parts.steps.emplace_back(read_split(pre_tokenizer));
  } else if (type == "Digits") {
    parts.steps.emplace_back(DigitsStep{pre_tokenizer.flag_or("individual_digits", false)});
  } else if (type == "Metaspace") {
    MetaspaceStep step = read_metaspace(pre_tokenizer);
    if (step.prepend == MetaspaceStep::Prepend::First && parts.normalizer.may_remove_beginning()) {
      pre_tokenizer.at("prepend_scheme")
          .fail("is first, which is not supported with a normalizer that may remove the beginning of a text");
    }
    parts.steps.emplace_back(std::move(step));
  } else if (type == "Whitespace") {
    parts.steps.emplace_back(WordsStep{});
  } else if (type == "WhitespaceSplit") {
    parts.steps.emplace_back(CharactersStep{is_space, SplitBehavior::Removed});
  } else if (type == "Punctuation") {
    const auto behavior = pre_tokenizer.find("behavior");
    parts.steps.emplace_back(
        CharactersStep{is_punctuation, behavior ? read_behavior(*behavior) : SplitBehavior::Isolated});
  } else {
    const JsonCursor all = pre_tokenizer.at("pretokenizers");
    for (size_t i = 0; i < all.size(); ++i) read_pre_tokenizer_steps(all.at(i), parts, depth + 1);
  }
}

StripDecoding read_strip(const JsonCursor& strip) {
  if (strip.at("stop").value() != 0) strip.at("stop").fail("is not 0, the only supported value");
  return {read_character(strip.at("content")), strip.at("start").id()};
}

ReplaceDecoding read_replace(const JsonCursor& replace) {
  const std::string from = replace.at("pattern").at("String").text();
  if (from.empty()) replace.at("pattern").fail("is empty");
  return {from, replace.at("content").text()};
}

void read_decoding(const JsonCursor& decoder, std::vector<DecodingStep>& steps, int depth) {
  refuse_deep(decoder, depth);
  const std::string type = decoder.type_of("ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence");
  if (type == "ByteLevel") {
    steps.emplace_back(ByteLevelDecoding{});
  } else if (type == "Replace") {
    steps.emplace_back(read_replace(decoder));
  } else if (type == "ByteFallback") {
    steps.emplace_back(ByteFallbackDecoding{});
  } else if (type == "Fuse") {
    steps.emplace_back(FuseDecoding{});
  } else if (type == "Strip") {
    steps.emplace_back(read_strip(decoder));
  } else if (type == "Metaspace") {
    const MetaspaceStep step = read_metaspace(decoder);
    steps.emplace_back(MetaspaceDecoding{step.replacement, step.prepend == MetaspaceStep::Prepend::Never});
  } else {
    const JsonCursor all = decoder.at("decoders");
    for (size_t i = 0; i < all.size(); ++i) read_decoding(all.at(i), steps, depth + 1);
  }
}

}  // namespace

void refuse_deep(const JsonCursor& at, int depth) {
  if (depth > kDeepest) at.fail("is a Sequence nested too deeply");
}

void read_normalizer(const JsonCursor& normalizer, HuggingFaceParts& parts) {
  std::vector<NormalizerStep> steps;
  read_normalizer_steps(normalizer, steps, 0);
  parts.normalizer = Normalizer(std::move(steps));
}

void read_pre_tokenizer(const JsonCursor& pre_tokenizer, HuggingFaceParts& parts) {
  read_pre_tokenizer_steps(pre_tokenizer, parts, 0);
}

void read_decoder(const JsonCursor& root, HuggingFaceParts& parts) {
  if (const auto decoder = root.find("decoder")) {
    read_decoding(*decoder, parts.decoding, 0);
  } else {
    parts.decoding.emplace_back(SpacesDecoding{});
  }
  const bool decodes_bytes = std::ranges::any_of(
      parts.decoding, [](const DecodingStep& step) { return std::holds_alternative<ByteLevelDecoding>(step); });
  if (decodes_bytes || !parts.is_byte_level) return;
  root.at("decoder").fail("has no ByteLevel, which a pre_tokenizer with ByteLevel needs");
}

}  // namespace meshtrain
