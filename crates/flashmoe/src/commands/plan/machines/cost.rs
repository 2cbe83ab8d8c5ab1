//! What a range of layers costs on a machine, and the cut of a model over machines that costs least.
//!
//! A token passes the stages one after the other, so one stream takes the sum of their times and of the hops to each
//! and back; of as many streams as there are stages the slowest stage decides. What a stage takes follows from its
//! bytes, from the share of its experts that its machine holds, and from the machine's speeds, as for one machine.

use std::ops::Range;

use engine::backend::cuda::RECORDS_IN_BOTH;

use super::super::predict::{PROMPT, Sizes};
use super::super::{Coverage, coverage, token_seconds};
use super::file::Machine;
use super::hits::HitCurve;
use crate::speed::Speeds;

/// Seconds that a message takes in addition to the cable, one way: TLS and a thread that wakes (docs/scaling.md).
const MESSAGE_SECONDS: f64 = 20e-6;

/// A model by layers.
pub(super) struct Shape {
    /// Of one layer each.
    pub(super) layers: Vec<Layer>,
    /// Bytes of norm and head.
    pub(super) head: f64,
    /// Whether the last stage has the head, not the first.
    pub(super) head_is_last: bool,
    /// Sizes of the whole: a stage has its part of operations.
    pub(super) whole: Sizes,
    /// How often experts are found.
    pub(super) hits: HitCurve,
    /// Bytes of the residual stream of a token.
    pub(super) stream: f64,
    /// By start and end: bytes that a stage holds besides weights and experts.
    pub(super) rest: Box<dyn Fn(Range<usize>) -> f64>,
    /// Bytes of a slot for each byte of its record: pieces that lie apart are read with what is around them.
    pub(super) slot: f64,
}

/// Bytes of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    /// Of weights that are held: the first layer's with the embedding.
    pub(super) held: f64,
    /// And those that a token reads.
    pub(super) read: f64,
    /// Of the experts that a token uses.
    pub(super) routed: f64,
    /// Of all experts.
    pub(super) experts: f64,
    /// And how many they are.
    pub(super) count: usize,
    /// Whether a stage may begin here.
    pub(super) begins: bool,
}

/// A machine as far as the formula knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of the process.
    pub(super) budget: f64,
    pub(super) speeds: Speeds,
    /// Bytes of the GPU that a process may take.
    pub(super) vram: Option<f64>,
    /// Bytes a second and seconds of the way from the first process; none for that itself.
    pub(super) way: Option<(f64, f64)>,
}

/// What a stage costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// Seconds of a token.
    pub(super) token: f64,
    /// Seconds of a chunk of a prompt; on a GPU those of moving records alone.
    pub(super) chunk: f64,
    /// Seconds of a long prompt, whose last chunks attend to all before them.
    pub(super) prompt: f64,
    /// The share of uses that finds its expert in the memory that computes.
    pub(super) found: f64,
    /// Bytes of experts held.
    pub(super) slots: f64,
    /// Seconds that a token is on its way, there and back.
    pub(super) hop: f64,
    /// And a chunk.
    pub(super) chunk_hop: f64,
    /// Seconds that a token keeps the cable.
    pub(super) wire: f64,
}

impl Shape {
    fn sum(&self, range: &Range<usize>, of: impl Fn(&Layer) -> f64) -> f64 {
        self.layers[range.clone()].iter().map(of).sum()
    }

    /// What these layers cost there; `None` where they do not fit.
    pub(super) fn cost(&self, range: &Range<usize>, room: &Room, is_first: bool) -> Option<Cost> {
        let has_head = if self.head_is_last { range.end == self.layers.len() } else { is_first };
        let head = if has_head { self.head } else { 0.0 };
        let held = self.sum(range, |layer| layer.held) + head;
        let experts = self.sum(range, |layer| layer.experts);
        let own = range.len() as f64 / self.layers.len() as f64;
        let sizes = Sizes {
            layers: range.len() as f64,
            trunk: self.sum(range, |layer| layer.read) + head,
            routed: self.sum(range, |layer| layer.routed),
            all: experts,
            operations: self.whole.operations * own,
            attention: self.whole.attention * own,
            index: self.whole.index * own,
            slots: None,
            ..self.whole
        };
        let mut cost = match room.vram {
            None => self.on_processor(sizes, room, held + (self.rest)(range.clone()))?,
            Some(vram) => {
                let left = vram - held - (self.rest)(range.clone());
                self.on_gpu(sizes, room, left, range)?
            }
        };
        if let Some((rate, latency)) = room.way {
            let one_way = latency + MESSAGE_SECONDS;
            cost.wire = self.stream / rate;
            cost.hop = 2.0 * (one_way + cost.wire);
            cost.chunk_hop = 2.0 * (one_way + cost.wire * self.whole.chunk);
        }
        Some(cost)
    }

    fn on_processor(&self, sizes: Sizes, room: &Room, fixed: f64) -> Option<Cost> {
        let left = room.budget - fixed;
        // A step needs the experts of a layer.
        let (all, least) = (sizes.all * self.slot, sizes.routed * self.slot / sizes.layers);
        if left < least {
            return None;
        }
        let share = if all > 0.0 { (left / all).min(1.0) } else { 1.0 };
        let sizes = Sizes { share, ..sizes };
        let (hits, found) = (self.hits.at(share), sizes.predict(&room.speeds, 1.0));
        Some(Cost {
            token: sizes.turns(&room.speeds, hits),
            chunk: sizes.chunk / found.prefill.middle(),
            prompt: found.prompt.middle(),
            found: hits,
            slots: left.min(all),
            hop: 0.0,
            chunk_hop: 0.0,
            wire: 0.0,
        })
    }

    fn on_gpu(&self, sizes: Sizes, room: &Room, left: f64, range: &Range<usize>) -> Option<Cost> {
        if left < sizes.routed / sizes.layers {
            return None;
        }
        let part =
            |bytes: f64| if sizes.all > 0.0 { (bytes / sizes.all).clamp(0.0, 1.0) } else { 1.0 };
        let (slots, pinned) = (part(left), part(room.budget));
        let count: usize = self.layers[range.clone()].iter().map(|layer| layer.count).sum();
        let both = RECORDS_IN_BOTH as f64 / count.max(1) as f64;
        let Coverage { step, prompt } = match slots >= 1.0 || pinned >= 1.0 {
            true => Coverage { step: 1.0, prompt: 1.0 },
            false => coverage(slots, pinned, both),
        };
        let (inside, there) = (self.hits.at(slots), self.hits.at(step));
        let Speeds { disk, memory, bus, .. } = room.speeds;
        let bus = bus.unwrap_or(f64::INFINITY);
        let read = (sizes.trunk + sizes.routed) / memory;
        let (over, missed) =
            (sizes.routed * (1.0 - inside) / bus, sizes.routed * (1.0 - there) / disk);
        let outside = sizes.all * (1.0 - slots);
        let sweep = (outside / bus).max(sizes.all * (1.0 - prompt) / disk);
        Some(Cost {
            token: token_seconds(range.len(), read, over, missed),
            chunk: sweep,
            prompt: sweep * (PROMPT as f64 / sizes.chunk).ceil(),
            found: inside,
            slots: left.min(sizes.all),
            hop: 0.0,
            chunk_hop: 0.0,
            wire: 0.0,
        })
    }
}

/// Layers of a machine, by its number, and what they cost.
pub(super) type Stage = (usize, Range<usize>, Cost);

/// A cut, and what it gives.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut(pub(super) Vec<Stage>);

impl Cut {
    /// The cut over some of the machines, the first among them, in their order, that takes the least time for one
    /// stream, or with `several` has the fastest slowest stage. Machines that would make it slower are left out.
    pub(super) fn best(shape: &Shape, rooms: &[Room], several: bool) -> Option<Self> {
        let layers = shape.layers.len();
        let key = |cut: &[Stage]| {
            let slowest =
                cut.iter().map(|(.., cost)| cost.token.max(cost.wire)).fold(0.0, f64::max);
            let sum: f64 = cut.iter().map(|(.., cost)| cost.token + cost.hop).sum();
            if several { (slowest, sum) } else { (sum, slowest) }
        };
        // By end: the best cut of the layers before it.
        let mut best: Vec<Option<Vec<Stage>>> = vec![None; layers + 1];
        for (machine, room) in rooms.iter().enumerate() {
            let mut next = best.clone();
            for (start, before) in best.iter().enumerate().take(layers) {
                let before = match (machine, start, before) {
                    (0, 0, _) => Vec::new(),
                    (0, ..) | (_, 0, _) => continue,
                    (.., Some(before)) if shape.layers[start].begins => before.clone(),
                    _ => continue,
                };
                for (end, known) in next.iter_mut().enumerate().skip(start + 1) {
                    let Some(cost) = shape.cost(&(start..end), room, machine == 0) else {
                        continue;
                    };
                    let mut cut = before.clone();
                    cut.push((machine, start..end, cost));
                    let better = known.as_ref().is_none_or(|known| key(&cut) < key(known));
                    if better {
                        *known = Some(cut);
                    }
                }
            }
            best = next;
        }
        best.pop().flatten().map(Self)
    }

    /// Seconds of a token of one stream.
    pub(super) fn token(&self) -> f64 {
        self.0.iter().map(|(.., cost)| cost.token + cost.hop).sum()
    }

    /// Tokens a second of as many streams as there are stages.
    pub(super) fn together(&self) -> f64 {
        let slowest = self.0.iter().map(|(.., cost)| cost.token.max(cost.wire)).fold(0.0, f64::max);
        (self.0.len() as f64 / self.token()).min(1.0 / slowest)
    }

    /// Seconds of a long prompt, whose chunks follow each other through the stages.
    pub(super) fn prompt(&self, chunk: f64) -> f64 {
        let further = (PROMPT as f64 / chunk).ceil() - 1.0;
        let first: f64 = self.0.iter().map(|(.., cost)| cost.chunk + cost.chunk_hop).sum();
        let each = |cost: &Cost| (cost.prompt - cost.chunk).max(further * cost.chunk_hop / 2.0);
        first + self.0.iter().map(|(.., cost)| each(cost)).fold(0.0, f64::max)
    }
}

impl Room {
    /// Of a machine, whose process may take so many bytes of its RAM.
    pub(super) fn of(machine: &Machine, budget: f64, compute: f64, reserve: f64) -> Self {
        let has = &machine.has;
        let gpu = has.gpu;
        let compute = if gpu.is_some() { 0.0 } else { has.compute.unwrap_or(compute) };
        Self {
            budget,
            speeds: Speeds {
                disk: has.disk,
                memory: has.memory,
                token: has.memory,
                bus: gpu.map(|(_, bus)| bus),
                compute,
                short: compute,
            },
            vram: gpu.map(|(vram, _)| vram as f64 - reserve),
            way: machine.way.as_ref().map(|way| (way.rate, way.latency)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = (1_u64 << 30) as f64;

    /// The 35B shape at 4 bits.
    fn shape(head_is_last: bool) -> Shape {
        let layer = |index: usize| Layer {
            held: 1.09e9 / 40.0 + if index == 0 { 0.5e9 } else { 0.0 },
            read: 1.09e9 / 40.0,
            routed: 566e6 / 40.0,
            experts: 18.1e9 / 40.0,
            count: 256,
            begins: index > 0,
        };
        let whole = Sizes {
            layers: 40.0,
            trunk: 1.09e9,
            routed: 566e6,
            all: 18.1e9,
            share: 1.0,
            used: 8.0 / 256.0,
            taken: 8.0,
            operations: 5.2e9,
            attention: 4.0 * 40_960.0,
            seen: None,
            index: 0.0,
            chunk: 1024.0,
            streams: false,
            slots: None,
        };
        Shape {
            layers: (0..40).map(layer).collect(),
            head: 0.0,
            head_is_last,
            whole,
            hits: HitCurve::of(256, 8),
            stream: 8192.0,
            rest: Box::new(|layers| 0.3e9 * layers.len() as f64 / 40.0),
            slot: 1.0,
        }
    }

    /// An H200 with so much of its memory.
    fn card(vram: f64, way: Option<(f64, f64)>) -> Room {
        let (memory, bus) = (4.2e12, Some(50e9));
        let speeds = Speeds { disk: 5e9, memory, token: memory, bus, compute: 0.0, short: 0.0 };
        Room { budget: 64.0 * GIB, speeds, vram: Some(vram), way }
    }

    fn processor(budget: f64, disk: f64, way: Option<(f64, f64)>) -> Room {
        let (memory, compute) = (29e9, 190e9);
        let speeds = Speeds { disk, memory, token: memory, bus: None, compute, short: compute };
        Room { budget, speeds, vram: None, way }
    }

    fn rate(rooms: &[Room], several: bool) -> Cut {
        let on_gpu = rooms[0].vram.is_some();
        Cut::best(&shape(on_gpu), rooms, several).expect("it fits")
    }

    fn near(found: f64, measured: f64) {
        assert!((found / measured - 1.0).abs() < 0.15, "{found:.3} for {measured}");
    }

    /// docs/benchmarks.md, "Several GPUs", within 15 %.
    #[test]
    fn rows_of_several_gpus_are_what_the_formula_says() {
        let one = 1.0 / rate(&[card(100.0 * GIB, None)], false).token();
        near(one, 524.9);
        // Half of the layers each: the cut of several streams.
        let namespace = Some((10e9, 15.7e-6));
        let two = rate(&[card(100.0 * GIB, None), card(100.0 * GIB, namespace)], true);
        assert_eq!(
            two.0.iter().map(|(_, layers, _)| layers.clone()).collect::<Vec<_>>(),
            [0..20, 20..40]
        );
        near(1.0 / two.token(), 500.0);
        assert!((1.0 / two.token() / one / (500.0 / 518.0) - 1.0).abs() < 0.03);
        let small = card(5.1 * GIB, None);
        near(1.0 / rate(&[small, small], false).token(), 383.0);
        near(1.0 / rate(&[small], false).token(), 247.0);
    }

    /// Rows of docs/benchmarks.md, 35B shape on two cores in 3, 4, 5.4 and 6 GiB, and in memory that holds all. Visits
    /// of one, two and three records took 0.58, 1.19 and 1.70 ms of that disk (docs/experiments.tsv, 778bb06): what
    /// `plan` measured there, into ordinary pages, was 1.5 to 4.2 GB/s, and none of it holds for all rows.
    #[test]
    fn rows_of_a_processor_are_what_the_formula_says() {
        let disk = 1.769e6 * 6.0 / (0.58 + 1.19 + 1.70) * 1e3;
        for (budget, measured) in [(3.0, 7.2), (4.0, 9.1), (5.4, 10.9), (6.0, 10.2), (21.0, 14.49)]
        {
            near(1.0 / rate(&[processor(budget * GIB, disk, None)], false).token(), measured);
        }
    }

    /// Two cores of another host (products of one token at 30 GB/s), reads paced without bursts (`bench/pace.c`), by
    /// slots and GB/s: one process (`flashmoe bench`, `bench/disks.py`), and two that were cut at 18 (the latter).
    #[test]
    fn rows_of_paced_disks_are_what_the_formula_says() {
        let shape = shape(false);
        let held = |layers: Range<usize>| {
            let own = layers.clone().map(|layer| shape.layers[layer].held).sum::<f64>();
            (own + (shape.rest)(layers)) / 1.769e6
        };
        let cost = |layers: Range<usize>, slots: f64, disk: f64, way| {
            let room = processor((slots + held(layers.clone())) * 1.769e6, disk, way);
            let room = Room { speeds: Speeds { token: 30e9, ..room.speeds }, ..room };
            let is_first = layers.start == 0;
            shape.cost(&layers, &room, is_first).expect("it fits")
        };
        let rows = [
            (786.0, 0.7e9, 2.29),
            (785.0, 0.7e9, 2.40),
            (951.0, 0.7e9, 2.59),
            (2402.0, 1.0e9, 7.54),
            (2402.0, 1.5e9, 9.55),
        ];
        for (slots, disk, measured) in rows {
            near(1.0 / cost(0..40, slots, disk, None).token, measured);
        }
        let second = cost(18..40, 1062.0, 0.7e9, Some((10e9, 15e-6)));
        near(1.0 / (cost(0..18, 1053.0, 0.7e9, None).token + second.token + second.hop), 4.5);
    }

    #[test]
    fn a_second_machine_is_taken_where_it_helps() {
        let near = Some((125e6, 0.2e-3));
        let scarce = processor(3.0 * GIB, 0.7e9, None);
        let second = Room { way: near, ..scarce };
        let (one, two) = (rate(&[scarce], false), rate(&[scarce, second], false));
        assert_eq!(two.0.len(), 2);
        let gain = one.token() / two.token();
        assert!((1.7..3.0).contains(&gain), "{gain:.2}");
        assert!(two.together() > 1.5 / two.token(), "both compute");
        // Everything is in the first one's memory: a hop more is no gain for one stream, but it is for two.
        let large = processor(40.0 * GIB, 2e9, None);
        let both = [large, Room { way: near, ..large }];
        assert_eq!(rate(&both, false).0.len(), 1);
        let cut = rate(&both, true);
        assert_eq!(cut.0.len(), 2);
        assert!(cut.together() > 1.7 / rate(&both, false).token());
        // A slow cable, or a machine without room, is left out.
        let far = Room { way: Some((125e6, 10.0)), ..second };
        assert_eq!(
            rate(&[scarce, far, second], false).0.iter().map(|it| it.0).collect::<Vec<_>>(),
            [0, 2]
        );
        let none = Room { budget: 0.0, ..second };
        assert_eq!(rate(&[large, none], true).0.len(), 1);
        assert!(Cut::best(&shape(false), &[none, large], false).is_none(), "the first has no room");
    }

    #[test]
    fn a_prompt_takes_its_slowest_stage_and_the_cable() {
        let large = processor(40.0 * GIB, 2e9, None);
        let one = rate(&[large], true).prompt(1024.0);
        let two = |rate_of_link| {
            let second = Room { way: Some((rate_of_link, 0.1e-3)), ..large };
            rate(&[large, second], true).prompt(1024.0)
        };
        let fast = two(125e6);
        assert!((1.6..2.0).contains(&(one / fast)), "{:.2}", one / fast);
        // 8 KiB a token at 200 kB/s are 800 s one way.
        assert!(two(2e5) > 780.0 && fast < 600.0, "{:.0} {fast:.0}", two(2e5));
    }
}
