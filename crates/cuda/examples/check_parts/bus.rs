//! How fast the experts of a step are read over the bus, beside what copies of the same records take.

use cuda::{CudaError, DeviceBuffer, PinnedBuffer, Span};

use super::{Bench, Shape};

impl Bench {
    /// Both halves of the experts with one, two and all records in host memory, beside what a copy of them takes.
    pub(super) fn over_the_bus(
        &self,
        name: &str,
        (hidden, inner, k, ..): Shape,
        experts: &dyn Fn(usize, Span<u64>) -> Result<(), CudaError>,
    ) {
        let bytes = 3 * hidden * inner * 9 / 16;
        let record = bytes.next_multiple_of(4096);
        let host = PinnedBuffer::<u8>::new(&self.device, 4 * k * record).unwrap();
        let device = DeviceBuffer::new(&self.device, 4 * k * record).unwrap();
        for count in [1, 2, k] {
            let addresses: Vec<_> = (0..4)
                .map(|turn| {
                    let place = |i: usize| (turn * k + i) * record;
                    let host = (0..count).map(|i| host.span(place(i), bytes).address());
                    let rest = (count..k).map(|i| device.span::<u8>(place(i), bytes).address());
                    self.long_words(&host.chain(rest).collect::<Vec<_>>())
                })
                .collect();
            let time = self.time(40, &|turn| experts(turn, addresses[turn % 4]));
            let copies = self.time(40 * count, &|turn| {
                let place = turn % (4 * count) * record;
                self.stream.copy(host.span(place, bytes), device.span(place, bytes))
            });
            let rate = |time: f64| (count * bytes) as f64 / time / 1e3;
            println!(
                "{name:>5} experts, {count} of {k} over the bus {:8.2} MB {time:8.2} us {:6.1} GB/s, \
                 copied {:6.1} GB/s",
                (count * bytes) as f64 / 1e6,
                rate(time),
                rate(copies * count as f64),
            );
        }
    }
}
