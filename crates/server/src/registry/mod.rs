//! The models that one server has by name: which there are, which are loaded, whose turn it is.
//!
//! A server of one model has it from the start to the end. A server of several loads a model when a request names it
//! and unloads those that were used longest ago, so that all that are loaded fit the budget. `book` decides that
//! without a thread or a clock of its own, `several` has the thread that loads and the requests that wait for it, and
//! a [`Lease`] keeps a model loaded until its answer has ended. Prompts, queues and kept states belong to a model's
//! worker: nothing of one model is in another.

mod book;
mod lease;
mod several;

use std::sync::Arc;
use std::time::Duration;

use store::shown::shown;

use self::several::Several;
use crate::http::{ApiError, Kind};
use crate::log::Log;
use crate::work::{Failing, Loading, ModelCard, Worker};

pub use book::Footprint;
pub(crate) use book::{Counts, State};
pub(crate) use lease::Lease;
pub(crate) use several::plain;

/// A model that is offered by its name, and what it takes while it is loaded.
#[derive(Clone, Debug)]
pub struct Offer {
    /// What clients may know of it; its `id` is its name.
    pub card: ModelCard,
    /// Memory that it takes.
    pub footprint: Footprint,
}

/// Makes a worker of a model. One thread calls it, for one model at a time.
pub trait Loader: Send + 'static {
    /// Loads the offer at `index` and tells `loading` how far it is.
    ///
    /// # Errors
    /// Why there is no worker, for the log. Other models go on.
    fn load(&mut self, index: usize, loading: &Arc<Loading>) -> Result<Arc<dyn Worker>, String>;
}

/// How several models share a server.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// What all loaded models may take together.
    pub budget: Footprint,
    /// Most models that are loaded at once.
    pub loaded_max: usize,
    /// How long a request waits for its model.
    pub patience: Duration,
    /// How long after a failure the model is not tried again.
    pub pause: Duration,
    /// Where loading, unloading and failures are told.
    pub log: Log,
}

impl Sharing {
    /// As long as clients wait for a first byte without giving up.
    pub const PATIENCE: Duration = Duration::from_secs(60);
    /// Long enough that a client that repeats at once costs nothing.
    pub const PAUSE: Duration = Duration::from_secs(10);
}

/// The models of a server.
pub struct Models(Kept);

enum Kept {
    One(Arc<Loading>),
    Several(Arc<Several>),
}

/// A model as it is at a moment.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) loading: Arc<Loading>,
    pub(crate) state: State,
    /// The last attempt to load it failed.
    pub(crate) failed: bool,
    pub(crate) counts: Counts,
}

/// A model that a request was let to: loaded, and kept so while the lease is held.
pub(crate) struct Chosen {
    pub(crate) loading: Arc<Loading>,
    /// Nothing where there is one model, which stays.
    pub(crate) lease: Option<Lease>,
    /// The server has others.
    pub(crate) of_several: bool,
}

impl std::fmt::Debug for Models {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.views().iter().map(|view| view.loading.model().id).collect();
        out.debug_tuple("Models").field(&names).finish()
    }
}

impl Models {
    /// One model, whatever name is asked for.
    pub fn one(loading: Arc<Loading>) -> Self {
        Self(Kept::One(loading))
    }

    /// Several; the first is loaded at once. The names must differ.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn several(
        offers: Vec<Offer>,
        sharing: Sharing,
        loader: Box<dyn Loader>,
    ) -> std::io::Result<Self> {
        Ok(Self(Kept::Several(Several::start(offers, sharing, loader)?)))
    }

    /// Ends all workers of several models and waits for them; what they keep is written. One model's worker is its
    /// maker's to end.
    pub fn close(&self) {
        if let Kept::Several(several) = &self.0 {
            several.close();
        }
    }

    /// Waits until the first of several is loaded, or could not be; one model's maker knows.
    pub fn first_tried(&self) {
        if let Kept::Several(several) = &self.0 {
            several.first_tried();
        }
    }

    /// How far the first load is, in percent; `None` once requests are taken.
    pub fn starting(&self) -> Option<u32> {
        match &self.0 {
            Kept::One(loading) => loading.worker().is_none().then(|| loading.percent()),
            Kept::Several(several) => several.starting(),
        }
    }

    /// The workers that are there.
    pub fn workers(&self) -> Vec<Arc<dyn Worker>> {
        self.views().iter().filter_map(|view| view.loading.worker().cloned()).collect()
    }

    /// Since the engine's thread that was silent longest gave a sign of life.
    pub fn silence(&self) -> Duration {
        self.workers().iter().map(|worker| worker.silence()).max().unwrap_or_default()
    }

    /// The one model; `None` where there are several.
    pub(crate) fn only(&self) -> Option<&Arc<Loading>> {
        match &self.0 {
            Kept::One(loading) => Some(loading),
            Kept::Several(_) => None,
        }
    }

    /// All models, in the order in which they were named.
    pub(crate) fn views(&self) -> Vec<View> {
        match &self.0 {
            Kept::One(loading) => {
                let there = loading.worker().is_some();
                let state = if there { State::Loaded } else { State::Loading };
                let loading = Arc::clone(loading);
                vec![View { loading, state, failed: false, counts: Counts::default() }]
            }
            Kept::Several(several) => several.views(),
        }
    }

    /// The model that is looked at: the named one, else the one that was used last, else the first.
    ///
    /// # Errors
    /// There is none of this name.
    pub(crate) fn view(&self, name: &str) -> Result<Arc<Loading>, ApiError> {
        match &self.0 {
            Kept::One(loading) => Ok(Arc::clone(loading)),
            Kept::Several(several) => several.view(name),
        }
    }

    /// The model of this very name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn exact(&self, name: &str) -> Result<View, ApiError> {
        let views = self.views();
        let named = |view: &&View| view.loading.model().id == name;
        views.iter().find(named).cloned().ok_or_else(|| match views.as_slice() {
            [one] => {
                let served = one.loading.model().id;
                let message = format!("no model of this name is served; {} is", shown(&served));
                ApiError::new(Kind::NotFound, message)
            }
            all => unknown(all.iter().map(|view| view.loading.model().id)),
        })
    }

    /// The model for a request that names it so, once it is loaded.
    ///
    /// # Errors
    /// There is none of this name, it is not loaded in time, or it cannot be.
    pub(crate) async fn choose(&self, name: &str) -> Result<Chosen, ApiError> {
        match &self.0 {
            Kept::One(loading) => {
                let loading = Arc::clone(loading);
                Ok(Chosen { loading, lease: None, of_several: false })
            }
            Kept::Several(several) => {
                let (loading, lease) = several.choose(name).await?;
                Ok(Chosen { loading, lease: Some(lease), of_several: true })
            }
        }
    }

    /// Has a model loaded, or unloaded once its answers have ended; false where there is nothing to do.
    ///
    /// # Errors
    /// There is none of this name, or the server has one model, which stays.
    pub(crate) fn order(&self, name: &str, loaded: bool) -> Result<bool, ApiError> {
        match &self.0 {
            Kept::One(_) => {
                let message = "one model is served, from the start to the end of the server";
                Err(ApiError::new(Kind::NotSupported, message))
            }
            Kept::Several(several) => several.order(name, loaded),
        }
    }

    /// Why the server is not usable any more. Of several models one that broke is unloaded, and the next request loads
    /// it anew.
    pub(crate) fn broken(&self) -> Option<Failing> {
        match &self.0 {
            Kept::One(loading) => {
                let failing = loading.worker()?.status().failing?;
                [Failing::Broken, Failing::StageLost].into_iter().find(|it| *it == failing)
            }
            Kept::Several(several) => {
                several.drop_broken();
                None
            }
        }
    }
}

impl Chosen {
    /// The worker, or how far it is as an error.
    pub(crate) fn worker(&self) -> Result<&Arc<dyn Worker>, ApiError> {
        self.loading.worker().ok_or_else(|| not_loaded(self.loading.percent()))
    }
}

/// What is said before there is a worker.
pub(crate) fn not_loaded(percent: u32) -> ApiError {
    ApiError::new(Kind::Loading { percent }, format!("Loading model: {percent} %"))
}

/// What is said of a name that no model has.
fn unknown(names: impl Iterator<Item = String>) -> ApiError {
    let names: Vec<String> = names.map(|name| shown(&name).to_string()).collect();
    let message = format!("no model of this name is served; there are {}", names.join(", "));
    ApiError::new(Kind::NotFound, message).at("model")
}
