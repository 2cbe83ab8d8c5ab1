//! Pairs sorted by expert on the device against the same on the host: the lists are equal.

use super::*;
use crate::op::group;

pub(super) fn run(gpu: &mut Gpu, add: &mut dyn FnMut(Finding)) -> Result<(), GpuError> {
    for (pairs, experts, of_tile) in
        [(9, 16, 8), (1_023, 1_024, 64), (4_096, 256, 32), (2_600, 300, 8)]
    {
        let mut numbers = Numbers::new(61);
        let ids: Vec<u32> = (0..pairs).map(|_| (numbers.bits() % experts as u64) as u32).collect();
        let tiles = group::tiles(pairs, experts, of_tile);
        let (list, order) = (empty(gpu, 3 * tiles)?, empty(gpu, pairs)?);
        let chosen = words(gpu, &ids)?;
        group::launch(gpu, &chosen, (&list, &order), (pairs, experts), of_tile)?;
        let (expected_list, expected_order) = sorted(&ids, experts, of_tile, tiles);
        let equal = gpu.read_words(&list, 0, 3 * tiles)? == expected_list
            && gpu.read_words(&order, 0, pairs)? == expected_order;
        let name = format!("{pairs} pairs of {experts} experts in tiles of {of_tile}");
        add(Finding { name, difference: 0.0, bound: 0.0, alone_equal: equal });
    }
    Ok(())
}

/// Tiles (expert, first place, pairs; behind the last one zeros) and pairs by expert, ascending.
fn sorted(ids: &[u32], experts: usize, of_tile: u32, tiles: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut list, mut order) = (Vec::new(), Vec::new());
    for expert in 0..experts as u32 {
        let start = order.len() as u32;
        order.extend((0..ids.len() as u32).filter(|&pair| ids[pair as usize] == expert));
        let count = order.len() as u32 - start;
        for done in (0..count).step_by(of_tile as usize) {
            list.extend([expert, start + done, (count - done).min(of_tile)]);
        }
    }
    list.resize(3 * tiles, 0);
    (list, order)
}
