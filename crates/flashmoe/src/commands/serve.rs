//! `flashmoe serve`: one model or several behind the protocols of the clients.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use server::registry::Models;
use server::work::{Loading, Worker};
use server::{
    Level, Limits, Line, Log, ServeError, ServeOptions, Server, Stopper, System, TlsOptions,
    TlsProblem,
};
use store::io::platform::{Access, access};
use store::shown;

use super::served::{Common, Served};
use super::several::{self, Crew, Named};
use super::system_prompt;
use crate::arguments::{LogFormat, ServeArguments};
use crate::failure::Failure;
use crate::hosts;
use crate::plan::language::LanguageBeside;
use crate::progress::{say, say_json};
use crate::supervisor::Supervisor;

/// Longest file of keys or of a system prompt.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn serve(arguments: &ServeArguments, out: &mut dyn Write) -> Result<()> {
    store::heap::configure();
    hosts::check_served(arguments)?;
    let log = log(arguments);
    let supervisor = Supervisor::of_environment();
    let keys = keys(arguments)?;
    let options = ServeOptions {
        address: SocketAddr::new(arguments.host, arguments.port),
        keys: keys.clone(),
        share_prefixes: arguments.share_prefixes,
        allow_remote_without_key: arguments.allow_remote_without_key,
        allowed_hosts: arguments.allow_host.clone(),
        allowed_origins: arguments.allow_origin.clone(),
        tls: tls(arguments),
        log: log.clone(),
        ..ServeOptions::default()
    };
    // The address is taken before the model is loaded, so that a mistake is known at once.
    let server = Server::bind(options).map_err(failure)?;
    let address = server.address().map_err(failure)?;
    let system = match &arguments.system_file {
        None => None,
        Some(file) => Some(small_file("--system-file", file)?),
    };
    let common = Common { arguments: Arc::new(arguments.clone()), system, keys, log };
    let front = Front { server, address, supervisor, common };
    match several::named(&front.common)? {
        Named::One(model) => front.serve_one(&model, out),
        Named::Several(models) => front.serve_several(models, out),
    }
}

/// A server before it serves.
struct Front {
    server: Server,
    address: SocketAddr,
    supervisor: Supervisor,
    common: Common,
}

/// A server that serves, on a thread of its own.
struct Running {
    stopper: Stopper,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    fn ended(self) -> Result<()> {
        let served =
            self.serving.join().map_err(|_| anyhow::anyhow!("serving ended by a panic"))?;
        served.map_err(|error| failure(error).into())
    }
}

impl Front {
    /// Serves one model, which is there from the start to the end.
    fn serve_one(self, model: &Served, out: &mut dyn Write) -> Result<()> {
        let planned = model.planned()?;
        let (plan, card) = (&planned.plan, planned.card.clone());
        let requests = plan.requests.as_ref().map(|requests| requests.limits);
        let language = LanguageBeside::start(plan)?;
        for line in plan.approximations() {
            say(&line);
        }
        let (sequences, context) = (plan.backend.sequences, plan.backend.context);
        // What is served is known before the weights are there: clients are told how far it is.
        let name = card.id.clone();
        let loading = Arc::new(Loading::new(card));
        let models = Arc::new(Models::one(Arc::clone(&loading)));
        let (common, supervisor, address) =
            (self.common.clone(), self.supervisor.clone(), self.address);
        let running = self.start(models, requests)?;
        let worker = match model.worker(planned, language, &loading) {
            Ok(worker) => worker,
            Err(error) => {
                running.stopper.stop();
                running.ended()?;
                return Err(error);
            }
        };
        if common.system.is_some() {
            let owner = system_prompt::owner(&common.keys, common.arguments.share_prefixes);
            system_prompt::compute(&worker, owner);
        }
        loading.finish(Arc::clone(&worker) as Arc<dyn Worker>);
        let together = match sequences {
            1 => "one conversation at a time".to_owned(),
            count => format!("{count} conversations at a time"),
        };
        let what = format!("{name} ({together}, {context} tokens of context, ");
        let served = serve_on(running, &common, (&supervisor, address), &what, out);
        // What is kept is written now.
        worker.stop();
        served
    }

    /// Serves several models, loaded as they are asked for.
    fn serve_several(self, models: Vec<Served>, out: &mut dyn Write) -> Result<()> {
        let Crew { offers, sharing, loader, limits } = Crew::of(models)?;
        let names: Vec<String> = offers.iter().map(|offer| offer.card.id.clone()).collect();
        let together = sharing.loaded_max.min(names.len());
        let models = Models::several(offers, sharing, Box::new(loader)).map_err(Failure::io)?;
        let models = Arc::new(models);
        let (common, supervisor, address) =
            (self.common.clone(), self.supervisor.clone(), self.address);
        let running = self.start(Arc::clone(&models), Some(limits))?;
        models.first_tried();
        let what = format!("{} (up to {together} loaded at a time, ", names.join(", "));
        let served = serve_on(running, &common, (&supervisor, address), &what, out);
        models.close();
        served
    }

    /// Begins to serve, from before a model is there.
    fn start(self, models: Arc<Models>, requests: Option<Limits>) -> Result<Running> {
        let arguments = &self.common.arguments;
        let mut limits = Limits {
            drain_delay: arguments.drain_delay.0,
            grace: arguments.drain_timeout.0,
            ..requests.unwrap_or_default()
        };
        if arguments.tls_cert.is_some() {
            // Records on their way in and out take as much again as plain text does.
            limits.connections /= 2;
        }
        let mut server = self.server;
        server.set_limits(limits);
        let stopper = server.stopper();
        self.supervisor.watch(Arc::clone(&models), limits.silence).map_err(Failure::io)?;
        let run = move || server.run_models(models, Arc::new(System));
        let serving = std::thread::Builder::new().name("serve".to_owned()).spawn(run);
        Ok(Running { stopper, serving: serving.map_err(Failure::io)? })
    }
}

/// Says that `what` is served, and serves until the end.
fn serve_on(
    running: Running,
    common: &Common,
    (supervisor, address): (&Supervisor, SocketAddr),
    what: &str,
    out: &mut dyn Write,
) -> Result<()> {
    let arguments = &common.arguments;
    stop_at_signals(running.stopper.clone(), supervisor.clone())?;
    if running.serving.is_finished() {
        return running.ended();
    }
    server::check_descriptors().map_err(failure)?;
    crate::failure::serves();
    let pages = match arguments.allow_origin.as_slice() {
        [] => "other hosts' web pages need --allow-origin".to_owned(),
        allowed => format!("also for web pages of {}", allowed.join(", ")),
    };
    let scheme = if arguments.tls_cert.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    let line = Line {
        level: Level::Info,
        text: format!("{what}{pages}) at {url}"),
        fields: vec![("url", url.clone().into())],
    };
    writeln!(out, "{}", written(arguments.log_format, &line))
        .and_then(|()| out.flush())
        .map_err(Failure::io)?;
    supervisor.ready();
    running.ended()
}

/// Where lines of the log go: to standard error, each with its time.
fn log(arguments: &ServeArguments) -> Log {
    let format = arguments.log_format;
    Log::new(arguments.log_level, move |line: &Line| {
        let text = written(format, line);
        match format {
            LogFormat::Text => say(&text),
            LogFormat::Json => say_json(&text),
        }
    })
}

/// A line of the log with the time.
fn written(format: LogFormat, line: &Line) -> String {
    let now = SystemTime::now();
    match format {
        LogFormat::Text => line.text_at(now),
        LogFormat::Json => line.json_at(now),
    }
}

/// The keys of the command line and of the file.
fn keys(arguments: &ServeArguments) -> Result<Vec<String>> {
    let mut keys = arguments.api_key.clone();
    if let Some(file) = &arguments.api_key_file {
        let text = small_file("--api-key-file", file)?;
        warn_of_readers("--api-key-file", file);
        let before = keys.len();
        let lines = text.lines().map(str::trim);
        keys.extend(
            lines.filter(|key| !key.is_empty() && !key.starts_with('#')).map(str::to_owned),
        );
        if keys.len() == before {
            // An empty file must not open the server.
            let problem = format!("--api-key-file {} has no key", shown::path(file));
            return Err(Failure::usage(problem).into());
        }
    }
    Ok(keys)
}

/// Says that a file of secrets is no secret. What cannot be found out is not said: who reads the file says more.
fn warn_of_readers(option: &str, file: &Path) {
    // Of a link it is the file that counts.
    let found = file.canonicalize().and_then(|file| access(&file));
    if matches!(found, Ok(Access::Others)) {
        let file = shown::path(file);
        say(&format!("{option} {file}: others than its owner may read it; take that right away"));
    }
}

/// How often certificates are looked at.
const RENEWAL: Duration = Duration::from_secs(60);

/// The certificate and key that were named.
fn tls(arguments: &ServeArguments) -> Option<TlsOptions> {
    let (certificate, key) = (arguments.tls_cert.clone()?, arguments.tls_key.clone()?);
    warn_of_readers("--tls-key", &key);
    Some(TlsOptions { certificate, key, renewal: RENEWAL })
}

/// The text of a file that an option names.
fn small_file(option: &str, file: &Path) -> Result<String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file);
    let read = opened.and_then(|it| it.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(Failure::io).with_context(|| shown::path(file).to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let file = shown::path(file);
        let problem = format!("{option} {file} has more than {FILE_BYTES_MAX} bytes");
        return Err(Failure::usage(problem).into());
    }
    Ok(text)
}

/// The first signal ends the server; a second one does not wait for answers in progress.
fn stop_at_signals(stopper: Stopper, supervisor: Supervisor) -> Result<()> {
    let mut stopping = false;
    let told = move || {
        if std::mem::replace(&mut stopping, true) {
            std::process::exit(130);
        }
        supervisor.stopping();
        stopper.stop();
    };
    crate::signals::listen(told).map_err(|error| Failure::io(error).into())
}

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::Listen { ref source, .. } if source.kind() == ErrorKind::AddrInUse => {
            Failure::io(anyhow::anyhow!("{error}; --port takes another, 0 a free one"))
        }
        ServeError::Listen { .. }
        | ServeError::Threads(_)
        | ServeError::Descriptors(_)
        | ServeError::Tls { reason: TlsProblem::Read(_), .. } => Failure::io(error),
        ServeError::Broken => Failure::Run(error.into()),
        ServeError::StageLost => Failure::Lost(error.into()),
        other => Failure::usage(other.to_string()),
    }
}
