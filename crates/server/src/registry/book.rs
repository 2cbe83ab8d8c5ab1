//! What is loaded, what is wanted and who has to go: decisions, without threads and clocks.
//!
//! A model is wanted while a request waits for it. The first that is wanted is loaded as soon as it fits. Where it does
//! not, others have to leave: the idle ones first, among them the one that was used longest ago. A model that leaves
//! takes no new requests; it is unloaded when its last answer has ended, and stays after all when no request waits
//! for its room any more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::Offer;
use crate::work::{Loading, Worker};

/// Memory of a model, or for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of RAM.
    pub memory: u64,
    /// Bytes of a GPU's memory.
    pub vram: u64,
}

impl Footprint {
    fn plus(self, other: Self) -> Self {
        let memory = self.memory.saturating_add(other.memory);
        Self { memory, vram: self.vram.saturating_add(other.vram) }
    }

    fn is_within(self, budget: Self) -> bool {
        self.memory <= budget.memory && self.vram <= budget.vram
    }
}

/// Where a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// On disk.
    Unloaded,
    /// Its weights are being read.
    Loading,
    /// It answers.
    Loaded,
    /// It finishes its answers and is then unloaded; `asked` and not for others' room.
    Leaving { asked: bool },
}

impl State {
    /// The state as clients read it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Leaving { .. } => "unloading",
        }
    }
}

/// What became of a model so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) loads: u64,
    pub(crate) unloads: u64,
    pub(crate) failures: u64,
}

/// One model.
pub(super) struct Place {
    pub(super) offer: Offer,
    /// What is seen of it; a new one after it was unloaded.
    pub(super) loading: Arc<Loading>,
    pub(super) state: State,
    /// Requests that use it.
    leases: usize,
    /// Requests that wait for it.
    pub(super) waiting: usize,
    /// It is to be loaded although no request waits.
    ordered: bool,
    /// When it was used last, in uses of all models.
    used: u64,
    /// When it could not be loaded, or broke; forgotten when it is loaded.
    pub(super) failed: Option<Instant>,
    pub(super) counts: Counts,
}

/// What the thread that loads has to do.
pub(super) enum Task {
    Load(usize, Arc<Loading>),
    Unload(usize, Arc<Loading>),
}

/// All models.
pub(super) struct Book {
    pub(super) places: Vec<Place>,
    budget: Footprint,
    loaded_max: usize,
    /// Models that were asked for, in that order.
    wanted: VecDeque<usize>,
    uses: u64,
}

impl Book {
    pub(super) fn new(offers: Vec<Offer>, budget: Footprint, loaded_max: usize) -> Self {
        let places = offers.into_iter().map(|offer| Place {
            loading: Arc::new(Loading::new(offer.card.clone())),
            offer,
            state: State::Unloaded,
            leases: 0,
            waiting: 0,
            ordered: false,
            used: 0,
            failed: None,
            counts: Counts::default(),
        });
        let (places, wanted) = (places.collect(), VecDeque::new());
        Self { places, budget, loaded_max: loaded_max.max(1), wanted, uses: 0 }
    }

    /// The model that was used last, else the first.
    pub(super) fn current(&self) -> usize {
        let there = |place: &Place| place.loading.worker().is_some();
        let used = self.places.iter().enumerate().filter(|(_, place)| there(place));
        used.max_by_key(|(_, place)| place.used).map_or(0, |(index, _)| index)
    }

    /// Lets a request to a model, if that takes requests.
    pub(super) fn lease(&mut self, index: usize) -> Option<Arc<Loading>> {
        let place = &mut self.places[index];
        if place.state != State::Loaded {
            return None;
        }
        place.leases += 1;
        self.uses += 1;
        place.used = self.uses;
        Some(Arc::clone(&place.loading))
    }

    pub(super) fn give_back(&mut self, index: usize) {
        self.places[index].leases -= 1;
    }

    /// Puts a model into the line of those that are to be loaded.
    pub(super) fn want(&mut self, index: usize) {
        if !self.wanted.contains(&index) {
            self.wanted.push_back(index);
        }
    }

    /// Has a model loaded although no request waits; false where it is there or on its way.
    pub(super) fn order(&mut self, index: usize) -> bool {
        let place = &mut self.places[index];
        if matches!(place.state, State::Loaded | State::Loading) {
            return false;
        }
        place.ordered = true;
        place.failed = None;
        self.want(index);
        true
    }

    /// Has a model unloaded once its answers have ended; false where it is not loaded.
    pub(super) fn dismiss(&mut self, index: usize) -> bool {
        let place = &mut self.places[index];
        place.ordered = false;
        if !matches!(place.state, State::Loaded | State::Leaving { .. }) {
            return false;
        }
        place.state = State::Leaving { asked: true };
        true
    }

    /// The next thing to do, and whether a model takes requests again that did not; `None` while there is nothing to do
    /// but to wait for answers or requests.
    pub(super) fn next(&mut self) -> (Option<Task>, bool) {
        let places = &self.places;
        self.wanted.retain(|&index| {
            let place = &places[index];
            let gone = place.waiting == 0 && !place.ordered;
            !gone && !matches!(place.state, State::Loaded | State::Loading)
        });
        let unloaded = |&index: &usize| self.places[index].state == State::Unloaded;
        let first = self.wanted.iter().copied().find(unloaded);
        let fits = first.is_some_and(|first| self.fits_with(first, &self.loaded()));
        let leaving = match first {
            Some(first) if !fits => self.victims(first),
            _ => Vec::new(),
        };
        let stays = self.keep_only(&leaving);
        let empty =
            |place: &Place| matches!(place.state, State::Leaving { .. }) && place.leases == 0;
        if let Some(index) = self.places.iter().position(empty) {
            return (Some(Task::Unload(index, Arc::clone(&self.places[index].loading))), stays);
        }
        let Some(first) = first.filter(|_| fits) else { return (None, stays) };
        let place = &mut self.places[first];
        place.state = State::Loading;
        (Some(Task::Load(first, Arc::clone(&place.loading))), stays)
    }

    /// Lets models leave for others' room, and those that had to and are not among them stay; whether one does.
    fn keep_only(&mut self, leaving: &[usize]) -> bool {
        let mut stays = false;
        for (index, place) in self.places.iter_mut().enumerate() {
            match place.state {
                State::Loaded if leaving.contains(&index) => {
                    place.state = State::Leaving { asked: false };
                }
                State::Leaving { asked: false } if !leaving.contains(&index) => {
                    place.state = State::Loaded;
                    stays = true;
                }
                _ => {}
            }
        }
        stays
    }

    /// Models that take memory.
    fn loaded(&self) -> Vec<usize> {
        let all = 0..self.places.len();
        all.filter(|&index| self.places[index].state != State::Unloaded).collect()
    }

    /// Whether a model fits next to others. Alone it does: that was planned.
    fn fits_with(&self, index: usize, others: &[usize]) -> bool {
        let sum = others.iter().chain([&index]).map(|&it| self.places[it].offer.footprint);
        let sum = sum.fold(Footprint::default(), Footprint::plus);
        others.is_empty() || others.len() < self.loaded_max && sum.is_within(self.budget)
    }

    /// The models that have to leave so that one fits: idle ones first, then the one used longest ago. One that has
    /// just been loaded for requests that wait serves them first.
    fn victims(&self, wanted: usize) -> Vec<usize> {
        let mut staying = self.loaded();
        let mut candidates: Vec<usize> = staying.clone();
        candidates.retain(|&index| match self.places[index].state {
            State::Loaded => self.places[index].waiting == 0,
            State::Leaving { .. } => true,
            State::Unloaded | State::Loading => false,
        });
        candidates.sort_by_key(|&index| {
            let place = &self.places[index];
            let asked = place.state == State::Leaving { asked: true };
            (!asked, place.leases > 0, place.used)
        });
        let mut victims = Vec::new();
        for candidate in candidates {
            staying.retain(|&index| index != candidate);
            victims.push(candidate);
            if self.fits_with(wanted, &staying) {
                return victims;
            }
        }
        // All that may leave are not enough yet: none has to.
        Vec::new()
    }

    /// Notes the end of loading a model.
    pub(super) fn loaded_with(
        &mut self,
        index: usize,
        result: Option<Arc<dyn Worker>>,
        now: Instant,
    ) {
        self.uses += 1;
        let place = &mut self.places[index];
        place.ordered = false;
        match result {
            Some(worker) => {
                place.loading.finish(worker);
                place.state = State::Loaded;
                place.used = self.uses;
                place.failed = None;
                place.counts.loads += 1;
            }
            None => {
                // Those who wait get the error and do not cause another attempt.
                self.wanted.retain(|&wanted| wanted != index);
                place.state = State::Unloaded;
                place.failed = Some(now);
                place.counts.failures += 1;
                // Progress begins anew.
                place.loading = Arc::new(Loading::new(place.offer.card.clone()));
            }
        }
    }

    /// Notes that a model is not loaded any more.
    pub(super) fn unloaded(&mut self, index: usize) {
        let place = &mut self.places[index];
        place.state = State::Unloaded;
        place.loading = Arc::new(Loading::new(place.offer.card.clone()));
        place.counts.unloads += 1;
    }
}
