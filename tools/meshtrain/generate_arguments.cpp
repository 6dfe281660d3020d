#include "tools/meshtrain/generate_arguments.h"

#include <cmath>

#include "mesh/base/error.h"
#include "runtime/program/yaml/scalar_text.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

void add_prompt_options(CLI::App& command, GenerateArguments& arguments) {
  const auto repeatable = [](CLI::Option* option) { return option->expected(1)->allow_extra_args(false)->take_all(); };
  CLI::Option* prompt =
      repeatable(command.add_option("--prompt", arguments.prompts,
                                    "A text to continue; -: read it from stdin, without its last line break. An empty "
                                    "text is the tokenizer's token for the beginning of a text, where it names one. "
                                    "May be repeated: one text after another"))
          ->type_name("TEXT");
  CLI::Option* file =
      command
          .add_option(
              "--prompt-file", arguments.prompt_file,
              "A file with a prompt on each line; in JSON lines (*.jsonl, *.ndjson, *.json) a line is a JSON string, "
              "or an object with \"prompt\" or \"tokens\", with --chat also a conversation of several "
              "turns, as data prepare --chat reads it, to be answered; -: read the lines from stdin")
          ->type_name("FILE");
  CLI::Option* tokens = repeatable(command.add_option("--tokens", arguments.tokens,
                                                      "Token ids to continue, as in 1,2,3. May be repeated"))
                            ->type_name("IDS");
  prompt->excludes(file)->excludes(tokens);
  file->excludes(tokens);
  CLI::Option* chat =
      command.add_flag("--chat", arguments.chats,
                       "Each prompt is a user's message, or a conversation of --prompt-file: it is rendered by the "
                       "tokenizer's chat template, and the token that ends the assistant's turn ends the text");
  CLI::Option* system =
      command.add_option("--system", arguments.system, "With --chat: the system message before the prompt")
          ->type_name("TEXT");
  CLI::Option* chat_template = command
                                   .add_option("--chat-template", arguments.chat_template,
                                               "With --chat: a Jinja template to use instead of the tokenizer's own")
                                   ->type_name("FILE");
  CLI::Option* unfinished =
      command.add_flag("--continue-final-message", arguments.continues_assistant,
                       "With --chat: continues the assistant's last message where a conversation of --prompt-file ends "
                       "with one");
  chat->excludes(tokens);
  unfinished->needs(chat)->needs(file);
  system->needs(chat);
  chat_template->needs(chat);
  command
      .add_option("--tokenizer", arguments.tokenizer,
                  "bytes, or a tokenizer.json, a SentencePiece *.model, or a folder with one of them. Default: the "
                  "one in the Hugging Face folder; for a run the data.tokenizer of its recipe, else the one in the "
                  "folder of its model.hf")
      ->type_name("NAME");
}

void add_sampling_options(CLI::App& command, GenerateArguments& arguments) {
  command
      .add_option(
          "--max-tokens", arguments.max_tokens,
          "Maximum number of tokens to generate. Default: max_new_tokens or max_length of generation_config.json, else "
          "128, or fewer where max_position_embeddings leaves no more")
      ->check(whole_number(1))
      ->type_name("N");
  command
      .add_option("--temperature", arguments.temperature,
                  "Divides the logits before a token is drawn; 0 takes the most likely token. Default: 0, unless "
                  "generation_config.json has do_sample")
      ->type_name("T");
  command.add_option("--top-k", arguments.top_k, "Draws from the K most likely tokens only; 0: from all. Default: 50")
      ->check(whole_number(0))
      ->type_name("K");
  command
      .add_option("--top-p", arguments.top_p,
                  "Keeps the fewest most likely tokens whose probabilities add up to P, above 0 and at most 1")
      ->type_name("P");
  command
      .add_option("--min-p", arguments.min_p,
                  "Keeps the tokens that are at least P times as likely as the most likely one, from 0 to 1")
      ->type_name("P");
  command.add_option("--seed", arguments.seed, "Seed of the draws; the same seed draws the same on every mesh")
      ->capture_default_str()
      ->check(whole_number(0))
      ->type_name("S");
}

void add_rule_options(CLI::App& command, GenerateArguments& arguments) {
  const auto repeatable = [](CLI::Option* option) { return option->expected(1)->allow_extra_args(false)->take_all(); };
  command
      .add_option("--repetition-penalty", arguments.repetition_penalty,
                  "Above 1 makes tokens that the text already has less likely, below 1 more likely")
      ->type_name("X");
  command
      .add_option("--no-repeat-ngram-size", arguments.no_repeat_ngram_size,
                  "Never repeats N tokens in a row that prompt and text already have; 0: off")
      ->check(whole_number(0))
      ->type_name("N");
  repeatable(command.add_option("--bad-words", arguments.bad_words,
                                "Token ids, as in 1,2,3, that are never generated in this order. May be repeated"))
      ->type_name("IDS");
  command
      .add_option("--min-tokens", arguments.min_tokens, "Minimum number of tokens to generate before the text may end")
      ->check(whole_number(0))
      ->type_name("N");
  repeatable(command.add_option("--stop", arguments.stop_strings,
                                "Ends the text after the token that completes this string. May be repeated"))
      ->type_name("TEXT");
  command.add_flag("--stop-at-eos,!--ignore-eos", arguments.stop_at_eos,
                   "Whether to stop at an end token: eos_token_id of generation_config.json or config.json, the "
                   "tokenizer's, or the token that ends the documents of a run's data. Default: stop");
  command.add_flag("--generation-config,!--ignore-generation-config", arguments.uses_config,
                   "Whether generation_config.json of the model's folder, or config.json where it is absent, gives the "
                   "values that the command line does not. Default: it does");
}

}  // namespace

void add_generate_options(CLI::App& command, GenerateArguments& arguments) {
  command
      .add_option("model", arguments.model,
                  "A Hugging Face folder, a checkpoint's folder, or a run directory (or its folder checkpoints), whose "
                  "newest checkpoint is taken")
      ->required()
      ->type_name("MODEL");
  command
      .add_option(
          "--adapter", arguments.adapter,
          "A PEFT folder (adapter_config.json and adapter_model.safetensors), whose adapter is added to the model")
      ->type_name("FOLDER");
  command.add_option("--base", arguments.base, kBaseHelp)->type_name("FOLDER");
  add_prompt_options(command, arguments);
  add_sampling_options(command, arguments);
  add_rule_options(command, arguments);
  command
      .add_option(
          "--mesh", arguments.mesh,
          "Mesh of the ranks that share the model, as in dp=2,tp=2: tp ranks compute one text together, dp ranks "
          "several texts at the same time; each rank has a shard of the weights. Default: all ranks along tp")
      ->type_name("MESH");
  add_computing_options(command, arguments.computing);
  command.add_flag("--json", arguments.json_lines,
                   "A JSON object on a line for each prompt: prompt or the conversation under its own key, "
                   "prompt_tokens, tokens, text, ended (eos, stop, length)");
}

void check_sampling(const GenerateArguments& asked) {
  const auto refuse = [](const char* option, double value, const char* needed) {
    throw InputError(std::string(option) + ": " + scalar_text(value) + " is not a " + needed);
  };
  const double temperature = asked.temperature.value_or(1), penalty = asked.repetition_penalty.value_or(1);
  const double top_p = asked.top_p.value_or(1), min_p = asked.min_p.value_or(0);
  if (!std::isfinite(temperature) || temperature < 0) {
    refuse("--temperature", temperature, "finite number of at least 0");
  }
  if (!(top_p > 0 && top_p <= 1)) refuse("--top-p", top_p, "number above 0 and at most 1");
  if (!(min_p >= 0 && min_p <= 1)) refuse("--min-p", min_p, "number from 0 to 1");
  if (!std::isfinite(penalty) || penalty <= 0) refuse("--repetition-penalty", penalty, "finite number above 0");
}

}  // namespace meshtrain
