//! While the weights are read: the server says how far it is, refuses what needs them, and then serves.

use crate::support;

use std::sync::Arc;

use serde_json::json;
use server::ServeOptions;
use server::work::{FinishReason, Loading, Worker};
use support::{Reply, Scripted, Serving, finish, say, text};

#[test]
fn a_model_that_is_being_loaded_is_listed_and_not_asked() {
    let worker = Scripted::new(Reply::Play(say([text("Hello."), finish(FinishReason::Stop)])));
    let loading = Arc::new(Loading::new(worker.model()));
    let serving = Serving::start_loading(Arc::clone(&loading), ServeOptions::default());
    let health = || {
        let response = serving.get("/health");
        (response.status, response.json(), response.header("retry-after").map(str::to_owned))
    };
    let again = Some("5".to_owned());
    assert_eq!(health(), (503, json!({ "status": "loading", "percent": 0 }), again.clone()));
    loading.advance(0.379);
    // Progress of another part never takes it back.
    loading.advance(0.2);
    assert_eq!(health(), (503, json!({ "status": "loading", "percent": 37 }), again.clone()));

    let models = serving.get("/v1/models");
    assert_eq!(models.status, 200);
    let model = &models.json()["data"][0];
    assert_eq!((&model["id"], &model["context_length"]), (&json!("scripted"), &json!(1000)));
    assert_eq!(model["status"], json!({ "value": "loading", "percent": 37 }));
    assert_eq!(serving.get("/v1/models/scripted").json()["status"]["percent"], 37);
    assert_eq!(serving.get("/status").json()["loaded_percent"], 37);
    assert_eq!(serving.get("/").status, 200);
    let metrics = serving.get("/metrics").body;
    assert!(metrics.contains("\nflashmoe_model_load_ratio 0.37\n"), "{metrics}");

    let user = json!([{ "role": "user", "content": "Go on." }]);
    let chat = json!({ "messages": user });
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages/count_tokens", "/tokenize"]
    {
        let refused = serving.post(path, &chat);
        assert_eq!(refused.status, 503, "{path}");
        assert_eq!(refused.header("retry-after"), again.as_deref(), "{path}");
        assert_eq!(refused.header("x-should-retry"), None, "{path}");
    }
    for path in ["/slots", "/props"] {
        assert_eq!(serving.get(path).status, 503, "{path}");
    }
    let error = serving.post("/v1/chat/completions", &chat).json();
    let expected = json!({ "error": { "message": "Loading model: 37 %", "type": "unavailable_error",
        "param": null, "code": "loading", "percent": 37 } });
    assert_eq!(error, expected);
    let error = serving.post("/v1/messages", &chat).json();
    assert_eq!(error["error"]["type"], "overloaded_error");
    assert_eq!(error["error"]["message"], "Loading model: 37 %");

    // Everything read is not yet a worker.
    loading.advance(1.0);
    assert_eq!(health().1["percent"], 99);
    loading.finish(worker);
    let (status, body, _) = health();
    assert_eq!((status, &body["status"]), (200, &json!("ok")));
    assert_eq!(serving.get("/v1/models").json()["data"][0]["status"]["value"], "loaded");
    assert_eq!(serving.post("/v1/chat/completions", &chat).status, 200);
    assert_eq!(serving.post("/v1/messages", &chat).status, 200);
}
