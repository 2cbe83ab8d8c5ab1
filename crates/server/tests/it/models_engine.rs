//! Goal: engines in one process do not know of each other. Method: two workers of the demo model behind one server,
//! asked in turn and at once; each answers as it does alone, and no prompt of one is found by the other.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use server::registry::{Footprint, Loader, Models, Offer, Sharing};
use server::work::{Loading, ModelCard, Worker};
use server::{Log, ServeOptions};

use crate::engine_support::{Setting, worker};
use crate::support::{Serving, exchange_within, request};

const NAMES: [&str; 2] = ["one", "two"];
const PATIENCE: Duration = Duration::from_secs(180);

struct Engines;

impl Loader for Engines {
    fn load(&mut self, index: usize, _: &Arc<Loading>) -> Result<Arc<dyn Worker>, String> {
        Ok(Arc::new(worker(&Setting { name: NAMES[index], ..Setting::default() })))
    }
}

fn models(room: u64) -> Arc<Models> {
    let footprint = Footprint { memory: 1, vram: 0 };
    let known = worker(&Setting::default()).model();
    let card = |name: &str| ModelCard { id: name.to_owned(), ..known.clone() };
    let offers = NAMES.map(|name| Offer { card: card(name), footprint }).to_vec();
    let sharing = Sharing {
        budget: Footprint { memory: room, vram: 0 },
        loaded_max: 2,
        patience: PATIENCE,
        pause: Duration::ZERO,
        log: Log::default(),
    };
    Arc::new(Models::several(offers, sharing, Box::new(Engines)).unwrap())
}

fn ask(serving: &Serving, model: &str, question: &str) -> (String, Value) {
    let body = json!({ "model": model, "max_tokens": 12, "temperature": 0,
        "messages": [{ "role": "user", "content": question }] });
    let head = ["Content-Type: application/json"];
    let sent = request("POST", "/v1/chat/completions", &head, &body.to_string());
    // A load may take longer than any other test waits.
    let response = exchange_within(serving.address, sent.as_bytes(), PATIENCE);
    assert_eq!(response.status, 200, "{}", response.body);
    let answer = response.json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    (text, answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone())
}

#[test]
fn engines_of_one_process_answer_as_they_do_alone() {
    let questions = ["What is 2 + 2?", "Which colour has the sky?", "Name a fruit."];
    let alone = Serving::start_models(models(1), ServeOptions::default());
    let expected = questions.map(|question| ask(&alone, "one", question).0);
    drop(alone);
    let both = models(2);
    let serving = Serving::start_models(Arc::clone(&both), ServeOptions::default());
    std::thread::scope(|scope| {
        for name in NAMES {
            let (serving, expected) = (&serving, &expected);
            scope.spawn(move || {
                for (question, expected) in questions.iter().zip(expected) {
                    assert_eq!(&ask(serving, name, question).0, expected, "{name}: {question}");
                }
            });
        }
    });
    // What one has read the other has not.
    let long = "Tell me about rivers, lakes, seas and the mountains between them. ".repeat(6);
    assert_eq!(ask(&serving, "one", &long).1, 0);
    assert_ne!(ask(&serving, "one", &long).1, 0);
    assert_eq!(ask(&serving, "two", &long).1, 0);
    both.close();
}

#[test]
fn engines_take_turns_where_one_fits() {
    let models = models(1);
    let serving = Serving::start_models(Arc::clone(&models), ServeOptions::default());
    let answers: Vec<String> =
        (0..4).map(|round| ask(&serving, NAMES[round % 2], "What is 2 + 2?").0).collect();
    assert!(answers.iter().all(|answer| answer == &answers[0]), "{answers:?}");
    let page = serving.get("/metrics").body;
    assert!(page.contains("flashmoe_model_loads_total{model=\"two\"} 2\n"), "{page}");
    assert!(page.contains("flashmoe_model_unloads_total{model=\"one\"} 2\n"), "{page}");
    models.close();
}
