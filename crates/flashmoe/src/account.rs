//! The account after an answer: speed, hits, bytes read, and where the time went. All figures come from counters.

use std::ops::Range;
use std::time::Duration;

use engine::drafts::DraftCounters;
use engine::engine::Engine;
use engine::model::StageTimes;
use engine::session::AnswerReport;
use engine::stages::StageWork;
use store::cache::{DeviceCounters, PrefetchCounters, QueueCounters, StoreCounters};
use store::rows::RowCounters;

use crate::arguments::ByteSize;
use crate::phases::Phases;
use crate::plan::machine::{ProcessMemory, Swapping};

/// Counters at the start of an answer.
pub(crate) struct Account {
    before: StoreCounters,
    /// Of every stage that computes a range of layers.
    of_stages: Vec<StoreCounters>,
    /// What each of several stages had done.
    work: Vec<StageWork>,
    drafts: DraftCounters,
    stages: StageTimes,
    /// What the system moved in memory, where it says.
    swapping: Option<Swapping>,
}

impl Account {
    /// Remembers where the counters stand.
    pub(crate) fn start(engine: &Engine) -> Self {
        let (before, drafts) = (engine.counters(), engine.draft_counters());
        let of_stages = engine.stages().counters_by_stage().collect();
        let work = engine.stages().work_by_stage();
        let (stages, swapping) = (engine.stage_times(), Swapping::read());
        Self { before, of_stages, work, drafts, stages, swapping }
    }

    /// What was counted since.
    pub(crate) fn spent(&self, engine: &Engine) -> StoreCounters {
        engine.counters().since(&self.before)
    }

    /// What every stage found and read, where there are several.
    fn by_stage(&self, engine: &Engine) -> String {
        let stages = engine.stages();
        let spent = stages.counters_by_stage().zip(&self.of_stages).map(|(it, was)| it.since(was));
        let work = stages.work_by_stage();
        let waited = work.iter().zip(&self.work).map(|(it, was)| it.waited - was.waited);
        let each = stages.ranges().zip(spent).zip(waited);
        each.map(|((layers, spent), waited)| stage_line(&layers, &spent, waited)).collect()
    }

    /// What the answer cost: one line, one for each of several stages, and on the processor another on the time.
    pub(crate) fn lines(&self, engine: &Engine, report: &AnswerReport) -> String {
        let spent = self.spent(engine);
        let decode = &spent.decode;
        let hits = 100.0 * decode.hits as f64 / decode.requests.max(1) as f64;
        let prefill = rate(report.prompt_tokens, report.prefill_time);
        // The first token comes out of prefill.
        let decode_rate = rate(report.answer_tokens.saturating_sub(1), report.decode_time);
        let device = tiers(&spent);
        let prefetched = prefetched(&spent.device.prefetched);
        let queue = queue(&spent.device.queue);
        let rows = rows(&spent.rows);
        let drafts = drafts(&engine.draft_counters().since(&self.drafts));
        let stages = engine.stage_times().since(self.stages);
        let by_stage = self.by_stage(engine);
        let swapping = swapping(self.swapping, Swapping::read());
        // A GPU computes while the host submits: its time shows in no stage.
        let phases = match spent.device == DeviceCounters::default() {
            true => {
                let time = report.prefill_time + report.decode_time;
                format!("\ntime {}", Phases::of(&stages, &spent, time).line())
            }
            false => String::new(),
        };
        format!(
            "prefill {} tokens (+{} reused) at {prefill:.1} tok/s · decode {} tokens at \
             {decode_rate:.1} tok/s · expert hits {hits:.1} % of {}{device}{prefetched}{queue}{rows}{drafts} \
             · read {} · peak memory {}{swapping}{by_stage}{phases}",
            report.prompt_tokens,
            report.reused_tokens,
            report.answer_tokens,
            decode.requests,
            ByteSize(spent.bytes_read),
            ByteSize(ProcessMemory::read().peak),
        )
    }
}

/// The line of a stage: its layers, the hits of its share of memory, and how long it waited for its neighbours.
fn stage_line(layers: &Range<usize>, spent: &StoreCounters, waited: Duration) -> String {
    let decode = &spent.decode;
    let hits = 100.0 * decode.hits as f64 / decode.requests.max(1) as f64;
    let (first, last, asked) = (layers.start, layers.end - 1, decode.requests);
    let (read, tiers) = (ByteSize(spent.bytes_read), tiers(spent));
    let waited = waited.as_secs_f64();
    format!(
        "\nlayers {first} to {last}: expert hits {hits:.1} % of {asked}{tiers} · read {read} · waited for its \
         neighbours {waited:.2} s"
    )
}

/// Where steps on a GPU found records and what was moved for them, for the line; nothing where none ran.
fn tiers(spent: &StoreCounters) -> String {
    let device = &spent.device;
    if device.hits + device.over_bus == 0 {
        return String::new();
    }
    let share = |count: u64| 100.0 * count as f64 / spent.decode.requests.max(1) as f64;
    let grown = match device.given_up {
        0 => String::new(),
        count => format!(
            ", {count} gave way to keys and values ({}): {} slots",
            ByteSize(device.cache_bytes),
            device.slots
        ),
    };
    format!(
        " · in GPU memory {:.1} %, in RAM {:.1} %, {} copied to the GPU and {} back, {} in both{grown}",
        share(device.hits),
        share(spent.decode.hits.saturating_sub(device.hits)),
        device.copied,
        device.returned,
        device.in_both,
    )
}

/// What steps prefetched, for the line; nothing where they did not.
fn prefetched(counters: &PrefetchCounters) -> String {
    let &PrefetchCounters { guessed, right, bus_copied, bus_used, disk_read, disk_used } = counters;
    if *counters == PrefetchCounters::default() {
        return String::new();
    }
    let right = 100.0 * right as f64 / guessed.max(1) as f64;
    format!(
        " · prefetched {right:.1} % right, {bus_used} of {bus_copied} copies and {disk_used} of {disk_read} reads used"
    )
}

/// What was handed to a device and waited for, for the line; nothing where a backend does not count it.
fn queue(counters: &QueueCounters) -> String {
    let &QueueCounters { dispatches, ahead, submissions, waits, waited_us } = counters;
    if *counters == QueueCounters::default() {
        return String::new();
    }
    let waited = waited_us as f64 / 1e6;
    format!(
        " · {dispatches} dispatches ({ahead} recorded ahead) in {submissions} submissions, \
         {waits} waits ({waited:.2} s)"
    )
}

/// Rows of n-grams that were looked up, for the line; nothing where none were.
fn rows(counters: &RowCounters) -> String {
    let &RowCounters { asked, distinct, hits, reads, bytes_read, wait_us, .. } = counters;
    if asked == 0 {
        return String::new();
    }
    let (found, waited) = (100.0 * hits as f64 / distinct.max(1) as f64, wait_us as f64 / 1e6);
    format!(
        " · rows {distinct} of {asked} asked for, {found:.1} % cached, {} in {reads} reads, waited {waited:.2} s",
        ByteSize(bytes_read)
    )
}

/// What became of drafts, for the line; nothing where none were computed.
fn drafts(counters: &DraftCounters) -> String {
    let &DraftCounters { rounds, drafted, accepted, by_head } = counters;
    if *counters == DraftCounters::default() {
        return String::new();
    }
    let share = 100.0 * accepted as f64 / drafted.max(1) as f64;
    let head = match by_head.rounds {
        0 => String::new(),
        _ => format!(", the head's {} of {}", by_head.accepted, by_head.drafted),
    };
    format!(" · drafts {accepted} of {drafted} accepted ({share:.1} %) in {rounds} rounds{head}")
}

/// What the system moved in memory between two readings, for the line; nothing where it moved nothing or does not say.
fn swapping(before: Option<Swapping>, after: Option<Swapping>) -> String {
    let moved = before.zip(after).and_then(|(before, after)| after.since(before).line());
    moved.map(|moved| format!(" · memory {moved}")).unwrap_or_default()
}

/// Tokens per second; zero when nothing was done.
pub(crate) fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_said_where_a_device_found_anything() {
        let mut spent = StoreCounters::default();
        spent.decode.requests = 1000;
        spent.decode.hits = 950;
        assert_eq!(tiers(&spent), "");
        spent.device.hits = 800;
        spent.device.over_bus = 140;
        (spent.device.copied, spent.device.returned, spent.device.in_both) = (12, 11, 3);
        assert_eq!(
            tiers(&spent),
            " · in GPU memory 80.0 %, in RAM 15.0 %, 12 copied to the GPU and 11 back, 3 in both"
        );
        let line = stage_line(&(4..8), &spent, Duration::ZERO);
        assert!(line.starts_with("\nlayers 4 to 7: expert hits 95.0 % of 1000 · in GPU"), "{line}");
        (spent.device.given_up, spent.device.slots, spent.device.cache_bytes) = (24, 900, 40 << 20);
        let line = tiers(&spent);
        let grown = ", 3 in both, 24 gave way to keys and values (40.00 MiB): 900 slots";
        assert!(line.ends_with(grown), "{line}");
    }

    #[test]
    fn what_was_handed_to_a_device_is_said_where_it_is_counted() {
        assert_eq!(queue(&QueueCounters::default()), "");
        let counters = QueueCounters {
            dispatches: 900,
            ahead: 700,
            submissions: 12,
            waits: 3,
            waited_us: 1_230_000,
        };
        let line = queue(&counters);
        assert_eq!(
            line,
            " · 900 dispatches (700 recorded ahead) in 12 submissions, 3 waits (1.23 s)"
        );
    }

    #[test]
    fn rows_are_said_where_any_were_looked_up() {
        assert_eq!(rows(&RowCounters::default()), "");
        let counters = RowCounters {
            asked: 1600,
            distinct: 800,
            hits: 200,
            reads: 590,
            bytes_read: 4 << 20,
            wait_us: 20_000,
            ..RowCounters::default()
        };
        let line =
            " · rows 800 of 1600 asked for, 25.0 % cached, 4.00 MiB in 590 reads, waited 0.02 s";
        assert_eq!(rows(&counters), line);
    }

    #[test]
    fn swapping_is_said_where_there_was_any() {
        let before = Swapping { swapped_in: 1 << 20, ..Swapping::default() };
        assert_eq!(swapping(Some(before), Some(before)), "");
        assert_eq!(swapping(None, Some(before)), "");
        let after = Swapping { swapped_in: 3 << 20, compressed: 7 << 20, ..before };
        let line = swapping(Some(before), Some(after));
        assert_eq!(line, " · memory 2.00 MiB swapped in, 7.00 MiB compressed");
    }

    #[test]
    fn drafts_are_said_where_there_were_any() {
        assert_eq!(drafts(&DraftCounters::default()), "");
        use engine::drafts::HeadCounters;
        let none = HeadCounters::default();
        let mut counters = DraftCounters { rounds: 5, drafted: 32, accepted: 24, by_head: none };
        let line = " · drafts 24 of 32 accepted (75.0 %) in 5 rounds";
        assert_eq!(drafts(&counters), line);
        counters.by_head = HeadCounters { rounds: 3, drafted: 12, accepted: 8 };
        assert_eq!(drafts(&counters), format!("{line}, the head's 8 of 12"));
    }

    #[test]
    fn what_was_prefetched_is_said_where_anything_was() {
        assert_eq!(prefetched(&PrefetchCounters::default()), "");
        let counters = PrefetchCounters {
            guessed: 200,
            right: 161,
            bus_copied: 30,
            bus_used: 24,
            disk_read: 7,
            disk_used: 6,
        };
        let line = prefetched(&counters);
        assert_eq!(line, " · prefetched 80.5 % right, 24 of 30 copies and 6 of 7 reads used");
    }
}
