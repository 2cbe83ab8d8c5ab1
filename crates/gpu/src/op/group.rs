//! Pairs of tokens and experts by expert, on the device: where every record has a slot, a prompt's mixture needs no
//! host.
//!
//! One workgroup counts the pairs of each expert, gives each a run of places in their order, and parts the runs into
//! tiles. Within a run pairs lie in any order, which shows in no bit: each has a row of its own.

use super::Op;
use super::router::EXPERTS_LIMIT;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Experts of an invocation.
const EACH: usize = EXPERTS_LIMIT / 256;

pub(crate) fn source() -> (Source, String) {
    let source = Source::new()
        .read("ids", "u32")
        .write("tiles", "u32")
        .write("order", "u32")
        .parameters(&["pairs", "experts", "of_tile", "tiles_most"])
        .shared("places", &format!("array<atomic<u32>, {EXPERTS_LIMIT}>"))
        .shared("before", "array<vec2<u32>, 256>");
    let body = format!(
        "for (var e = lid; e < p.experts; e = e + 256u) {{ atomicStore(&places[e], 0u); }}
        workgroupBarrier();
        for (var pair = lid; pair < p.pairs; pair = pair + 256u) {{ atomicAdd(&places[ids[pair]], 1u); }}
        workgroupBarrier();
        // Pairs and tiles of this invocation's experts, then of all before them too.
        let first = lid * {EACH}u;
        let behind = min(first + {EACH}u, p.experts);
        var own = vec2<u32>(0u);
        for (var e = first; e < behind; e = e + 1u) {{
            let count = atomicLoad(&places[e]);
            own = own + vec2<u32>(count, (count + p.of_tile - 1u) / p.of_tile);
        }}
        before[lid] = own;
        workgroupBarrier();
        for (var step = 1u; step < 256u; step = step << 1u) {{
            var sum = before[lid];
            if lid >= step {{ sum = sum + before[lid - step]; }}
            workgroupBarrier();
            before[lid] = sum;
            workgroupBarrier();
        }}
        var at = before[lid] - own;
        for (var e = first; e < behind; e = e + 1u) {{
            let count = atomicLoad(&places[e]);
            atomicStore(&places[e], at.x);
            for (var done = 0u; done < count; done = done + p.of_tile) {{
                tiles[at.y * 3u] = e;
                tiles[at.y * 3u + 1u] = at.x + done;
                tiles[at.y * 3u + 2u] = min(count - done, p.of_tile);
                at.y = at.y + 1u;
            }}
            at.x = at.x + count;
        }}
        for (var tile = before[255].y + lid; tile < p.tiles_most; tile = tile + 256u) {{
            tiles[tile * 3u] = 0u;
            tiles[tile * 3u + 1u] = 0u;
            tiles[tile * 3u + 2u] = 0u;
        }}
        workgroupBarrier();
        for (var pair = lid; pair < p.pairs; pair = pair + 256u) {{
            order[atomicAdd(&places[ids[pair]], 1u)] = pair;
        }}
        "
    );
    (source, body)
}

/// Most tiles of so many pairs.
pub fn tiles(pairs: usize, experts: usize, of_tile: u32) -> usize {
    (pairs / of_tile as usize + experts).min(pairs)
}

/// Sorts the pairs `ids[pairs]` by expert into `order` and writes [`tiles`] tiles of up to `of_tile` pairs, the last
/// perhaps empty ([`super::experts::Work`]).
///
/// # Errors
/// The device failed.
pub fn launch(
    gpu: &mut Gpu,
    ids: &Buffer,
    (list, order): (&Buffer, &Buffer),
    (pairs, experts): (usize, usize),
    of_tile: u32,
) -> Result<(), GpuError> {
    assert!(experts <= EXPERTS_LIMIT, "{experts} experts");
    let most = tiles(pairs, experts, of_tile) as u32;
    let spans = [ids.all(), list.all(), order.all()];
    gpu.dispatch(Op::Group, &spans, &[pairs as u32, experts as u32, of_tile, most], [1, 1, 1])
}
