//! Whether a GPU of any maker computes right here: its checks in processes of their own, and what came of them, kept
//! per adapter, driver and build. `doctor` prints it, `--device auto` goes by it.

mod child;
mod verdict;

use std::time::Duration;

use engine::backend::gpu::{Adapter, Kind, bandwidths, check};

pub(crate) use child::{Ended, HOLDS, WRONG, listen, own_program, reason, run_group};
pub(crate) use verdict::{Verdict, Verdicts};

/// How long the short form may take before it counts as failed, which is kept: it begins no check after a second and a
/// half, but other programs may have the processor (30 s were too few on two cores with twelve compilers).
pub(crate) const SHORT_LIMIT: Duration = Duration::from_secs(120);
/// How long a group may take.
pub(crate) const GROUP_LIMIT: Duration = Duration::from_secs(600);

/// Runs the short form in a process of its own and keeps what came of it.
pub(crate) fn short(adapter: &Adapter) -> Verdict {
    let group = run_group(adapter.index, check::SHORT, SHORT_LIMIT, &mut |_| {});
    let mut verdict = Verdict::of(&[(check::SHORT, group)]);
    verdict.slow = slower(adapter, &verdict);
    // Without a folder to keep it in, the next start checks again.
    let _ = Verdicts::keep(adapter, &verdict);
    verdict
}

/// Why the processor computes in spite of a good verdict: of chips that have both and that Vulkan reaches, some have a
/// GPU that reads memory more slowly than the processor. Cards have a memory of their own; Apple's chips are not among
/// them.
pub(crate) fn slower(adapter: &Adapter, verdict: &Verdict) -> Option<String> {
    let asked = adapter.kind != Kind::Discrete && !adapter.is_metal() && !Hook::Software.is_set();
    if !asked || !verdict.holds {
        return None;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let processor = kernels::probe::read_bandwidth(threads);
    let found = match bandwidths(adapter, false) {
        Ok(found) => found.memory,
        Err(error) => return Some(format!("its speed cannot be measured: {error}")),
    };
    (found < processor).then(|| {
        let [found, processor] = [found, processor].map(|speed| speed / 1e9);
        format!("it reads memory at {found:.1} GB/s, the processor at {processor:.1}")
    })
}

/// What tests ask of a check, by the variable `FLASHMOE_TEST_GPU`: words between commas. Users have no use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// GPUs are looked for, even where the system shows no hardware of that kind.
    Look,
    /// A driver that computes on the processor counts as a GPU.
    Software,
    /// A check is wrong.
    Wrong,
    /// The process that checks ends as by a driver that crashes.
    Crash,
}

impl Hook {
    /// Whether a test asks for it.
    pub(crate) fn is_set(self) -> bool {
        let word = match self {
            Self::Look => "look",
            Self::Software => "software",
            Self::Wrong => "wrong",
            Self::Crash => "crash",
        };
        let words = std::env::var("FLASHMOE_TEST_GPU").unwrap_or_default();
        words.split(',').any(|found| found == word)
    }
}
