//! Sockets: the listener, its connections, their end.
//!
//! HTTP/1.1 only: every client speaks it, and one connection is one request at a time, which keeps cancellation
//! simple. hyper parses and refuses malformed heads (400), heads beyond the limit (431) and slow ones; `heads` sees
//! the one kind of malformed head that it lets through. It also notices that a client has gone while its request is
//! being worked on, and drops the request, which cancels the job.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::app::App;
use super::descriptors;
use super::drain::Phase;
use super::heads::Watched;
use super::identify::{Identify, System};
use super::idle::{Held, Idle, Place};
use super::options::{Limits, ServeError, ServeOptions};
use super::tls::{Tls, TlsStream};
use crate::log::Level;
use crate::registry::Models;
use crate::work::{Failing, Loading, Worker};

/// Threads that serve connections. The engine has the others.
const SERVING_THREADS: usize = 2;
/// Headers of a request; hyper's own limit.
const HEADERS_MAX: usize = 100;
/// Bytes of a socket that are read ahead; the library's own limit is twelve times this, for each connection.
const READ_AHEAD_BYTES: usize = 32 << 10;
/// How long a server whose engine is broken says so at the most: it takes no work.
const LAST_WORD: Duration = Duration::from_millis(500);
/// How long answers that were ended may take to arrive.
const FAREWELL: Duration = Duration::from_secs(3);
/// Pause before a connection is tried again for which there was no room, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How long an idle connection may take to close.
const CLOSING: Duration = Duration::from_millis(100);
/// How often it is looked whether what was taken is done.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);
/// How often the log is asked whether it has left out lines.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A server that listens and does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    options: ServeOptions,
    tls: Option<Arc<Tls>>,
    stop: watch::Sender<bool>,
}

/// Ends a server from elsewhere: another thread, a signal's handler thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: watch::Sender<bool>,
}

impl Stopper {
    /// No new work is taken after [`Limits::drain_delay`]; what was taken gets [`Limits::grace`] more.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

impl Server {
    /// Listens. Connections wait until [`Server::run`].
    ///
    /// # Errors
    /// Options that are unsafe, files of TLS that cannot be used, or an address that cannot be listened on.
    pub fn bind(options: ServeOptions) -> Result<Self, ServeError> {
        options.validate()?;
        let tls = options.tls.clone().map(Tls::read).transpose()?.map(Arc::new);
        let address = options.address;
        let failed = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, options, tls, stop: watch::Sender::new(false) })
    }

    /// Takes other limits than those of its options: what is served may decide them.
    pub fn set_limits(&mut self, limits: Limits) {
        self.options.limits = limits;
    }

    /// Where it listens, with the port that was found.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn address(&self) -> Result<SocketAddr, ServeError> {
        let failed = |source| ServeError::Listen { address: self.options.address, source };
        self.listener.local_addr().map_err(failed)
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone() }
    }

    /// Serves until it is stopped, from before the worker is there.
    ///
    /// # Errors
    /// Threads that cannot be started, or an engine that is not usable any more.
    pub fn run(self, worker: Arc<Loading>) -> Result<(), ServeError> {
        self.run_loading(worker, Arc::new(System))
    }

    /// Serves with identifiers and times from elsewhere.
    ///
    /// # Errors
    /// Threads that cannot be started.
    pub fn run_with(
        self,
        worker: Arc<dyn Worker>,
        identify: Arc<dyn Identify>,
    ) -> Result<(), ServeError> {
        self.run_loading(Arc::new(Loading::finished(worker)), identify)
    }

    /// Serves from before the worker is there, with identifiers and times from elsewhere.
    ///
    /// # Errors
    /// Threads that cannot be started.
    pub fn run_loading(
        self,
        worker: Arc<Loading>,
        identify: Arc<dyn Identify>,
    ) -> Result<(), ServeError> {
        self.run_models(Arc::new(Models::one(worker)), identify)
    }

    /// Serves one or several models, with identifiers and times from elsewhere. Their workers are ended by who made
    /// `models` ([`Models::close`]).
    ///
    /// # Errors
    /// Threads that cannot be started, or the engine of an only model that is not usable any more.
    pub fn run_models(
        self,
        models: Arc<Models>,
        identify: Arc<dyn Identify>,
    ) -> Result<(), ServeError> {
        room_for_threads(SERVING_THREADS).map_err(ServeError::Threads)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(SERVING_THREADS)
            .thread_name("flashmoe-http")
            .enable_all()
            .build()
            .map_err(ServeError::Threads)?;
        let connections = descriptors::raise_limit(self.options.limits.connections);
        let app = {
            let _inside = runtime.enter();
            App::new(&self.options, models, identify).map_err(ServeError::Threads)?
        };
        let app = Arc::new(app);
        let result = runtime.block_on(self.serve(app, connections));
        runtime.shutdown_background();
        result
    }

    async fn serve(self, app: Arc<App>, connections: usize) -> Result<(), ServeError> {
        let listener =
            tokio::net::TcpListener::from_std(self.listener).map_err(ServeError::Threads)?;
        let limits = self.options.limits;
        if let Some(tls) = &self.tls {
            tokio::spawn(renew(Arc::clone(tls), Arc::clone(&app)));
        }
        let room = Arc::new(Semaphore::new(connections));
        let idle: Arc<Idle> = Arc::default();
        let ended = watch::Sender::new(false);
        let mut drained = std::pin::pin!(drain(Arc::clone(&app), self.stop.subscribe(), limits));
        let mut log_due = tokio::time::interval(LOG_INTERVAL);
        // Whether the stop was asked for, and not for want of an engine.
        let (mut broken, mut asked) = (None, true);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut drained => break,
                accepted = listener.accept() => accepted,
                _ = log_due.tick() => {
                    app.tell_log();
                    if broken.is_none() && app.broken().is_some() {
                        broken = app.broken();
                        asked = self.stop.send_replace(true);
                    }
                    continue;
                }
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if descriptors::are_lacking(&error) {
                        idle.close_longest();
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let permit = tokio::select! {
                biased;
                () = &mut drained => break,
                permit = admit(&room, &idle) => permit,
            };
            let Some(permit) = permit else { break };
            // Deltas are a few bytes each and must not wait for more.
            let _unset = socket.set_nodelay(true);
            let (app, stopped) = (app.clone(), ended.subscribe());
            let (place, tls) = (Place::new(&idle), self.tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => connection(socket, peer, app, limits, place, stopped).await,
                    Some(tls) => {
                        if let Some(socket) =
                            secured(&tls, socket, peer, &app, limits, &place).await
                        {
                            connection(socket, peer, app, limits, place, stopped).await;
                        }
                    }
                }
                drop(permit);
            });
        }
        drop(listener);
        ended.send_replace(true);
        end(&app, &room, connections).await;
        outcome(broken.or_else(|| app.broken()), asked)
    }
}

/// How a server has ended whose engine was `broken`, if it was; `asked` says that the stop did not come of that.
fn outcome(broken: Option<Failing>, asked: bool) -> Result<(), ServeError> {
    match broken {
        // Where all processes of a group are stopped at a time, stages may be gone first.
        Some(Failing::StageLost) if asked => Ok(()),
        Some(failing) => Err(ServeError::of(failing)),
        None => Ok(()),
    }
}

/// Cuts what is left of requests and waits a little for their connections to say so.
async fn end(app: &App, room: &Semaphore, connections: usize) {
    let cut = app.requests();
    if cut > 0 {
        // What is still running ends as its protocol ends what failed: no client takes it for whole.
        app.say(Level::Warn, &format!("{cut} requests were cut: --drain-timeout is over"));
        app.close();
    }
    let all = u32::try_from(connections).unwrap_or(u32::MAX);
    let _in_time = tokio::time::timeout(FAREWELL, room.acquire_many(all)).await;
    app.tell_log();
}

/// Says whether the system gives so many threads: the runtime would panic without them.
fn room_for_threads(count: usize) -> std::io::Result<()> {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let mut threads = Vec::new();
    let mut made = Ok(());
    for _ in 0..count {
        let held = Arc::clone(&held);
        let wait = move || _ = held.lock().map(|held| held.recv());
        match std::thread::Builder::new().name("room".to_owned()).spawn(wait) {
            Ok(thread) => threads.push(thread),
            Err(error) => made = Err(error),
        }
    }
    drop(hold);
    threads.into_iter().for_each(|thread| _ = thread.join());
    made
}

/// Waits for the stop, then until what was taken is done, or has had its time.
async fn drain(app: Arc<App>, mut stop: watch::Receiver<bool>, limits: Limits) {
    // An error says that the sender is gone, so no stop can come any more: that is a stop as well. What it gives else
    // is a lock on the value: kept, it would stop this thread where it stops the server once more.
    drop(stop.wait_for(|stop| *stop).await);
    app.drain(Phase::Leaving);
    let delay = limits.drain_delay;
    if !delay.is_zero() && app.broken().is_none() {
        let line = format!("stopping: new work is taken for {} s more", delay.as_secs_f64());
        app.say(Level::Info, &line);
    }
    let begun = tokio::time::Instant::now();
    let most = |broken: Option<Failing>| match broken {
        None => delay,
        // What starts a group again waits for nothing.
        Some(Failing::StageLost) => Duration::ZERO,
        Some(_) => delay.min(LAST_WORD),
    };
    while begun.elapsed() < most(app.broken()) {
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
    app.drain(Phase::Closed);
    let end = tokio::time::Instant::now() + limits.grace;
    let mut told = None;
    loop {
        let requests = app.requests();
        if requests == 0 || tokio::time::Instant::now() >= end {
            return;
        }
        if told != Some(requests) {
            let most = limits.grace.as_secs();
            let line = format!(
                "stopping: {requests} requests are being finished, which may take up to {most} s; \
                 a second signal ends them now"
            );
            app.say(Level::Info, &line);
            told = Some(requests);
        }
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
}

/// Waits for room for a connection, closing idle ones while there is none.
async fn admit(room: &Arc<Semaphore>, idle: &Idle) -> Option<OwnedSemaphorePermit> {
    loop {
        let free = room.clone().acquire_owned();
        match tokio::time::timeout(ACCEPT_PAUSE, free).await {
            Ok(permit) => return permit.ok(),
            Err(_) => idle.close_longest(),
        };
    }
}

/// A connection behind its handshake, if it gets there in time and before its room is needed.
async fn secured(
    tls: &Tls,
    socket: TcpStream,
    peer: SocketAddr,
    app: &App,
    limits: Limits,
    place: &Place,
) -> Option<TlsStream> {
    let accepted = tokio::select! {
        accepted = tls.accept(socket, limits.head_time) => accepted,
        () = place.closed() => return None,
    };
    accepted
        .inspect_err(|error| app.say(Level::Debug, &format!("{}: no TLS: {error}", peer.ip())))
        .ok()
}

/// Takes new certificates while the server runs.
async fn renew(tls: Arc<Tls>, app: Arc<App>) {
    loop {
        tokio::time::sleep(tls.renewal()).await;
        let its = Arc::clone(&tls);
        match app.aside(move || its.renew()).await {
            Some(Some(Ok(()))) => app.say(Level::Info, "the certificate is new: it is in use"),
            Some(Some(Err(error))) => {
                let line = format!("the new certificate is not used, the old one is: {error}");
                app.say(Level::Warn, &line);
            }
            Some(None) | None => {}
        }
    }
}

async fn connection(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send,
    peer: SocketAddr,
    app: Arc<App>,
    limits: Limits,
    place: Arc<Place>,
    mut stopped: watch::Receiver<bool>,
) {
    let (socket, seen) = Watched::new(socket, limits.body_bytes);
    let own = Arc::clone(&place);
    let service = service_fn(move |request| {
        let (app, framing, seen) = (app.clone(), seen.next(), Arc::clone(&seen));
        let busy = own.busy();
        async move {
            let response = app.handle(request, peer.ip(), framing, seen).await;
            Ok::<_, Infallible>(response.map(|body| Held { body, _busy: busy }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_headers(HEADERS_MAX)
        .max_header_size(limits.head_bytes)
        .max_buf_size(READ_AHEAD_BYTES.max(limits.head_bytes))
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let stop = async {
        // An error says that the server is gone, which is a stop as well.
        let _stopped = stopped.wait_for(|stop| *stop).await;
    };
    // Errors are the client's: it went away or sent what is not HTTP, and was told if it could be.
    tokio::select! {
        _ended = connection.as_mut() => return,
        () = stop => connection.as_mut().graceful_shutdown(),
        () = place.closed() => {
            connection.as_mut().graceful_shutdown();
            // A request that has just come is answered all the same.
            if !place.is_busy() {
                let _ended = tokio::time::timeout(CLOSING, connection).await;
                return;
            }
        }
    }
    let _ended = connection.await;
}
