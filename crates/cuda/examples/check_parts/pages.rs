//! Memory that moves between buffers in pages: a part of the example `check`.

use cuda::{DeviceBuffer, DevicePage, PAGE_BYTES};

use super::Bench;

impl Bench {
    /// Pages keep their bytes when they move, addresses stay, and copies cross the borders of pages.
    pub(super) fn pages(&self) {
        if !self.device.info().pages {
            println!("pages: not on this device");
            return;
        }
        let free = self.device.free_bytes().unwrap();
        let pages = (0..5).map(|_| DevicePage::new(&self.device).unwrap());
        let mut pages: Vec<DevicePage> = pages.collect();
        let reserve = |solid: usize| DeviceBuffer::reserve(&self.device, 4 * PAGE_BYTES, solid);
        let (mut first, mut second) = (reserve(PAGE_BYTES).unwrap(), reserve(0).unwrap());
        first.map(0, pages.split_off(2)).unwrap();
        second.map(1, pages).unwrap();
        // From the solid part into the first page.
        let bytes: Vec<u8> = (0..PAGE_BYTES).map(|i| (i * 7 + i / 4096) as u8).collect();
        first.write(PAGE_BYTES / 2, &bytes).unwrap();
        let (from, to) = (PAGE_BYTES / 2, PAGE_BYTES + 64);
        let spans = (first.span::<u8>(from, PAGE_BYTES), second.span(to, PAGE_BYTES));
        self.stream.copy(spans.0, spans.1).unwrap();
        self.stream.wait().unwrap();
        let mut back = vec![0; PAGE_BYTES];
        second.read_bytes(to, &mut back).unwrap();
        let copied = back == bytes;
        // The second buffer's last mapped page becomes the first of its own.
        let page = second.unmap(2).unwrap();
        second.map(0, vec![page]).unwrap();
        let mut moved = vec![0; 64];
        second.read_bytes(0, &mut moved).unwrap();
        let kept = moved == bytes[PAGE_BYTES - 64..];
        let refused = second.read_bytes(2 * PAGE_BYTES, &mut moved).is_err();
        let taken = free - self.device.free_bytes().unwrap();
        drop(second.unmap(0).unwrap());
        let given = free - self.device.free_bytes().unwrap();
        let [taken, given] = [taken, given].map(|bytes| bytes / PAGE_BYTES as u64);
        let right = copied && kept && refused && taken - given == 1;
        println!("pages: {taken} taken, {given} left, {}", if right { "right" } else { "FAILED" });
        self.failed.set(self.failed.get() || !right);
    }
}
