//! Pairs of tokens and experts by expert, on the device: where every record has a slot, a prompt's mixture needs no
//! host.
//!
//! One workgroup counts the pairs of each expert, gives each a run of places in their order, and parts the runs into
//! tiles. An invocation owns a few experts and looks at every pair for each of them, twice: so a run's pairs are in
//! ascending order, without operations whose order the device chooses.

use super::Op;
use super::router::EXPERTS_LIMIT;
use crate::source::Source;
use crate::{Buffer, Gpu, GpuError};

/// Reads 1,024 ids from `start` on into workgroup memory, behind the last one the number of no expert.
const STAGE: &str = "
            workgroupBarrier();
            let own_pair = start + 4u * lid;
            var own_ids = vec4<u32>(0xffffffffu);
            if own_pair < p.pairs { own_ids.x = ids[own_pair]; }
            if own_pair + 1u < p.pairs { own_ids.y = ids[own_pair + 1u]; }
            if own_pair + 2u < p.pairs { own_ids.z = ids[own_pair + 2u]; }
            if own_pair + 3u < p.pairs { own_ids.w = ids[own_pair + 3u]; }
            staged[lid] = own_ids;
            workgroupBarrier();
";

pub(crate) fn source() -> (Source, String) {
    let source = Source::new()
        .read("ids", "u32")
        .write("tiles", "u32")
        .write("order", "u32")
        .parameters(&["pairs", "experts", "of_tile", "tiles_most"])
        .shared("staged", "array<vec4<u32>, 256>")
        .shared("places", &format!("array<u32, {EXPERTS_LIMIT}>"))
        .shared("before", "array<vec2<u32>, 256>");
    let put: String = ["x", "y", "z", "w"]
        .iter()
        .zip(0..)
        .map(|(part, offset)| {
            format!("if four.{part} == e {{ order[place] = start + 4u * at + {offset}u; place = place + 1u; }}\n")
        })
        .collect();
    let body = format!(
        "let each = (p.experts + 255u) >> 8u;
        let first = lid * each;
        // Pairs and tiles of this invocation's experts, then of all before them too.
        var own = vec2<u32>(0u);
        for (var e = first; e < first + each; e = e + 1u) {{
            var count = 0u;
            for (var start = 0u; start < p.pairs; start = start + 1024u) {{
                {STAGE}
                for (var at = 0u; at < 256u; at = at + 1u) {{
                    let same = vec4<u32>(staged[at] == vec4<u32>(e));
                    count = count + same.x + same.y + same.z + same.w;
                }}
            }}
            places[e] = count;
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
        var next = before[lid] - own;
        for (var e = first; e < first + each; e = e + 1u) {{
            let count = places[e];
            places[e] = next.x;
            for (var done = 0u; done < count; done = done + p.of_tile) {{
                tiles[next.y * 3u] = e;
                tiles[next.y * 3u + 1u] = next.x + done;
                tiles[next.y * 3u + 2u] = min(count - done, p.of_tile);
                next.y = next.y + 1u;
            }}
            next.x = next.x + count;
        }}
        for (var tile = before[255].y + lid; tile < p.tiles_most; tile = tile + 256u) {{
            tiles[tile * 3u] = 0u;
            tiles[tile * 3u + 1u] = 0u;
            tiles[tile * 3u + 2u] = 0u;
        }}
        for (var e = first; e < first + each; e = e + 1u) {{
            var place = places[e];
            for (var start = 0u; start < p.pairs; start = start + 1024u) {{
                {STAGE}
                for (var at = 0u; at < 256u; at = at + 1u) {{
                    let four = staged[at];
                    {put}
                }}
            }}
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
