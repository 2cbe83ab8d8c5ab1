//! Goal: a conversation that a client saves by a name is there after a restart, to the bit, and nothing else is: no
//! path outside the folder, no file of another model or key, nothing damaged. Method: the demo model behind a server.

use std::path::Path;

use serde_json::{Value, json};
use server::ServeOptions;
use server::work::SlotOptions;

use crate::engine_support::{Setting, served::Served};
use crate::support::Response;

const LONG: &str = "Tell me about rivers, lakes, seas and the mountains between them. ";
const JSON: &str = "Content-Type: application/json";

fn serve(folder: &Path, fingerprint: u64, keys: &[&str]) -> Served {
    let slots = Some(SlotOptions { folder: folder.to_owned(), fingerprint });
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    let options = ServeOptions { keys, ..ServeOptions::default() };
    Served::start_with(options, &Setting { slots, ..Setting::default() })
}

/// What a holder of `key` asks; an empty one is no key.
fn send(served: &Served, key: &str, path: &str, body: &Value) -> Response {
    let key = format!("Authorization: Bearer {key}");
    served.send(path, &[JSON, &key], &body.to_string())
}

fn question(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 8, "temperature": 0 })
}

/// The answer, and how much of its prompt was not computed again.
fn ask(served: &Served, key: &str, body: &Value) -> (String, u64) {
    let response = send(served, key, "/v1/chat/completions", body);
    assert_eq!(response.status, 200, "{}", response.body);
    let answer = response.json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    (text, cached.unwrap_or(0))
}

fn order(served: &Served, key: &str, slot: usize, action: &str, name: &str) -> Response {
    let path = format!("/slots/{slot}?action={action}");
    send(served, key, &path, &json!({ "filename": name }))
}

#[test]
fn a_saved_conversation_goes_on_after_a_restart_as_if_nothing_had_happened() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("slots");
    let body = question(&LONG.repeat(20));
    let first = serve(&folder, 1, &[]);
    let (answer, cached) = ask(&first, "", &body);
    assert_eq!(cached, 0);
    let saved = order(&first, "", 0, "save", "talk-1.bin");
    assert_eq!(saved.status, 200, "{}", saved.body);
    let saved = saved.json();
    assert_eq!((&saved["id_slot"], &saved["filename"]), (&json!(0), &json!("talk-1.bin")));
    let tokens = saved["n_saved"].as_u64().unwrap();
    let file = folder.join("talk-1.bin");
    assert_eq!(saved["n_written"], file.metadata().unwrap().len());
    assert!(tokens > 200 && saved["timings"]["save_ms"].is_number(), "{saved}");
    // Again under the same name; no other file is left.
    assert_eq!(order(&first, "", 0, "save", "talk-1.bin").status, 200);
    let names = std::fs::read_dir(&folder).unwrap().flatten().map(|it| it.file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, [".salt", "talk-1.bin"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0);
    }
    drop(first);

    let again = serve(&folder, 1, &[]);
    let restored = order(&again, "", 1, "restore", "talk-1.bin");
    assert_eq!(restored.status, 200, "{}", restored.body);
    let restored = restored.json();
    assert_eq!((&restored["n_restored"], &restored["id_slot"]), (&json!(tokens), &json!(1)));
    assert_eq!(restored["n_read"], saved["n_written"]);
    let (warm, cached) = ask(&again, "", &body);
    assert_eq!(warm, answer, "the same, whether it was computed or restored");
    assert!(cached > 200, "{cached} tokens were found");
    // Forgotten, it is computed again.
    let erased = send(&again, "", "/slots/0?action=erase", &json!({})).json();
    assert!(erased["n_erased"].as_u64().unwrap() > 200, "{erased}");
    assert_eq!(ask(&again, "", &body), (answer, 0));
    let erased = again.send("/slots/1?action=erase", &[], "");
    assert_eq!(erased.status, 200, "without a body: {}", erased.body);
}

#[test]
fn no_name_leads_out_of_the_folder_and_no_foreign_file_is_read() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("slots");
    let served = serve(&folder, 1, &[]);
    ask(&served, "", &question(LONG));
    for name in
        ["", ".", "..", "../talk", "a/b", "/etc/passwd", "a\\b", "a\0", ".salt", "talk.bin "]
    {
        for action in ["save", "restore"] {
            let refused = order(&served, "", 0, action, name);
            assert_eq!(refused.status, 400, "{action} {name:?}: {}", refused.body);
            assert!(refused.body.contains("filename"), "{}", refused.body);
        }
    }
    for (path, status) in [
        ("/slots/0?action=copy", 400),
        ("/slots/0", 400),
        ("/slots/2?action=save", 404),
        ("/slots/2?action=restore", 404),
        ("/slots/0?action=restore", 404),
        ("/slots/1?action=save", 400),
        ("/slots/x?action=save", 404),
    ] {
        let refused = send(&served, "", path, &json!({ "filename": "talk" }));
        assert_eq!(refused.status, status, "{path}: {}", refused.body);
    }
    assert_eq!(send(&served, "", "/slots/0?action=save", &json!({})).status, 400);
    assert_eq!(served.get("/slots/0").status, 405);
    assert_eq!(order(&served, "", 0, "save", "talk").status, 200);
    let whole = std::fs::read(folder.join("talk")).unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).unwrap();
        let response = order(&served, "", 0, "restore", name);
        assert_eq!(response.status, 400, "{name}: {}", response.body);
        response.body
    };
    assert!(refused("short", &whole[..40]).contains("ends too early"));
    assert!(refused("noise", &[7; 400]).contains("is not the file of a slot"));
    assert!(refused("cut", &whole[..whole.len() - 1]).contains("length"));
    // A bit of the header's count and sizes, of what follows them, of the state, of the sum.
    for at in [12, 24, 48, 56, 64, 72, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        refused("bit", &bytes);
    }
    let mut huge = whole.clone();
    huge[24..48].fill(0xff);
    refused("huge", &huge);
    #[cfg(unix)]
    {
        let outside = home.path().join("outside");
        std::fs::write(&outside, &whole).unwrap();
        std::os::unix::fs::symlink(&outside, folder.join("link")).unwrap();
        assert_ne!(order(&served, "", 0, "restore", "link").status, 200);
        assert_eq!(order(&served, "", 0, "save", "link").status, 400);
        assert_eq!(std::fs::read(&outside).unwrap(), whole);
    }
    // A file of a client's that is none of ours is not written over.
    assert!(order(&served, "", 0, "save", "noise").body.contains("taken"));
    assert_eq!(order(&served, "", 0, "restore", "talk").status, 200);
    drop(served);
    let other = serve(&folder, 2, &[]);
    let refused = order(&other, "", 0, "restore", "talk");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("of another model"), "{}", refused.body);
    drop(other);
    let without = Served::start(ServeOptions::default());
    assert_eq!(order(&without, "", 0, "save", "talk").status, 501);
}

#[test]
fn slots_and_files_are_of_one_key() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("slots");
    let served = serve(&folder, 1, &["anna", "bert"]);
    let body = question(&LONG.repeat(8));
    ask(&served, "anna", &body);
    assert!(order(&served, "bert", 0, "save", "mine").body.contains("empty"));
    assert_eq!(order(&served, "anna", 0, "save", "talk").status, 200);
    assert_eq!(order(&served, "bert", 0, "restore", "talk").status, 404);
    assert_eq!(send(&served, "bert", "/slots/0?action=erase", &json!({})).json()["n_erased"], 0);
    ask(&served, "bert", &body);
    assert!(order(&served, "bert", 0, "save", "talk").body.contains("taken"));
    assert_eq!(order(&served, "stranger", 0, "save", "x").status, 401);
    drop(served);
    let again = serve(&folder, 1, &["bert", "anna"]);
    assert_eq!(order(&again, "bert", 0, "restore", "talk").status, 404);
    assert_eq!(order(&again, "anna", 0, "restore", "talk").status, 200);
    assert_eq!(ask(&again, "bert", &body).1, 0);
    assert_ne!(ask(&again, "anna", &body).1, 0);
}

#[test]
fn a_conversation_is_remembered_under_the_slot_that_it_names() {
    let home = tempfile::tempdir().unwrap();
    let served = serve(&home.path().join("slots"), 1, &[]);
    let of = |slot: i64, times: usize| {
        let mut body = question(&LONG.repeat(times));
        body["id_slot"] = slot.into();
        send(&served, "", "/v1/chat/completions", &body)
    };
    assert_eq!(of(1, 15).status, 200);
    assert_eq!(of(-1, 3).status, 200);
    let saved = |slot| order(&served, "", slot, "save", "talk").json()["n_saved"].as_u64().unwrap();
    assert!(saved(1) > 2 * saved(0), "{} {}", saved(1), saved(0));
    for slot in [2, -2] {
        let refused = of(slot, 1);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body.contains("id_slot"), "{}", refused.body);
    }
}
