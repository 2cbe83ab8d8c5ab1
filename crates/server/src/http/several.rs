//! Several prompts of one request as one ticket: their jobs run one after another.
//!
//! One at a time, because a request is one client's and others wait their turn; what the prompts have in common is
//! computed once, as for any prompts that follow each other. A caller that wants them at once sends several requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::desk::Desk;
use crate::work::{Event, Job, JobError, Refusal, Ticket, Worker};

/// Events between the jobs and the stream: what a slow reader holds back is held by the job's own outbox.
const EVENTS: usize = 16;
/// Pause before a job is offered again to a queue that was full.
const AGAIN: Duration = Duration::from_millis(100);

/// The events of `first`, then those of the jobs in `rest`; each end but the last becomes [`Event::Next`].
pub(super) fn one_after_another(
    worker: Arc<dyn Worker>,
    aside: Arc<Desk>,
    first: Ticket,
    rest: Vec<Job>,
) -> Ticket {
    if rest.is_empty() {
        return first;
    }
    let (sender, events) = mpsc::channel(EVENTS);
    tokio::spawn(async move {
        let mut ticket = first;
        let mut rest = rest.into_iter();
        loop {
            let mut next = rest.next();
            let last = next.is_none();
            if !forward(&mut ticket, &sender, last).await {
                return;
            }
            let Some(job) = next.take() else { return };
            let submitted = tokio::select! {
                biased;
                () = sender.closed() => return,
                submitted = submit(&worker, &aside, job) => submitted,
            };
            ticket = match submitted {
                Ok(ticket) => ticket,
                Err(error) => {
                    let _gone = sender.send(Event::Failed(error)).await;
                    return;
                }
            };
        }
    });
    Ticket { events }
}

/// Passes on the events of one job; true when it is complete and the next may follow.
async fn forward(ticket: &mut Ticket, sender: &mpsc::Sender<Event>, last: bool) -> bool {
    loop {
        let event = tokio::select! {
            biased;
            () = sender.closed() => return false,
            event = ticket.events.recv() => event,
        };
        let Some(event) = event else { return false };
        let (event, over) = match event {
            Event::Finished(finish) if !last => (Event::Next(finish), true),
            other => (other, false),
        };
        if sender.send(event).await.is_err() || over {
            return over;
        }
    }
}

/// Submits a job, again and again while the queue is full.
async fn submit(worker: &Arc<dyn Worker>, aside: &Desk, job: Job) -> Result<Ticket, JobError> {
    loop {
        let (worker, job) = (Arc::clone(worker), job.clone());
        // Limits of the answer are checked, which takes a moment.
        let submitted = aside.run(move || worker.submit(job)).await;
        match submitted {
            Ok(Ok(ticket)) => return Ok(ticket),
            Ok(Err(Refusal::QueueFull { .. })) => tokio::time::sleep(AGAIN).await,
            Ok(Err(Refusal::ShuttingDown)) => return Err(JobError::ShuttingDown),
            Ok(Err(other)) => {
                return Err(JobError::Request { field: "prompt", problem: other.to_string() });
            }
            Err(_) => return Err(JobError::Engine("the prompt could not be queued".to_owned())),
        }
    }
}
