//! `flashmoe stage`: computes a range of a model's layers for a first process, on this host or another.
//!
//! It serves one first process and ends with it: 0 where that ended in order, 6 where it was lost. Whatever starts
//! processes starts it anew. A connection that is refused changes nothing.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Result;
use engine::stages::remote::{Ended, Facts, Joined, Terms};
use wire::{Credentials, Identity, Listener, Trusted};

use crate::arguments::StageArguments;
use crate::failure::Failure;
use crate::hosts;
use crate::plan::{Plan, Seats};
use crate::progress::say;
use crate::supervisor::Supervisor;

/// Handshakes at a time.
const HANDSHAKES: usize = 16;

pub(crate) fn stage(arguments: &StageArguments, out: &mut dyn Write) -> Result<()> {
    let identity = arguments.identity.as_ref().map(Identity::at);
    if !arguments.has_model() {
        let Some(identity) = identity else {
            let reason = "name a MODEL, or with --identity FOLDER alone a folder to make";
            return Err(Failure::usage(reason).into());
        };
        return make(&identity, out);
    }
    let (Some(layers), Some(listen)) = (&arguments.layers, &arguments.listen) else {
        let reason = "a stage needs --layers A:B and --listen HOST:PORT";
        return Err(Failure::usage(reason).into());
    };
    store::heap::configure();
    let supervisor = Supervisor::of_environment();
    let credentials = credentials(arguments, identity.as_ref())?;
    // What is wrong with the address is known before the model is loaded. Until it is, the port is closed.
    drop(Listener::bind(listen, credentials.clone()).map_err(hosts::failure)?);
    let mut model = arguments.model.clone();
    model.part = Some(layers.0.clone());
    let seats = Seats {
        sequences: arguments.sequences.map(usize::from),
        snapshots: arguments.snapshots.map(usize::from),
        waiting: None,
    };
    let plan = Plan::resolve(&model, seats)?;
    plan.approximations().iter().for_each(|line| say(line));
    let terms = hosts::terms(&plan, layers.0.clone())?;
    let (stage, declared) = plan.load_stage()?;
    let listener = Listener::bind(listen, credentials).map_err(hosts::failure)?;
    crate::failure::serves();
    let address = listener.address().map_err(Failure::io)?;
    let (first, last) = (layers.0.start, layers.0.end - 1);
    writeln!(out, "stage: layers {first} to {last} at {address}")
        .and_then(|()| out.flush())
        .map_err(Failure::io)?;
    supervisor.ready();
    let patience = arguments.silence.0;
    let (sender, firsts) = sync_channel(0);
    let door = Arc::new(Door {
        listener,
        terms,
        facts: Facts::of(stage.backend.as_ref(), plan.backend.batch_tokens),
        patience,
        taken: AtomicBool::new(false),
    });
    let accepting = std::thread::Builder::new().name("accept".to_owned());
    accepting.spawn(move || accept(&door, &sender)).map_err(Failure::io)?;
    let joined: Joined = firsts.recv().map_err(Failure::io)?;
    drop(firsts);
    say(&format!("the first process is {}", joined.address()));
    match joined.serve(stage, &declared).map_err(Failure::engine)? {
        Ended::InOrder => Ok(()),
        Ended::Lost(lost) => {
            let why = format!("the first process at {} is lost: {}", lost.address, lost.cause);
            Err(Failure::Lost(anyhow::anyhow!(why)).into())
        }
    }
}

/// Makes an identity and says what to do with it.
fn make(identity: &Identity, out: &mut dyn Write) -> Result<()> {
    let made = if identity.exists() { "is there" } else { "made" };
    if !identity.exists() {
        identity.make().map_err(hosts::failure)?;
    }
    let file = identity.certificate();
    let (file, sum) = (store::shown::path(&file), identity.fingerprint().map_err(hosts::failure)?);
    writeln!(out, "{file} {made}: copy it to the other hosts\nSHA-256 {sum}")
        .map_err(|error| Failure::io(error).into())
}

fn credentials(
    arguments: &StageArguments,
    identity: Option<&Identity>,
) -> Result<Option<Credentials>> {
    let Some(identity) = identity else { return Ok(None) };
    if !identity.exists() {
        let folder = arguments.identity.as_deref().unwrap_or("".as_ref());
        let folder = store::shown::path(folder);
        let reason = format!("there is no identity: flashmoe stage --identity {folder} makes it");
        return Err(Failure::usage(reason).into());
    }
    if arguments.trust.is_empty() {
        let reason = "--identity needs --trust FILE: the certificate of the first process";
        return Err(Failure::usage(reason).into());
    }
    hosts::warn_of_readers(identity);
    let trusted = Trusted { files: arguments.trust.clone() };
    Ok(Some(Credentials::read(identity, &trusted).map_err(hosts::failure)?))
}

/// Where first processes come in.
struct Door {
    listener: Listener,
    terms: Terms,
    facts: Facts,
    patience: Duration,
    /// It is a first process's. The end of their connection before a word tells that to others, who try again: this
    /// process ends with that one, and is started anew.
    taken: AtomicBool,
}

/// Takes connections, each with a thread until it has greeted: one that says nothing keeps no other waiting.
fn accept(door: &Arc<Door>, to: &SyncSender<Joined>) {
    let under_way = Arc::new(AtomicUsize::new(0));
    loop {
        let (stream, from) = match door.listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                say(&format!("no connection is taken: {error}"));
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        if door.taken.load(Ordering::SeqCst) {
            continue;
        }
        if under_way.fetch_add(1, Ordering::SeqCst) >= HANDSHAKES {
            under_way.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let (door, to) = (Arc::clone(door), to.clone());
        let counted = Arc::clone(&under_way);
        let shaking = std::thread::Builder::new().name("handshake".to_owned());
        let spawned = shaking.spawn(move || {
            door.greet(stream, from, &to);
            counted.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Door {
    fn greet(&self, stream: TcpStream, from: SocketAddr, to: &SyncSender<Joined>) {
        let Self { listener, terms, facts, patience, taken } = self;
        let joined = listener.secure(stream, from).map_err(|error| error.to_string());
        let joined = joined.and_then(|connection| {
            let joined = Joined::over(hosts::channel(connection), terms, facts, *patience);
            joined.map_err(|error| format!("{from}: {error}"))
        });
        match joined {
            Ok(joined) => {
                taken.store(true, Ordering::SeqCst);
                if to.send(joined).is_err() {
                    say(&format!("{from} is refused: the stage is another first process's"));
                }
            }
            Err(error) => say(&format!("refused: {error}")),
        }
    }
}
