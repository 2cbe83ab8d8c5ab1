//! The two bandwidths that bound a GPU's step, measured on the spot: its memory, and the bus from pinned memory.

use std::time::Instant;

use cuda::{CudaError, Device, DeviceBuffer, PinnedBuffer, Stream};

use crate::EngineError;

/// Bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidths {
    /// Device memory: bytes read and written by a large copy within it.
    pub memory: f64,
    /// From pinned host memory to the device.
    pub bus: f64,
}

/// Size of a copy; well past every cache.
const COPY_BYTES: usize = 512 << 20;
/// Size of a copy over the bus.
const BUS_BYTES: usize = 128 << 20;
/// Copies timed together.
const ROUNDS: usize = 8;

/// Measures a device; takes about a tenth of a second and a gigabyte of its memory.
///
/// # Errors
/// A device that cannot be used, or without that much free memory.
pub fn bandwidths(ordinal: usize) -> Result<Bandwidths, EngineError> {
    let device = Device::open(ordinal)?;
    let stream = Stream::new(&device)?;
    let (from, to) =
        (DeviceBuffer::new(&device, COPY_BYTES)?, DeviceBuffer::new(&device, COPY_BYTES)?);
    let pinned = PinnedBuffer::<u8>::new(&device, BUS_BYTES)?;
    let timed = |copy: &dyn Fn() -> Result<(), CudaError>| -> Result<f64, CudaError> {
        copy()?;
        stream.wait()?;
        let started = Instant::now();
        (0..ROUNDS).try_for_each(|_| copy())?;
        stream.wait()?;
        Ok(started.elapsed().as_secs_f64() / ROUNDS as f64)
    };
    let inside =
        timed(&|| stream.copy(from.span::<u8>(0, COPY_BYTES), to.span::<u8>(0, COPY_BYTES)))?;
    let over = timed(&|| stream.copy(pinned.all(), to.span::<u8>(0, BUS_BYTES)))?;
    Ok(Bandwidths { memory: 2.0 * COPY_BYTES as f64 / inside, bus: BUS_BYTES as f64 / over })
}
