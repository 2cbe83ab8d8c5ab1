//! Goal: a model keeps to a schema and to tools whatever it thinks of them. Method: the demo model at temperature 1
//! over many seeds (by default some); each answer is parsed and checked against its schema by a checker of our own
//! (schema_check of `text`).

#[path = "../../../text/tests/it/constraint_support/mod.rs"]
mod constraint_support;
#[path = "../../../text/tests/it/schema_check/mod.rs"]
mod schema_check;

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::long::is_long;
use constraint_support::{calls, demo, end_tokens, grammars, tokenizer, tools};
use engine::backend::cpu::{CpuBackend, CpuOptions, KvGrowth, KvType};
use engine::backend::{Run, Uncancelled};
use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use kernels::{Arithmetic, Compute, ComputeOptions, DeltaForm, Isa};
use schema_check::check;
use serde_json::{Value, json};
use store::cache::{ExpertStore, SlotBudget, StorageMode, StoreOptions};
use store::trunk::LoadMode;
use text::constraint::{Constraint, Rule};
use text::sampling::{Sampler, SamplingOptions};
use text::{
    ChatTemplate, Dialect, Message, RenderOptions, Role, TemplateHost, TemplateTokens, Thinking,
    Tokenizer,
};

const ANSWER_TOKENS_MAX: usize = 400;

/// The demo model on the CPU.
struct Demo {
    engine: Engine,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

fn model() -> Demo {
    let checkpoint = Arc::new(store::format::open(&demo()).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let mut catalog = Catalog::new(&checkpoint);
    let model = Model::declare(&config, &mut catalog).unwrap();
    let weights = catalog.load(LoadMode::Read, &mut |_| ControlFlow::Continue(())).unwrap();
    let slots = SlotBudget::Slots(config.moe.experts * config.layers.len());
    let options = StoreOptions {
        slots,
        minimum_slots: config.moe.top_k,
        ..StoreOptions::new(StorageMode::Budget, 1)
    };
    let experts = Arc::new(ExpertStore::open(checkpoint.clone(), options).unwrap());
    let limits = CpuOptions {
        layers: 0..config.layers.len(),
        batch_tokens: 128,
        logit_rows: 1,
        sequences: 1,
        snapshots: 0,
        context: 1024,
        kv_growth: KvGrowth::Grow,
        kv_type: KvType::F32,
        delta_form: DeltaForm::Step,
        top_k: config.moe.top_k,
        round_tokens: 1,
        row_cache: 0,
    };
    let compute =
        Compute::new(ComputeOptions { threads: 1, arithmetic: Arithmetic::Int16, isa: Isa::Auto });
    let shapes = expert_shapes(&checkpoint, &config).unwrap();
    let backend =
        CpuBackend::new(config.clone(), weights, experts, shapes, compute.unwrap(), limits);
    let engine = Engine::new(config, model, Box::new(backend.unwrap()), 128);
    let tokenizer = tokenizer();
    let source = std::fs::read_to_string(demo().join("chat_template.jinja")).unwrap();
    let controls = Arc::clone(tokenizer.control_tokens());
    let template =
        ChatTemplate::new(&source, TemplateTokens::default(), controls, &TemplateHost::here())
            .unwrap();
    Demo { engine, tokenizer, template }
}

impl Demo {
    /// The model's answer at temperature 1 under a constraint, without its end token.
    fn answer(
        &mut self,
        question: &str,
        tools: &[Value],
        think: bool,
        constraint: &dyn Fn(Thinking) -> Constraint,
        seed: u64,
    ) -> String {
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking: Some(think),
            ..RenderOptions::default()
        };
        let message = Message::new(Role::User, question);
        let rendered = self.template.render(&[message], tools, &options).unwrap();
        let mut constraint = constraint(rendered.thinking());
        let mut tokens = self.tokenizer.encode_rendered(&rendered).unwrap();
        let prompt = tokens.len();
        let sampling = SamplingOptions { seed, ..SamplingOptions::default() };
        let mut sampler = Sampler::new(sampling, self.engine.config().vocabulary).unwrap();
        let sequence = self.engine.create_sequence().unwrap();
        let mut last = 0;
        self.engine
            .prefill(sequence, &tokens, &Uncancelled, &mut |_| {}, &mut |_, _, length| {
                last = length - 1;
                Ok(())
            })
            .unwrap();
        let ends = end_tokens(&self.tokenizer);
        loop {
            let mask = constraint.allowed().unwrap();
            let logits = self.engine.logits(&[last]).unwrap();
            let token = sampler.sample_allowed(logits, &tokens, Some(mask)).unwrap().token;
            constraint.accept(token).unwrap();
            if ends.contains(&token) {
                break;
            }
            tokens.push(token);
            let so_far = self.tokenizer.decode(&tokens[prompt..]);
            assert!(tokens.len() < prompt + ANSWER_TOKENS_MAX, "seed {seed}: no end: {so_far}");
            self.engine.forward(&[Run { sequence, tokens: &[token] }], &Uncancelled).unwrap();
            last = 0;
        }
        self.engine.drop_sequence(sequence);
        self.tokenizer.decode(&tokens[prompt..])
    }
}

#[test]
fn the_demo_model_keeps_to_a_schema_at_temperature_one() {
    let mut model = model();
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150}, "city": {"enum": ["Tokyo", "Oslo", "Lima"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2}},
        "required": ["name", "age", "city", "tags"], "additionalProperties": false});
    let grammars = grammars(Dialect::QwenXml);
    let rule = Rule::JsonSchema(schema.clone());
    for seed in 0..if is_long() { 50 } else { 10 } {
        let think = seed % 5 == 0;
        let compile = |thinking| grammars.compile(&rule, &[], thinking).unwrap();
        let text =
            model.answer("Make a JSON object about Alice, who is 31.", &[], think, &compile, seed);
        let answer = text.rsplit("</think>").next().unwrap();
        assert_eq!(text.contains("</think>"), think, "seed {seed}: {text}");
        let value: Value = serde_json::from_str(answer)
            .unwrap_or_else(|error| panic!("seed {seed}: {text:?}: {error}"));
        check(&schema, &schema, &value)
            .unwrap_or_else(|error| panic!("seed {seed}: {text:?}: {error}"));
    }
}

#[test]
fn the_demo_model_calls_when_it_must() {
    let mut model = model();
    let tools = tools();
    let grammars = grammars(Dialect::QwenXml);
    let rule = Rule::Calls { name: Some("get_weather".to_owned()), parallel: false };
    for seed in 0..if is_long() { 20 } else { 5 } {
        let compile = |thinking| grammars.compile(&rule, &tools, thinking).unwrap();
        let think = seed % 5 == 0;
        // Not a question that it would call for.
        let text = model.answer("Tell me a story.", &tools, think, &compile, seed);
        let answer = text.rsplit("</think>").next().unwrap();
        let calls = calls(Dialect::QwenXml, answer);
        assert_eq!(calls.len(), 1, "seed {seed}: {text:?}");
        let schema = &tools[0]["function"]["parameters"];
        check(schema, schema, &calls[0].1)
            .unwrap_or_else(|error| panic!("seed {seed}: {text:?}: {error}"));
    }
}
