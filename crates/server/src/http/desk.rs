//! A thread for work that takes longer than a connection's thread may: made when the server starts, so that no request
//! fails because the system has no thread to give.
//!
//! One piece of work at a time; the others wait in line, each until its deadline. What runs holds no permit that could
//! be lost: the thread is the permit. A panic ends the piece of work that caused it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::error::{ApiError, Kind};

/// How long work may wait in line.
const PATIENCE: Duration = Duration::from_secs(60);

/// A piece of work.
type Piece = Box<dyn FnOnce() + Send>;

/// A thread and the line before it.
#[derive(Debug)]
pub(crate) struct Desk {
    line: Option<mpsc::Sender<Piece>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    started: Instant,
    /// When the piece in work began, in milliseconds since then, plus one; 0 while there is none.
    busy_since: AtomicU64,
}

impl Desk {
    /// Starts the thread, which belongs to the runtime that the caller is in, if it is in one.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let (line, pieces) = mpsc::channel::<Piece>();
        let state = Arc::new(State { started: Instant::now(), busy_since: AtomicU64::new(0) });
        let its = Arc::clone(&state);
        let runtime = Handle::try_current().ok();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _tasks_may_be_spawned = runtime.as_ref().map(Handle::enter);
            for piece in pieces {
                let now = u64::try_from(its.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
                its.busy_since.store(now + 1, Ordering::Relaxed);
                // Its waiter sees that the answer's channel has closed.
                let _panicked = catch_unwind(AssertUnwindSafe(piece));
                its.busy_since.store(0, Ordering::Relaxed);
            }
        })?;
        Ok(Self { line: Some(line), state, thread: Some(thread) })
    }

    /// Runs `work` when those before it are done.
    ///
    /// # Errors
    /// It waited too long, or it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.run_within(PATIENCE, work).await
    }

    async fn run_within<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed = || ApiError::new(Kind::Server, "the request could not be read");
        let (begun, began) = oneshot::channel();
        let (done, result) = oneshot::channel();
        let piece = move || {
            // What has waited too long, or whose client has gone, is not begun.
            if begun.send(()).is_ok() {
                let _gone = done.send(work());
            }
        };
        let line = self.line.as_ref().ok_or_else(failed)?;
        line.send(Box::new(piece)).map_err(|_| failed())?;
        match tokio::time::timeout(patience, began).await {
            Ok(began) => began.map_err(|_| failed())?,
            Err(_) => {
                let message = "the server is busy with other requests; come again";
                return Err(ApiError::new(Kind::Unavailable, message));
            }
        }
        result.await.map_err(|_| failed())
    }

    /// How long the piece in work has been at it.
    pub(crate) fn busy_for(&self) -> Duration {
        match self.state.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self.state.started.elapsed().saturating_sub(Duration::from_millis(since - 1)),
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.line = None;
        // What hangs must not keep the server from its end, and what runs there may hold the last of the server.
        let busy = self.state.busy_since.load(Ordering::Relaxed) != 0;
        if let Some(thread) = self.thread.take().filter(|_| !busy) {
            let _caught = thread.join();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_panic_ends_its_piece_of_work_alone() {
        let desk = Desk::start("test").unwrap();
        runtime().block_on(async {
            let panicked: Result<(), _> = desk.run(|| panic!("a fault")).await;
            assert_eq!(panicked.unwrap_err().kind(), Kind::Server);
            assert_eq!(desk.run(|| 7).await.unwrap(), 7);
        });
        assert_eq!(desk.busy_for(), Duration::ZERO);
    }

    #[test]
    fn what_waits_has_a_deadline_and_is_then_not_done() {
        let desk = Desk::start("test").unwrap();
        let (release, held) = mpsc::channel::<()>();
        let (told, ran) = mpsc::channel::<()>();
        runtime().block_on(async {
            let short = Duration::from_millis(50);
            let holding = desk.run(move || held.recv().is_err());
            let late = async {
                // After the first has begun.
                tokio::time::sleep(short).await;
                let late = desk.run_within(short, move || told.send(()).is_ok()).await;
                assert_eq!(late.unwrap_err().kind(), Kind::Unavailable);
                assert!(desk.busy_for() >= short);
                drop(release);
            };
            let (held, ()) = tokio::join!(holding, late);
            assert!(held.unwrap());
            assert_eq!(desk.run(|| 7).await.unwrap(), 7);
        });
        assert!(ran.recv().is_err(), "its client was told otherwise");
    }
}
