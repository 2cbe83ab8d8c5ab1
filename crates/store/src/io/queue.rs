//! The waiting requests of an engine: demand before read-ahead, each in order of need.
//!
//! Engines keep few reads in flight (queue depth) because more only multiplies latency, so nearly
//! everything a prefill asks for waits here, where it can still be overtaken or dropped.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{Priority, ReadRequest};

/// Room made at start, so that waiting requests do not allocate: two layers of 512 experts.
const EXPECTED_WAITING: usize = 1024;

/// A queue with two priorities that any number of threads feed and drain.
pub struct RequestQueue {
    lanes: Mutex<Lanes>,
    arrived: Condvar,
}

struct Lanes {
    demand: VecDeque<ReadRequest>,
    ahead: VecDeque<ReadRequest>,
    stopped: bool,
}

impl Default for RequestQueue {
    fn default() -> Self {
        let lanes = Lanes {
            demand: VecDeque::with_capacity(EXPECTED_WAITING),
            ahead: VecDeque::with_capacity(EXPECTED_WAITING),
            stopped: false,
        };
        Self { lanes: Mutex::new(lanes), arrived: Condvar::new() }
    }
}

impl RequestQueue {
    /// A panic under this lock leaves whole lists: requests are moved by single operations, and the one foreign
    /// function that is called under it ([`withdraw`](Self::withdraw)) is called while every request is in its list.
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds requests behind those of their priority.
    pub fn push(&self, requests: &mut Vec<ReadRequest>) {
        let count = requests.len();
        let mut lanes = self.lock();
        for request in requests.drain(..) {
            lanes.lane(request.priority).push_back(request);
        }
        drop(lanes);
        for _ in 0..count {
            self.arrived.notify_one();
        }
    }

    /// Puts a request that is to be continued before all others of its priority.
    pub fn push_front(&self, request: ReadRequest) {
        self.lock().lane(request.priority).push_front(request);
        self.arrived.notify_one();
    }

    /// The next request, if one waits.
    pub fn try_pop(&self) -> Option<ReadRequest> {
        self.lock().pop()
    }

    /// The next request; sleeps until there is one. `None` once the queue is stopped.
    pub fn pop(&self) -> Option<ReadRequest> {
        let mut lanes = self.lock();
        loop {
            if lanes.stopped {
                return None;
            }
            if let Some(request) = lanes.pop() {
                return Some(request);
            }
            lanes = self.arrived.wait(lanes).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Moves waiting read-ahead of `tag` to the end of the demand lane.
    pub fn promote(&self, tag: u32) {
        let mut lanes = self.lock();
        let mut index = 0;
        while index < lanes.ahead.len() {
            if lanes.ahead[index].tag != tag {
                index += 1;
            } else if let Some(mut request) = lanes.ahead.remove(index) {
                request.priority = Priority::Demand;
                lanes.demand.push_back(request);
            }
        }
    }

    /// Moves what waits and is `unwanted`, by tag, to `withdrawn`; the others keep their order.
    pub fn withdraw(
        &self,
        unwanted: &mut dyn FnMut(u32) -> bool,
        withdrawn: &mut Vec<ReadRequest>,
    ) {
        let mut lanes = self.lock();
        for priority in [Priority::Demand, Priority::Ahead] {
            let lane = lanes.lane(priority);
            for _ in 0..lane.len() {
                let Some(tag) = lane.front().map(|request| request.tag) else { break };
                if unwanted(tag) {
                    withdrawn.extend(lane.pop_front());
                } else {
                    lane.rotate_left(1);
                }
            }
        }
    }

    /// Ends all waiting and drops what waits.
    pub fn stop(&self) {
        let mut lanes = self.lock();
        lanes.stopped = true;
        lanes.demand.clear();
        lanes.ahead.clear();
        drop(lanes);
        self.arrived.notify_all();
    }

    /// True after [`stop`](Self::stop).
    pub fn stopped(&self) -> bool {
        self.lock().stopped
    }
}

impl Lanes {
    fn lane(&mut self, priority: Priority) -> &mut VecDeque<ReadRequest> {
        match priority {
            Priority::Demand => &mut self.demand,
            Priority::Ahead => &mut self.ahead,
        }
    }

    fn pop(&mut self) -> Option<ReadRequest> {
        self.demand.pop_front().or_else(|| self.ahead.pop_front())
    }
}
