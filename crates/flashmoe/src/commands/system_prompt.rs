//! The system prompt of `--system-file`, computed when a server starts: the first conversation goes on from it.

use std::sync::Arc;
use std::time::Instant;

use server::work::{
    Conversation, EngineWorker, Event, Finish, Job, Owner, PrepareError, Preparing, Worker,
};
use text::{Message, Role};

use crate::progress::say;

/// Whose kept prompts the system prompt goes into.
pub(crate) fn owner(keys: &[String], shared: bool) -> Option<Owner> {
    match keys {
        [] => Some(Owner::everybody()),
        _ if shared => Some(Owner::everybody()),
        [key] => Some(Owner::of_key(key)),
        _ => None,
    }
}

/// Computes it on a thread of its own. Requests are answered meanwhile.
pub(crate) fn compute(worker: &Arc<EngineWorker>, owner: Option<Owner>) {
    let Some(owner) = owner else {
        let why = "each API key has kept prompts of its own (--share-prefixes: one for all)";
        return say(&format!("the system prompt is computed with each key's first request: {why}"));
    };
    let worker = Arc::clone(worker);
    let computing = move || match computed(&worker, owner) {
        Ok(line) => say(&line),
        Err(problem) => say(&format!("the system prompt was not computed: {problem}")),
    };
    if let Err(error) = std::thread::Builder::new().name("system prompt".into()).spawn(computing) {
        say(&format!("the system prompt was not computed: {error}"));
    }
}

/// The line that says how long it took.
fn computed(worker: &EngineWorker, owner: Owner) -> Result<String, String> {
    let started = Instant::now();
    // What the user says does not matter: the state is kept where the system prompt ends.
    let messages = vec![Message::new(Role::User, "Hello")];
    let conversation = Conversation { messages, ..Conversation::default() };
    let prompt = worker
        .prepare(&conversation, Preparing::PATIENT)
        .map_err(|error: PrepareError| error.to_string())?;
    let Some(&length) = prompt.boundaries.first() else {
        return Err("this model's template has no place for one".to_owned());
    };
    let mut job = Job::new("system prompt", prompt);
    (job.max_tokens, job.owner) = (Some(1), owner);
    let mut ticket = worker.submit(job).map_err(|refusal| refusal.to_string())?;
    let mut finish: Option<Box<Finish>> = None;
    while let Some(event) = ticket.events.blocking_recv() {
        match event {
            Event::Failed(error) => return Err(error.to_string()),
            Event::Finished(finished) => finish = Some(finished),
            _ => {}
        }
    }
    let finish = finish.ok_or("the server ends")?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(if finish.usage.cached > 0 {
        format!("system prompt: {length} tokens, kept from before, ready in {seconds:.1} s")
    } else {
        format!("system prompt: {length} tokens computed in {seconds:.1} s")
    })
}
