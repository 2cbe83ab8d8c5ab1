//! Several models at work: the thread that loads and unloads them, and the requests that wait for it.
//!
//! One thread, because loading is reading: two models that are read at once are both there later. Everything is decided
//! in the [`Book`] under one lock, which is never held while something is read or ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use store::shown::shown;
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::book::{Book, State, Task};
use super::{Lease, Loader, Offer, Sharing, View, not_loaded, unknown};
use crate::http::{ApiError, Kind};
use crate::log::Level;
use crate::protocol::SIDE_SUFFIX;
use crate::throttle::Throttle;
use crate::work::{Failing, Loading, Worker};

/// Requests that may wait for one model to be loaded; as many as a queue ever has places for.
const WAITING_MAX: usize = 64;
/// What ollama's clients put behind a name.
const LATEST: &str = ":latest";

/// Models, the thread that loads them, and who waits.
pub(super) struct Several {
    names: Vec<String>,
    /// Every change leaves it whole; a panic in one can cost a place in the line.
    inner: Mutex<Inner>,
    /// For the thread, and for who waits for it without a runtime.
    wake: Condvar,
    /// For requests: something changed.
    changed: watch::Sender<()>,
    sharing: Sharing,
    log: Throttle,
}

struct Inner {
    book: Book,
    /// The first model was loaded, or could not be.
    tried: bool,
    /// The thread ends a worker.
    unloading: bool,
    stopping: bool,
}

/// A request that waits, until it is dropped.
struct Waiting<'a> {
    several: &'a Several,
    index: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.several.hold().book.places[self.index].waiting -= 1;
        self.several.wake.notify_all();
    }
}

/// A name without what clients add to it.
pub(crate) fn plain(name: &str) -> &str {
    let name = name.strip_suffix(SIDE_SUFFIX).unwrap_or(name);
    name.strip_suffix(LATEST).unwrap_or(name)
}

impl Several {
    /// Starts the thread, which loads the first offer at once.
    pub(super) fn start(
        offers: Vec<Offer>,
        sharing: Sharing,
        loader: Box<dyn Loader>,
    ) -> std::io::Result<Arc<Self>> {
        let names = offers.iter().map(|offer| offer.card.id.clone()).collect();
        let mut book = Book::new(offers, sharing.budget, sharing.loaded_max);
        let tried = !book.order(0);
        let inner = Inner { book, tried, unloading: false, stopping: false };
        let several = Arc::new(Self {
            names,
            inner: Mutex::new(inner),
            wake: Condvar::new(),
            changed: watch::Sender::new(()),
            log: Throttle::new(sharing.log.clone()),
            sharing,
        });
        let its = Arc::clone(&several);
        std::thread::Builder::new().name("models".to_owned()).spawn(move || its.run(loader))?;
        Ok(several)
    }

    fn hold(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(&self, held: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.wake.wait(held).unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all who wait that something changed.
    fn tell(&self) {
        self.changed.send_replace(());
        self.wake.notify_all();
    }

    /// Loads and unloads until the server ends.
    fn run(&self, mut loader: Box<dyn Loader>) {
        while let Some(task) = self.next() {
            match task {
                Task::Load(index, loading) => self.load(index, &loading, &mut *loader),
                Task::Unload(index, loading) => {
                    if let Some(worker) = loading.worker() {
                        worker.stop();
                    }
                    drop(loading);
                    let mut inner = self.hold();
                    inner.book.unloaded(index);
                    inner.unloading = false;
                    drop(inner);
                    store::heap::give_back();
                    self.log.say(Level::Info, &format!("{} is unloaded", self.name(index)));
                }
            }
            self.tell();
        }
    }

    fn name(&self, index: usize) -> String {
        shown(&self.names[index]).to_string()
    }

    /// Waits for something to do; `None` once the server ends.
    fn next(&self) -> Option<Task> {
        let mut inner = self.hold();
        loop {
            if inner.stopping {
                return None;
            }
            let (task, stays) = inner.book.next();
            if stays {
                self.changed.send_replace(());
            }
            inner.unloading = matches!(task, Some(Task::Unload(..)));
            if task.is_some() {
                return task;
            }
            inner = self.sleep(inner);
        }
    }

    fn load(&self, index: usize, loading: &Arc<Loading>, loader: &mut dyn Loader) {
        let name = self.name(index);
        self.log.say(Level::Info, &format!("{name} is being loaded"));
        let begun = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| loader.load(index, loading)));
        let result = result.unwrap_or_else(|_| Err("loading ended by a panic".to_owned()));
        let worker = match result {
            Ok(worker) => {
                let took = begun.elapsed().as_secs_f64();
                self.log.say(Level::Info, &format!("{name} is loaded after {took:.1} s"));
                Some(worker)
            }
            Err(reason) => {
                self.log.say(Level::Error, &format!("{name} could not be loaded: {reason}"));
                store::heap::give_back();
                None
            }
        };
        let late = worker.clone();
        let mut inner = self.hold();
        inner.book.loaded_with(index, worker, Instant::now());
        inner.tried = true;
        let stopping = inner.stopping;
        drop(inner);
        // Whoever ended the others did not see this one.
        if let (true, Some(worker)) = (stopping, late) {
            worker.stop();
        }
    }

    pub(super) fn give_back(&self, index: usize) {
        self.hold().book.give_back(index);
        self.wake.notify_all();
    }

    /// The model of a name, written as clients write it: with a suffix of theirs, in any case.
    fn find(&self, name: &str) -> Result<usize, ApiError> {
        let wanted = plain(name);
        let exact = self.names.iter().position(|own| own == name || own == wanted);
        let alike = || {
            let mut alike =
                (0..self.names.len()).filter(|&at| self.names[at].eq_ignore_ascii_case(wanted));
            alike.next().filter(|_| alike.next().is_none())
        };
        exact.or_else(alike).ok_or_else(|| unknown(self.names.iter().cloned()))
    }

    /// A model that is loaded, for a request: the named one, the first where none is named.
    pub(super) async fn choose(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<(Arc<Loading>, Lease), ApiError> {
        let index = if name.is_empty() { 0 } else { self.find(name)? };
        let end = tokio::time::Instant::now() + self.sharing.patience;
        let mut changed = self.changed.subscribe();
        let (waiting, failures) = {
            let mut inner = self.hold();
            if let Some(loading) = self.leased(&mut inner, index)? {
                return Ok((loading, Lease::new(Arc::clone(self), index)));
            }
            let place = &mut inner.book.places[index];
            let pause = self.sharing.pause;
            if place.failed.is_some_and(|failed| failed.elapsed() < pause) {
                return Err(self.cannot(index));
            }
            if place.waiting >= WAITING_MAX {
                let message =
                    format!("{WAITING_MAX} requests wait for {} already", self.name(index));
                let retry_after = self.sharing.patience;
                return Err(ApiError::new(Kind::QueueFull { retry_after }, message));
            }
            place.waiting += 1;
            let failures = place.counts.failures;
            inner.book.want(index);
            (Waiting { several: self, index }, failures)
        };
        self.wake.notify_all();
        let chosen = loop {
            {
                let mut inner = self.hold();
                if let Some(loading) = self.leased(&mut inner, index)? {
                    break loading;
                }
                let place = &inner.book.places[index];
                if place.counts.failures > failures {
                    drop(inner);
                    return Err(self.cannot(index));
                }
                // It may have left meanwhile, which takes it out of the line.
                if !matches!(place.state, State::Loading) {
                    inner.book.want(index);
                }
            }
            if timeout_at(end, changed.changed()).await.is_err() {
                return Err(self.late(index));
            }
        };
        drop(waiting);
        Ok((chosen, Lease::new(Arc::clone(self), index)))
    }

    fn leased(&self, inner: &mut Inner, index: usize) -> Result<Option<Arc<Loading>>, ApiError> {
        if inner.stopping {
            return Err(ApiError::new(Kind::Unavailable, "the server is shutting down"));
        }
        Ok(inner.book.lease(index))
    }

    /// The error of a request whose model could not be loaded. The reason names files: it is the operator's.
    fn cannot(&self, index: usize) -> ApiError {
        let name = self.name(index);
        let message = format!("{name} could not be loaded; the server's log says why");
        ApiError::new(Kind::Unavailable, message)
    }

    /// The error of a request that waited long enough.
    fn late(&self, index: usize) -> ApiError {
        let inner = self.hold();
        let place = &inner.book.places[index];
        let percent = place.loading.percent();
        let seconds = self.sharing.patience.as_secs();
        if place.state == State::Loading {
            return not_loaded(percent);
        }
        let message = format!(
            "{} waited {seconds} s for the memory of models that still answer; come again",
            self.name(index)
        );
        ApiError::new(Kind::Loading { percent }, message)
    }

    /// Has a model loaded or unloaded; false where there is nothing to do.
    pub(super) fn order(&self, name: &str, loaded: bool) -> Result<bool, ApiError> {
        let index = self.find(name)?;
        let mut inner = self.hold();
        let done = match loaded {
            true => inner.book.order(index),
            false => inner.book.dismiss(index),
        };
        drop(inner);
        self.tell();
        Ok(done)
    }

    pub(super) fn views(&self) -> Vec<View> {
        let inner = self.hold();
        let view = |place: &super::book::Place| View {
            loading: Arc::clone(&place.loading),
            state: place.state,
            failed: place.failed.is_some(),
            counts: place.counts,
        };
        inner.book.places.iter().map(view).collect()
    }

    pub(super) fn view(&self, name: &str) -> Result<Arc<Loading>, ApiError> {
        let index = if name.is_empty() { None } else { Some(self.find(name)?) };
        let inner = self.hold();
        let index = index.unwrap_or_else(|| inner.book.current());
        Ok(Arc::clone(&inner.book.places[index].loading))
    }

    pub(super) fn starting(&self) -> Option<u32> {
        let inner = self.hold();
        (!inner.tried).then(|| inner.book.places[0].loading.percent())
    }

    pub(super) fn first_tried(&self) {
        let mut inner = self.hold();
        while !inner.tried && !inner.stopping {
            inner = self.sleep(inner);
        }
    }

    /// Unloads models whose engine is not usable any more, or whose files changed: the next request opens them anew.
    pub(super) fn drop_broken(&self) {
        let broken = |worker: &Arc<dyn Worker>| {
            let lost = [Failing::Broken, Failing::Ended, Failing::FileChanged];
            worker.status().failing.is_some_and(|failing| lost.contains(&failing))
        };
        let views = self.views();
        for (index, view) in views.iter().enumerate() {
            let lost = view.state == State::Loaded && view.loading.worker().is_some_and(broken);
            if !lost {
                continue;
            }
            let mut inner = self.hold();
            if inner.stopping || !Arc::ptr_eq(&inner.book.places[index].loading, &view.loading) {
                continue;
            }
            inner.book.dismiss(index);
            drop(inner);
            let name = self.name(index);
            self.log.say(
                Level::Error,
                &format!("{name} fails: it is unloaded, and loaded anew when it is asked for"),
            );
            self.tell();
        }
    }

    /// Ends all workers. A load that is under way is not waited for.
    pub(super) fn close(&self) {
        let mut inner = self.hold();
        inner.stopping = true;
        self.tell();
        while inner.unloading {
            inner = self.sleep(inner);
        }
        drop(inner);
        for view in self.views() {
            if let Some(worker) = view.loading.worker() {
                worker.stop();
            }
        }
    }
}
