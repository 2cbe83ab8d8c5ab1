//! Goal: a server of several models answers by their names, loads what is asked for, unloads what was used longest ago,
//! and no model's trouble is another's. Method: scripted workers, and a loader that counts, waits and fails as it is
//! told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::registry::{Footprint, Loader, Models, Offer, Sharing};
use server::work::{Failing, FinishReason, Loading, Worker};
use server::{Log, ServeOptions};

use crate::support::{
    Reply, Response, Scripted, Serving, Step, card, connect, finish, request, say, text,
};

/// What the loader does, and did.
#[derive(Default)]
struct Kitchen {
    names: Vec<String>,
    /// Names of models that cannot be loaded.
    broken: Mutex<Vec<&'static str>>,
    /// Loading ends by a panic.
    panics: AtomicBool,
    /// Loading waits while this is true.
    closed: Mutex<bool>,
    opened: Condvar,
    /// How often each was loaded, or tried.
    tried: Mutex<BTreeMap<String, usize>>,
    /// The worker that each had last.
    workers: Mutex<BTreeMap<String, Arc<Scripted>>>,
    /// Workers that run, and the most that did.
    most: AtomicUsize,
    /// How long an answer takes.
    answer: Mutex<Duration>,
}

impl Kitchen {
    fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn tried(&self, name: &str) -> usize {
        self.tried.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    fn worker(&self, name: &str) -> Arc<Scripted> {
        Arc::clone(&self.workers.lock().unwrap()[name])
    }

    fn is_stopped(&self, name: &str) -> bool {
        self.worker(name).stopped.load(Ordering::SeqCst)
    }
}

struct Cook(Arc<Kitchen>);

impl Loader for Cook {
    fn load(&mut self, index: usize, loading: &Arc<Loading>) -> Result<Arc<dyn Worker>, String> {
        let kitchen = &self.0;
        let name = kitchen.names[index].clone();
        *kitchen.tried.lock().unwrap().entry(name.clone()).or_default() += 1;
        loading.advance(0.42);
        let mut closed = kitchen.closed.lock().unwrap();
        while *closed {
            closed = kitchen.opened.wait(closed).unwrap();
        }
        drop(closed);
        assert!(!kitchen.panics.swap(false, Ordering::SeqCst), "as the test wants it");
        if kitchen.broken.lock().unwrap().contains(&name.as_str()) {
            return Err("/secret/path: is damaged".to_owned());
        }
        let answer = [
            Step::Say(text(&format!("I am {name}. "))),
            Step::Wait(*kitchen.answer.lock().unwrap()),
            Step::Say(text("Done.")),
            Step::Say(finish(FinishReason::Stop)),
        ];
        let worker = Scripted::named(&name, Reply::Play(answer.to_vec()));
        let mut workers = kitchen.workers.lock().unwrap();
        workers.insert(name, Arc::clone(&worker));
        let runs = |worker: &&Arc<Scripted>| !worker.stopped.load(Ordering::SeqCst);
        kitchen.most.fetch_max(workers.values().filter(runs).count(), Ordering::SeqCst);
        Ok(worker)
    }
}

/// A server of models that take one byte each.
struct House {
    kitchen: Arc<Kitchen>,
    serving: Serving,
    models: Arc<Models>,
}

impl House {
    fn of(names: &[&str], room: u64) -> Self {
        Self::waiting(names, room, Duration::from_secs(10))
    }

    fn waiting(names: &[&str], room: u64, patience: Duration) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self::start(Kitchen { names, ..Kitchen::default() }, room, patience)
    }

    fn start(kitchen: Kitchen, room: u64, patience: Duration) -> Self {
        let kitchen = Arc::new(kitchen);
        let footprint = Footprint { memory: 1, vram: 0 };
        let offer = |name: &String| Offer { card: card(name), footprint };
        let sharing = Sharing {
            budget: Footprint { memory: room, vram: 0 },
            loaded_max: kitchen.names.len(),
            patience,
            pause: Duration::from_millis(300),
            log: Log::default(),
        };
        let offers = kitchen.names.iter().map(offer).collect();
        let cook = Box::new(Cook(Arc::clone(&kitchen)));
        let models = Arc::new(Models::several(offers, sharing, cook).unwrap());
        let serving = Serving::start_models(Arc::clone(&models), ServeOptions::default());
        Self { kitchen, serving, models }
    }

    fn ask(&self, model: &str) -> Response {
        self.serving.post("/v1/chat/completions", &chat(model))
    }

    /// Which model answered.
    fn answer(&self, model: &str) -> String {
        let response = self.ask(model);
        assert_eq!(response.status, 200, "{model}: {}", response.body);
        let answer = response.json();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    fn state(&self, name: &str) -> String {
        let models = self.serving.get("/v1/models").json();
        let all = models["data"].as_array().unwrap();
        let model = all.iter().find(|model| model["id"] == name).unwrap();
        model["status"]["value"].as_str().unwrap().to_owned()
    }

    fn wait_for(&self, name: &str, state: &str) {
        let begun = Instant::now();
        while self.state(name) != state {
            assert!(begun.elapsed() < Duration::from_secs(10), "{name}: {}", self.state(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.kitchen.open();
        self.models.close();
    }
}

fn chat(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "Who are you?" }] })
}

#[test]
fn models_answer_by_their_names_and_are_loaded_when_they_are_asked_for() {
    let house = House::of(&["Alpha", "beta"], 2);
    house.models.first_tried();
    assert_eq!((house.state("Alpha"), house.state("beta")), ("loaded".into(), "unloaded".into()));
    assert_eq!(house.kitchen.tried("beta"), 0, "no request named it");
    for name in ["Alpha", "alpha", "ALPHA:latest", "Alpha:side", ""] {
        assert_eq!(house.answer(name), "I am Alpha. Done.", "{name:?}");
    }
    assert_eq!(house.answer("beta"), "I am beta. Done.");
    assert_eq!(house.state("beta"), "loaded");
    // Each in every protocol, in turn.
    let user = json!([{ "role": "user", "content": "Who?" }]);
    let bodies = [
        ("/v1/messages", json!({ "messages": user, "max_tokens": 9 })),
        ("/v1/responses", json!({ "input": "Who?" })),
        ("/v1/completions", json!({ "prompt": "Who?" })),
        ("/completion", json!({ "prompt": "Who?" })),
        ("/api/chat", json!({ "messages": user, "stream": false })),
    ];
    for (path, mut body) in bodies {
        for name in ["Alpha", "beta"] {
            body["model"] = name.into();
            let response = house.serving.post(path, &body);
            assert_eq!(response.status, 200, "{path}: {}", response.body);
            assert!(response.body.contains(&format!("I am {name}.")), "{path}: {}", response.body);
            assert_eq!(response.header("x-warning"), None, "{path}");
        }
    }
    for path in ["/tokenize", "/apply-template", "/v1/messages/count_tokens"] {
        let body = json!({ "model": "beta", "messages": user, "max_tokens": 9 });
        assert_eq!(house.serving.post(path, &body).status, 200, "{path}");
    }
    assert_eq!((house.kitchen.tried("Alpha"), house.kitchen.tried("beta")), (1, 1));
}

#[test]
fn the_model_that_was_used_longest_ago_makes_room() {
    let house = House::of(&["a", "b", "c"], 2);
    for name in ["a", "b", "a"] {
        house.answer(name);
    }
    house.answer("c");
    assert!(house.kitchen.is_stopped("b"), "b was used longest ago");
    assert!(!house.kitchen.is_stopped("a") && !house.kitchen.is_stopped("c"));
    let states = ["a", "b", "c"].map(|name| house.state(name));
    assert_eq!(states, ["loaded", "unloaded", "loaded"]);
    house.answer("b");
    assert!(house.kitchen.is_stopped("a"), "a was used before c");
    assert_eq!(["a", "b", "c"].map(|name| house.kitchen.tried(name)), [1, 2, 1]);
    assert_eq!(house.kitchen.most.load(Ordering::SeqCst), 2);
}

#[test]
fn what_cannot_be_loaded_fails_alone_and_is_tried_again_after_a_pause() {
    let house = House::of(&["a", "b"], 2);
    house.kitchen.broken.lock().unwrap().push("b");
    let refused = house.ask("b");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    assert!(refused.body.contains("could not be loaded"), "{}", refused.body);
    assert!(!refused.body.contains("secret"), "the reason is the operator's: {}", refused.body);
    let models = house.serving.get("/v1/models").json();
    assert_eq!(models["data"][1]["status"]["failed"], true, "{models}");
    // Again at once: not tried, and the other goes on.
    assert_eq!(house.ask("b").status, 503);
    assert_eq!(house.kitchen.tried("b"), 1);
    assert_eq!(house.answer("a"), "I am a. Done.");
    assert_eq!(house.serving.get("/readyz").status, 200);
    std::thread::sleep(Duration::from_millis(350));
    house.kitchen.broken.lock().unwrap().clear();
    house.kitchen.panics.store(true, Ordering::SeqCst);
    assert_eq!(house.ask("b").status, 503, "a panic of the loader");
    assert_eq!(house.answer("a"), "I am a. Done.");
    std::thread::sleep(Duration::from_millis(350));
    assert_eq!(house.answer("b"), "I am b. Done.");
    assert_eq!(house.kitchen.tried("b"), 3);
    let models = house.serving.get("/v1/models").json();
    assert_eq!(models["data"][1]["status"], json!({ "value": "loaded", "percent": 100 }));
}

#[test]
fn answers_that_run_are_finished_before_their_model_leaves() {
    let house = House::of(&["a", "b"], 1);
    house.models.first_tried();
    house.kitchen.worker("a").set(Reply::Play(vec![
        Step::Wait(Duration::from_millis(400)),
        Step::Say(text("To the end.")),
        Step::Say(finish(FinishReason::Stop)),
    ]));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| house.answer("a"));
        while house.kitchen.worker("a").running.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let other = scope.spawn(|| house.answer("b"));
        house.wait_for("a", "unloading");
        assert!(!house.kitchen.is_stopped("a"));
        // Who asks for it now comes after.
        let late = scope.spawn(|| house.answer("a"));
        assert_eq!(running.join().unwrap(), "To the end.");
        assert_eq!(other.join().unwrap(), "I am b. Done.");
        assert_eq!(late.join().unwrap(), "I am a. Done.");
    });
    assert_eq!((house.kitchen.tried("a"), house.kitchen.tried("b")), (2, 1));
    assert_eq!(house.kitchen.most.load(Ordering::SeqCst), 1);
}

#[test]
fn who_waited_long_enough_is_told_to_come_again_and_the_busy_model_stays() {
    let house = House::waiting(&["a", "b"], 1, Duration::from_millis(300));
    house.models.first_tried();
    house.kitchen.worker("a").set(Reply::Play(vec![
        Step::Wait(Duration::from_secs(2)),
        Step::Say(text("Long.")),
        Step::Say(finish(FinishReason::Stop)),
    ]));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| house.answer("a"));
        while house.kitchen.worker("a").running.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let begun = Instant::now();
        let refused = house.ask("b");
        assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
        assert!(refused.body.contains("still answer"), "{}", refused.body);
        // No request waits for the room any more: the model takes requests again.
        house.wait_for("a", "loaded");
        assert_eq!(running.join().unwrap(), "Long.");
    });
    assert_eq!(house.kitchen.tried("b"), 0);
    // One that is being read is not there in time either; it goes on being read.
    house.kitchen.close();
    let refused = house.ask("b");
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["message"], "Loading model: 42 %");
    assert_eq!(house.state("b"), "loading");
    house.kitchen.open();
    house.wait_for("b", "loaded");
    assert_eq!(house.answer("b"), "I am b. Done.");
}

#[test]
fn a_model_is_not_loaded_for_clients_that_have_gone() {
    let house = House::of(&["a", "b", "c"], 3);
    house.models.first_tried();
    house.kitchen.close();
    let body = chat("b").to_string();
    let asked = request("POST", "/v1/chat/completions", &["Content-Type: application/json"], &body);
    let mut b = connect(house.serving.address);
    std::io::Write::write_all(&mut b, asked.as_bytes()).unwrap();
    house.wait_for("b", "loading");
    // While that is read, a client of c comes and goes.
    let mut c = connect(house.serving.address);
    let asked = asked.replace("\"b\"", "\"c\"");
    std::io::Write::write_all(&mut c, asked.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(c);
    std::thread::sleep(Duration::from_millis(100));
    house.kitchen.open();
    house.wait_for("b", "loaded");
    assert_eq!(house.answer("a"), "I am a. Done.");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(house.kitchen.tried("c"), 0);
}

#[test]
fn a_name_that_no_model_has_is_refused_with_those_that_there_are() {
    let house = House::of(&["a", "b"], 2);
    house.models.first_tried();
    let listed = "no model of this name is served; there are a, b";
    let openai = house.ask("gpt-4");
    assert_eq!((openai.status, openai.header("x-should-retry")), (404, Some("false")));
    assert_eq!(openai.json()["error"]["message"], listed);
    assert_eq!(openai.json()["error"]["param"], "model");
    let body = json!({ "model": "c", "max_tokens": 5, "messages": chat("c")["messages"] });
    let anthropic = house.serving.post("/v1/messages", &body);
    assert_eq!(
        (anthropic.status, &anthropic.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    assert_eq!(house.serving.post("/api/show", &json!({ "model": "c" })).status, 404);
    assert_eq!(house.serving.post("/api/show", &json!({ "model": "b:latest" })).status, 200);
    for path in ["/v1/models/c", "/props?model=c", "/status?model=..%2Fa", "/slots?model=c"] {
        assert_eq!(house.serving.get(path).status, 404, "{path}");
    }
    for (body, problem) in [("{", "not JSON"), ("{\"model\":7}", "model: must be a string")] {
        let head = ["Content-Type: application/json"];
        let refused = house.serving.send("POST", "/v1/chat/completions", &head, body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.body.contains(problem), "{}", refused.body);
    }
    assert_eq!(house.kitchen.tried("b"), 0, "nothing was loaded for any of these");
    // What is looked at does not load: the model that was used last, or the named one.
    assert_eq!(house.serving.get("/props").json()["model"], "a");
    assert_eq!(house.serving.get("/props?model=b").status, 503);
    assert_eq!(house.serving.get("/status?model=b").json()["model"]["id"], "b");
    house.answer("b");
    assert_eq!(house.serving.get("/props").json()["model"], "b");
    assert_eq!(house.kitchen.tried("a"), 1);
}

#[test]
fn models_are_loaded_and_unloaded_by_order() {
    let house = House::of(&["a", "b"], 2);
    house.models.first_tried();
    let order = |what: &str, name: &str| {
        let response = house.serving.post(&format!("/models/{what}"), &json!({ "model": name }));
        (response.status, response.json()["changed"].clone())
    };
    assert_eq!(order("load", "b"), (200, json!(true)));
    house.wait_for("b", "loaded");
    assert_eq!(order("load", "b"), (200, json!(false)));
    assert_eq!(order("unload", "a"), (200, json!(true)));
    house.wait_for("a", "unloaded");
    assert_eq!(order("unload", "a"), (200, json!(false)));
    assert_eq!(order("load", "c").0, 404);
    let ps = house.serving.get("/api/ps").json();
    assert_eq!(ps["models"].as_array().unwrap().len(), 1, "{ps}");
    assert_eq!(house.serving.get("/api/tags").json()["models"].as_array().unwrap().len(), 2);
    // ollama's way: any request loads, this one unloads.
    let left = house.serving.post("/api/generate", &json!({ "model": "b", "keep_alive": 0 }));
    assert_eq!((left.status, &left.json()["done_reason"]), (200, &json!("unload")));
    assert_eq!(left.header("x-warning"), None);
    house.wait_for("b", "unloaded");
    assert_eq!(house.answer("b"), "I am b. Done.");
    // One model stays.
    let only = Serving::start(Scripted::new(Reply::Play(say([finish(FinishReason::Stop)]))));
    assert_eq!(only.post("/models/unload", &json!({ "model": "scripted" })).status, 501);
}

#[test]
fn an_engine_that_broke_is_unloaded_and_the_server_goes_on() {
    let house = House::of(&["a", "b"], 2);
    house.answer("b");
    house.kitchen.worker("b").status.lock().unwrap().failing = Some(Failing::Broken);
    house.wait_for("b", "unloaded");
    assert!(house.kitchen.is_stopped("b"));
    assert_eq!(house.serving.get("/livez").status, 200);
    assert_eq!(house.answer("a"), "I am a. Done.");
    assert_eq!(house.answer("b"), "I am b. Done.");
    assert_eq!(house.kitchen.tried("b"), 2);
}

#[test]
fn the_server_is_ready_once_the_first_model_was_tried() {
    let names = ["a", "b"].map(str::to_owned).to_vec();
    let kitchen = Kitchen { names, closed: Mutex::new(true), ..Kitchen::default() };
    kitchen.broken.lock().unwrap().push("a");
    let house = House::start(kitchen, 2, Duration::from_secs(10));
    house.wait_for("a", "loading");
    let health = house.serving.get("/readyz");
    assert_eq!((health.status, health.json()["percent"].clone()), (503, json!(42)));
    assert_eq!(house.serving.get("/livez").status, 200);
    house.kitchen.open();
    house.models.first_tried();
    let health = house.serving.get("/readyz");
    assert_eq!((health.status, health.json()["status"].clone()), (200, json!("ok")));
    assert_eq!(house.answer("b"), "I am b. Done.");
    let health = house.serving.get("/readyz").json();
    assert_eq!(health["models"], json!({ "all": 2, "loaded": 1 }));
}

#[test]
fn figures_of_several_models_are_told_apart() {
    let house = House::of(&["a", "b", "c"], 3);
    house.answer("b");
    let status = house.serving.get("/status").json();
    assert_eq!(status["model"]["id"], "b");
    let states: Vec<&Value> =
        status["models"].as_array().unwrap().iter().map(|it| &it["state"]).collect();
    assert_eq!(states, ["loaded", "loaded", "unloaded"]);
    let page = house.serving.get("/metrics").body;
    for line in [
        "flashmoe_model_info{model=\"c\",family=\"none\"} 1",
        "flashmoe_model_load_ratio{model=\"b\"} 1",
        "flashmoe_model_load_ratio{model=\"c\"} 0",
        "flashmoe_model_loads_total{model=\"b\"} 1",
        "flashmoe_sequences{model=\"a\"} 2",
        "vllm:num_requests_running{model_name=\"b\"} 0",
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line}: {page}");
    }
    // A family's lines stand together, under one head.
    let mut heads = std::collections::BTreeSet::new();
    let mut family = String::new();
    for line in page.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(head) => {
                head.split(' ').next().unwrap().clone_into(&mut family);
                assert!(heads.insert(family.clone()), "{family} has two heads");
            }
            None if line.starts_with('#') => {}
            None => assert!(line.starts_with(&family), "{line} is not of {family}"),
        }
    }
}

#[test]
fn many_clients_of_more_models_than_fit_all_get_their_own_answers() {
    let house = House::of(&["a", "b", "c", "d"], 2);
    *house.kitchen.answer.lock().unwrap() = Duration::from_millis(3);
    std::thread::scope(|scope| {
        for client in 0..6_usize {
            let house = &house;
            scope.spawn(move || {
                for round in 0..15_usize {
                    let name = ["a", "b", "c", "d"][(client * 7 + round * (client + 1)) % 4];
                    assert_eq!(house.answer(name), format!("I am {name}. Done."));
                }
            });
        }
    });
    assert!(house.kitchen.most.load(Ordering::SeqCst) <= 2, "more were loaded than fit");
}
