//! How long each kernel ran, by the device's own clock: every dispatch in a pass of its own, between two time stamps.

use crate::op::Op;
use crate::{Gpu, GpuError};

/// Time stamps of a profile: what a set of queries holds.
const QUERIES: u32 = 4096;

/// A dispatch that was timed.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The kernel.
    pub op: Op,
    /// Its workgroups.
    pub groups: [u32; 3],
    /// Nanoseconds from the first dispatch of the profile to the begin of this one.
    pub start: f64,
    /// Nanoseconds that it took.
    pub nanoseconds: f64,
}

/// A profile in the making.
pub(crate) struct Profile {
    queries: wgpu::QuerySet,
    dispatches: Vec<(Op, [u32; 3])>,
    timed: u32,
}

impl Profile {
    /// The next dispatch is this one.
    pub(crate) fn note(&mut self, op: Op, groups: [u32; 3]) {
        if self.dispatches.len() < (QUERIES / 2) as usize {
            self.dispatches.push((op, groups));
        }
    }

    /// The queries of a dispatch that was noted, and the first of its two.
    pub(crate) fn next(&mut self) -> Option<(wgpu::QuerySet, u32)> {
        let timed = self.timed;
        if timed as usize >= self.dispatches.len() {
            return None;
        }
        self.timed += 1;
        Some((self.queries.clone(), 2 * timed))
    }
}

impl Gpu {
    /// Begins to time every dispatch, up to 2,048; false where the adapter has no time stamps.
    pub fn begin_profile(&mut self) -> bool {
        self.forget_steps();
        let timestamps = self.adapter().timestamps;
        self.profile = timestamps.then(|| Profile {
            queries: self.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: QUERIES,
            }),
            dispatches: Vec::new(),
            timed: 0,
        });
        timestamps
    }

    /// Ends the profile; its dispatches in their order. Waits for all work.
    ///
    /// # Errors
    /// The device failed.
    pub fn end_profile(&mut self) -> Result<Vec<Timing>, GpuError> {
        let Some(profile) = self.profile.take() else { return Ok(Vec::new()) };
        if profile.timed == 0 {
            return Ok(Vec::new());
        }
        self.submit()?;
        let stamps = 2 * profile.timed;
        let resolved = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("time stamps"),
            size: 8 * u64::from(stamps),
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let landed = self.buffer("time stamps", 8 * u64::from(stamps))?;
        let encoder = self.encoder();
        encoder.resolve_query_set(&profile.queries, 0..stamps, &resolved, 0);
        encoder.copy_buffer_to_buffer(&resolved, 0, &landed.raw, 0, 8 * u64::from(stamps));
        let bytes = self.read(&[(&landed, 0, 8 * u64::from(stamps))])?;
        let ticks: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|it| u64::from_le_bytes(*it)).collect();
        let period = f64::from(self.queue.get_timestamp_period());
        let first = ticks[0];
        let nanoseconds = |from: u64, to: u64| to.saturating_sub(from) as f64 * period;
        let timed = profile.dispatches.into_iter().zip(ticks.as_chunks::<2>().0);
        let timing = |((op, groups), [start, end]): ((Op, [u32; 3]), &[u64; 2])| Timing {
            op,
            groups,
            start: nanoseconds(first, *start),
            nanoseconds: nanoseconds(*start, *end),
        };
        Ok(timed.map(timing).collect())
    }
}
