//! The pread pool: as many threads as reads in flight, each doing positional reads.
//!
//! With megabyte records it moves as many bytes as io_uring and costs a few percent of a core more
//! (docs/experiments.tsv); it runs everywhere, also where containers forbid io_uring.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::schedule::ask_for_short_slices;
use super::{CompletionSink, FileSet, Outcome, ReadRequest, RequestQueue, Storage};
use crate::arena::SlotArena;

/// A pool of reading threads.
pub struct PreadPool {
    queue: Arc<RequestQueue>,
    queue_depth: usize,
    threads: Vec<JoinHandle<()>>,
}

impl PreadPool {
    /// A pool that will keep up to `queue_depth` reads in flight.
    pub fn new(queue_depth: usize) -> Self {
        let queue = Arc::new(RequestQueue::default());
        Self { queue, queue_depth: queue_depth.max(1), threads: Vec::new() }
    }
}

impl Storage for PreadPool {
    fn start(
        &mut self,
        files: Arc<FileSet>,
        _arenas: &[Arc<SlotArena>],
        sink: Arc<dyn CompletionSink>,
    ) -> io::Result<()> {
        for index in 0..self.queue_depth {
            let (queue, files, sink) =
                (Arc::clone(&self.queue), Arc::clone(&files), Arc::clone(&sink));
            let builder = std::thread::Builder::new().name(format!("store-read-{index}"));
            self.threads.push(builder.spawn(move || work(&queue, &files, sink.as_ref()))?);
        }
        Ok(())
    }

    fn submit(&self, requests: &mut Vec<ReadRequest>) {
        self.queue.push(requests);
    }

    fn promote(&self, tag: u32) {
        self.queue.promote(tag);
    }

    fn withdraw(&self, unwanted: &mut dyn FnMut(u32) -> bool, withdrawn: &mut Vec<ReadRequest>) {
        self.queue.withdraw(unwanted, withdrawn);
    }

    fn name(&self) -> &'static str {
        "pread"
    }

    fn stop(&mut self) {
        self.queue.stop();
        for thread in self.threads.drain(..) {
            // A reading thread that panicked has already reported itself; there is nothing to save.
            let _ = thread.join();
        }
    }
}

impl Drop for PreadPool {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work(queue: &RequestQueue, files: &FileSet, sink: &dyn CompletionSink) {
    ask_for_short_slices();
    while let Some(mut request) = queue.pop() {
        let outcome = files.read(request.file, request.offset, &mut request.target);
        if let Outcome::Read(bytes) = outcome {
            files.after_read(request.file, request.offset, bytes as u64);
        }
        if let Some(again) = sink.complete(request, outcome) {
            queue.push_front(again);
        }
    }
}
