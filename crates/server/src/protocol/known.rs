//! Every field of a request that this server or others know, and what becomes of it here: the one list of them.
//!
//! Fields that an endpoint reads are read by its own code. This list decides about those that it did not read
//! (`unread`): a field that would make the answer another one is refused, unless its value asks for nothing; one that
//! speaks of something else is ignored, and the client is told why; a few ask for nothing at all. The table in
//! docs/serving.md is made from it.

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Some endpoint reads it; where one does not, the client is told.
    Own,
    /// The same, under the name that others have given it; what it does.
    Served(&'static str),
    /// It changes no answer and is not mentioned.
    Nothing,
    /// Ignored; why, for the header `x-warning`.
    Warned(&'static str),
    /// Refused: why. Numbers that are as good as its absence, besides what is empty, false or null.
    Refused(&'static [i64], &'static str),
}

use Fate::{Nothing, Own, Refused, Served, Warned};

/// A field, by its name in a request's body or among ollama's options.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) fate: Fate,
}

const fn known(name: &'static str, fate: Fate) -> Known {
    Known { name, fate }
}

const AS_STARTED: &str = "the server runs the model as it was started";
const GRAMMAR: &str = "the answer follows this grammar (GBNF)";
const SCHEMA: &str = "the answer is JSON by this schema";
const REGEX: &str = "the answer matches this regular expression";
const BUDGET: &str = "most tokens of thinking; -1 for no limit, 0 for none";
const SAMPLER: &str = "this sampler is not there";
const ONE: &str = "one answer to a prompt is served; send several requests";
const TEXT: &str = "text goes in and comes out";
const FUNCTIONS: &str = "use tools and tool_choice";
const PROMPT: &str = "the prompt is the template's";
const FORM: &str = "the form of the answer is the endpoint's";
const FORMAT: &str = "this endpoint has another field for it";

/// All fields, in alphabetical order.
pub(crate) static KNOWN: [Known; 193] = [
    known("add_generation_prompt", Warned(PROMPT)),
    known("add_special", Own),
    known("add_special_tokens", Warned("these models begin a text with no token of their own")),
    known(
        "allowed_token_ids",
        Refused(&[], "the answer cannot be kept to a list of tokens; use grammar or logit_bias"),
    ),
    known("audio", Refused(&[], TEXT)),
    known("background", Refused(&[], "nothing runs in the background; stream the answer")),
    known("bad_words", Refused(&[], "words cannot be excluded; use logit_bias or a grammar")),
    known("best_of", Refused(&[1], ONE)),
    known("cache_prompt", Own),
    known("cache_salt", Warned("each API key has kept prompts of its own")),
    known("chat_template", Refused(&[], PROMPT)),
    known("chat_template_kwargs", Own),
    known("client_metadata", Nothing),
    known("content", Own),
    known("context", Refused(&[], "use messages")),
    known("context_management", Nothing),
    known(
        "continue_final_message",
        Refused(&[], "answers are turns of their own; use /v1/completions"),
    ),
    known(
        "conversation",
        Refused(&[], "responses are not stored here; send the whole conversation in input"),
    ),
    known("documents", Refused(&[], "put them into the messages")),
    known("dry_allowed_length", Served("tokens of the shortest repetition that DRY counts")),
    known("dry_base", Served("what each further token multiplies DRY's penalty by")),
    known("dry_multiplier", Served("DRY: what extending a repetition costs; 0 is off")),
    known("dry_penalty_last_n", Served("DRY looks at so many of the last tokens; -1 for all")),
    known("dry_sequence_breakers", Served("texts that no repetition of DRY goes across")),
    known("dynatemp_exponent", Nothing),
    known("dynatemp_range", Refused(&[0], SAMPLER)),
    known("ebnf", Served(GRAMMAR)),
    known("echo", Warned("the prompt is repeated by /v1/completions alone")),
    known("enable_thinking", Served("whether the model thinks")),
    known("encoding_format", Nothing),
    known("epsilon_cutoff", Refused(&[0], SAMPLER)),
    known("eta_cutoff", Refused(&[0], SAMPLER)),
    known("f16_kv", Warned(AS_STARTED)),
    known("format", Refused(&[], FORMAT)),
    known("frequency_penalty", Own),
    known("function_call", Refused(&[], FUNCTIONS)),
    known("functions", Refused(&[], FUNCTIONS)),
    known("grammar", Served(GRAMMAR)),
    known("grammar_lazy", Refused(&[], "a grammar holds from the beginning of the answer")),
    known("grammar_triggers", Refused(&[], "a grammar holds from the beginning of the answer")),
    known("guidance_scale", Refused(&[1], SAMPLER)),
    known("guided_choice", Served("the answer is one of these texts")),
    known("guided_decoding_backend", Nothing),
    known("guided_grammar", Served(GRAMMAR)),
    known("guided_json", Served(SCHEMA)),
    known("guided_json_object", Served("the answer is a JSON object")),
    known("guided_regex", Served(REGEX)),
    known(
        "guided_whitespace_pattern",
        Warned("blanks in JSON are one blank, or a line break and its indentation"),
    ),
    known(
        "id_slot",
        Served("the slot under which the conversation is found afterwards; -1 for any"),
    ),
    known("ignore_eos", Served("the answer goes on to max_tokens or the end of the context")),
    known("image_data", Refused(&[], TEXT)),
    known("images", Refused(&[], TEXT)),
    known("include", Own),
    known("include_stop_str_in_output", Warned("a stop string is not part of the answer")),
    known("input", Own),
    known("input_extra", Own),
    known("input_prefix", Own),
    known("input_suffix", Own),
    known("instructions", Own),
    known("json_schema", Served(SCHEMA)),
    known("keep_alive", Warned("the model stays loaded until the server ends")),
    known("length_penalty", Nothing),
    known("logit_bias", Own),
    known("logits_processors", Refused(&[], "no code of clients is run")),
    known("logprobs", Own),
    known("lora", Refused(&[], "adapters are not supported")),
    known("lora_path", Refused(&[], "adapters are not supported")),
    known("lora_request", Refused(&[], "adapters are not supported")),
    known("low_vram", Warned(AS_STARTED)),
    known("main_gpu", Warned(AS_STARTED)),
    known("max_completion_tokens", Own),
    known("max_new_tokens", Served("most tokens of the answer")),
    known("max_output_tokens", Own),
    known("max_tokens", Own),
    known("max_tool_calls", Warned("calls are not counted; see parallel_tool_calls")),
    known("messages", Own),
    known("metadata", Nothing),
    known("min_keep", Refused(&[0, 1], SAMPLER)),
    known("min_p", Own),
    known("min_tokens", Served("the answer does not end before so many tokens")),
    known("mirostat", Refused(&[0], SAMPLER)),
    known("mirostat_eta", Nothing),
    known("mirostat_tau", Nothing),
    known("mm_processor_kwargs", Warned(TEXT)),
    known("modalities", Own),
    known("model", Own),
    known("multimodal_data", Refused(&[], TEXT)),
    known("n", Refused(&[1], ONE)),
    known("n_cache_reuse", Warned("what is computed for a conversation is found by itself")),
    known("n_discard", Nothing),
    known("n_indent", Refused(&[0], "indentation is not enforced; use grammar")),
    known("n_keep", Nothing),
    known("n_predict", Served("most tokens of the answer; -1 for no limit")),
    known("n_probs", Own),
    known("negative_prompt", Refused(&[], SAMPLER)),
    known("num_batch", Warned(AS_STARTED)),
    known("num_ctx", Own),
    known("num_gpu", Warned(AS_STARTED)),
    known("num_keep", Nothing),
    known("num_predict", Own),
    known("num_thread", Warned(AS_STARTED)),
    known("numa", Warned(AS_STARTED)),
    known("on_full", Own),
    known("options", Own),
    known("output_config", Own),
    known("output_format", Own),
    known("parallel_tool_calls", Own),
    known("parse_special", Own),
    known("parse_tool_calls", Warned(FORM)),
    known("penalize_newline", Nothing),
    known("penalize_nl", Nothing),
    known("penalty_last_n", Served("penalties look at so many of the last tokens; -1 for all")),
    known("post_sampling_probs", Warned("probabilities are the model's own, before sampling")),
    known("prediction", Warned("the answer is not predicted from a text")),
    known("presence_penalty", Own),
    known(
        "previous_response_id",
        Refused(&[], "responses are not stored here; send the whole conversation in input"),
    ),
    known("priority", Warned("a model name that ends in :side asks for low priority")),
    known("prompt", Own),
    known("prompt_cache_key", Own),
    known("prompt_cache_retention", Nothing),
    known("prompt_embeds", Refused(&[], "send text or token ids")),
    known(
        "prompt_logprobs",
        Warned("probabilities of the prompt come with echo and logprobs of /v1/completions"),
    ),
    known("raw", Own),
    known("reasoning", Own),
    known("reasoning_budget", Served(BUDGET)),
    known("reasoning_budget_message", Warned("thinking ends with the template's own words")),
    known("reasoning_budget_tokens", Served(BUDGET)),
    known("reasoning_effort", Own),
    known("reasoning_format", Own),
    known("regex", Served(REGEX)),
    known("repeat_last_n", Served("penalties look at so many of the last tokens; -1 for all")),
    known("repeat_penalty", Own),
    known("repetition_penalty", Own),
    known("request_id", Warned("send the header x-request-id")),
    known("response_fields", Warned(FORM)),
    known("response_format", Refused(&[], FORMAT)),
    known("return_progress", Own),
    known("return_token_ids", Warned(FORM)),
    known("return_tokens", Own),
    known("return_tokens_as_token_ids", Warned(FORM)),
    known("safe_prompt", Warned("nothing is put before the conversation")),
    known("safety_identifier", Nothing),
    known(
        "samplers",
        Warned("the order is fixed: penalties, dry, bias, temperature, top_k, top_p, min_p, xtc"),
    ),
    known("seed", Own),
    known("service_tier", Nothing),
    known("session_id", Own),
    known("skip_special_tokens", Warned("control tokens are no text of an answer")),
    known("smoothing_factor", Refused(&[0], SAMPLER)),
    known("spaces_between_special_tokens", Nothing),
    known("stop", Own),
    known("stop_sequences", Own),
    known("stop_token_ids", Served("tokens that end the answer")),
    known("store", Nothing),
    known("stream", Own),
    known("stream_options", Own),
    known("structural_tag", Refused(&[], "use tools, grammar or a schema")),
    known(
        "structured_outputs",
        Served("`json`, `json_object`, `regex`, `choice` or `grammar`: what the answer is by"),
    ),
    known("suffix", Own),
    known("system", Own),
    known("t_max_predict_ms", Refused(&[0, -1], "time is not limited; use max_tokens, or go away")),
    known("temperature", Own),
    known("template", Refused(&[], "use /api/chat")),
    known("text", Own),
    known("tfs_z", Refused(&[1], SAMPLER)),
    known("think", Own),
    known("thinking", Own),
    known("thinking_budget", Own),
    known("thinking_budget_tokens", Served(BUDGET)),
    known("thinking_token_budget", Served(BUDGET)),
    known("timings_per_token", Warned("figures come at the end of an answer")),
    known("tool_choice", Own),
    known("tools", Own),
    known("top_a", Refused(&[0], SAMPLER)),
    known("top_k", Own),
    known("top_logprobs", Own),
    known("top_n_sigma", Refused(&[0, -1], SAMPLER)),
    known("top_p", Own),
    known("truncate", Own),
    known(
        "truncate_prompt_tokens",
        Refused(&[-1], "prompts are not cut; one that is too long is refused"),
    ),
    known("truncation", Own),
    known("typ_p", Refused(&[1], SAMPLER)),
    known("typical_p", Refused(&[1], SAMPLER)),
    known("use_beam_search", Refused(&[], SAMPLER)),
    known("use_mlock", Warned(AS_STARTED)),
    known("use_mmap", Warned(AS_STARTED)),
    known("user", Nothing),
    known("verbosity", Warned("the model is not told of it")),
    known("vllm_xargs", Warned("there is nothing that takes them")),
    known("vocab_only", Warned(AS_STARTED)),
    known("web_search_options", Refused(&[], "nothing is searched here")),
    known("with_pieces", Own),
    known(
        "xtc_probability",
        Served("XTC: the share of draws that leave out the obvious; 0 is off"),
    ),
    known("xtc_threshold", Served("how likely a token must be for XTC to count it")),
];

/// What becomes of a field of this name, if it is known.
pub(crate) fn fate(name: &str) -> Option<Fate> {
    KNOWN.binary_search_by(|known| known.name.cmp(name)).ok().map(|at| KNOWN[at].fate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the table: what others' fields do here.
    fn table() -> String {
        let rows = KNOWN.iter().filter_map(|known| {
            let (does, why) = match known.fate {
                Own | Nothing => return None,
                Served(what) => ("served", what),
                Warned(why) => ("`x-warning`", why),
                Refused(_, why) => ("400", why),
            };
            Some(format!("| `{}` | {does} | {why} |\n", known.name))
        });
        rows.collect()
    }

    #[test]
    fn the_list_is_in_order_and_the_documentation_shows_it() {
        assert!(KNOWN.is_sorted_by(|a, b| a.name < b.name));
        assert_eq!(fate("mirostat"), Some(Refused(&[0], SAMPLER)));
        assert_eq!(fate("temprature"), None);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serving.md");
        let text = std::fs::read_to_string(path).expect("the documentation is there");
        let table = table();
        assert!(text.contains(&table), "docs/serving.md should have\n{table}");
    }
}
