//! Pairs of tokens and experts by expert, on the device: where every record has a slot, a prompt's mixture needs no
//! host.
//!
//! One workgroup counts the pairs of each expert, gives each a run of places in their order, and parts the runs into
//! tiles. Counts are added up by atomics, which shows in no count; a pair's place is its expert's next one and the
//! number of that expert's pairs before it among 256. So a run's pairs are in ascending order, without operations whose
//! order the device chooses. (Each expert's invocation looking at all pairs took 519 us for 2,048 tokens on an H200.)

use super::Op;
use super::router::EXPERTS_LIMIT;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

pub(crate) fn source() -> (Source, String) {
    let source = Source::new()
        .read("ids", "u32")
        .write("tiles", "u32")
        .write("order", "u32")
        .parameters(&["pairs", "experts", "of_tile", "tiles_most"])
        .shared("staged", "array<vec4<u32>, 64>")
        .shared("places", &format!("array<atomic<u32>, {EXPERTS_LIMIT}>"))
        .shared("before", "array<vec2<u32>, 256>");
    let body = "for (var e = lid; e < p.experts; e = e + 256u) { atomicStore(&places[e], 0u); }
        workgroupBarrier();
        // Four at a time, so that their reads are under way together; behind the last one stands no expert.
        for (var at = lid; at < p.pairs; at = at + 1024u) {
            var four = vec4<u32>(0xffffffffu);
            four.x = ids[at];
            if at + 256u < p.pairs { four.y = ids[at + 256u]; }
            if at + 512u < p.pairs { four.z = ids[at + 512u]; }
            if at + 768u < p.pairs { four.w = ids[at + 768u]; }
            if four.x < p.experts { atomicAdd(&places[four.x], 1u); }
            if four.y < p.experts { atomicAdd(&places[four.y], 1u); }
            if four.z < p.experts { atomicAdd(&places[four.z], 1u); }
            if four.w < p.experts { atomicAdd(&places[four.w], 1u); }
        }
        workgroupBarrier();
        let each = (p.experts + 255u) >> 8u;
        let first = lid * each;
        let end = min(first + each, p.experts);
        // Pairs and tiles of this invocation's experts, then of all before them too.
        var own = vec2<u32>(0u);
        for (var e = first; e < end; e = e + 1u) {
            let count = atomicLoad(&places[e]);
            own = own + vec2<u32>(count, (count + p.of_tile - 1u) / p.of_tile);
        }
        before[lid] = own;
        workgroupBarrier();
        for (var step = 1u; step < 256u; step = step << 1u) {
            var sum = before[lid];
            if lid >= step { sum = sum + before[lid - step]; }
            workgroupBarrier();
            before[lid] = sum;
            workgroupBarrier();
        }
        var next = before[lid] - own;
        for (var e = first; e < end; e = e + 1u) {
            let count = atomicLoad(&places[e]);
            atomicStore(&places[e], next.x);
            for (var done = 0u; done < count; done = done + p.of_tile) {
                tiles[next.y * 3u] = e;
                tiles[next.y * 3u + 1u] = next.x + done;
                tiles[next.y * 3u + 2u] = min(count - done, p.of_tile);
                next.y = next.y + 1u;
            }
            next.x = next.x + count;
        }
        for (var tile = before[255].y + lid; tile < p.tiles_most; tile = tile + 256u) {
            tiles[tile * 3u] = 0u;
            tiles[tile * 3u + 1u] = 0u;
            tiles[tile * 3u + 2u] = 0u;
        }
        var soon = 0xffffffffu;
        if lid < p.pairs { soon = ids[lid]; }
        for (var start = 0u; start < p.pairs; start = start + 256u) {
            let id = soon;
            let pair = start + lid;
            soon = 0xffffffffu;
            if pair + 256u < p.pairs { soon = ids[pair + 256u]; }
            staged[lid >> 2u][lid & 3u] = id;
            workgroupBarrier();
            var same = vec4<u32>(0u);
            let before_own = lid >> 2u;
            for (var at = 0u; at < before_own; at = at + 1u) {
                same = same + vec4<u32>(staged[at] == vec4<u32>(id));
            }
            let last = vec4<u32>(staged[before_own] == vec4<u32>(id));
            same = same + select(vec4<u32>(0u), last, vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(lid & 3u));
            if id < p.experts {
                order[atomicLoad(&places[id]) + same.x + same.y + same.z + same.w] = pair;
            }
            workgroupBarrier();
            if id < p.experts { atomicAdd(&places[id], 1u); }
        }
        ";
    (source, body.to_owned())
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
