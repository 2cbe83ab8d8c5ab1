//! Sequences over a device that is made of vectors: what it is asked for, and that every token finds what the tokens
//! before it left, whatever was created, dropped, kept, restored and put aside in between.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;

use kernels::KvType;
use store::LayerId;

use super::*;
use crate::model::config::ModelConfig;

const SEQUENCES: usize = 3;
const CONTEXT: usize = 3 * PAGE_TOKENS;

/// The layout of a golden case on a GPU.
fn layout(case: &str) -> Arc<SequenceLayout> {
    layout_in(RowForm::Rows, case)
}

fn layout_in(form: RowForm, case: &str) -> Arc<SequenceLayout> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
    let checkpoint = store::format::open(&folder.join("model")).unwrap();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let layers = 0..config.layers.len();
    Arc::new(SequenceLayout::of_layers(&config, &layers, KvType::F16, form))
}

/// Memory with bytes that no test has written: a buffer of a kind for all places.
struct Device {
    layout: Arc<SequenceLayout>,
    placement: Placement,
    memory: HashMap<PlaceBuffer, Vec<u8>>,
    calls: Vec<String>,
}

impl Device {
    fn of(&mut self, place: usize, memory: Memory) -> &mut [u8] {
        let layout = &self.layout;
        let bytes = match memory {
            Memory::Rows { .. } => CONTEXT * layout.row(),
            Memory::Pages => layout.pages(CONTEXT) * layout.compressed().page_bytes,
            Memory::IndexPages => layout.pages(CONTEXT) * layout.side().page_bytes(),
            Memory::Window { .. } => layout.window_place_bytes(),
            fixed => 4 * layout.memory_range(fixed).len(),
        };
        self.bytes(&Region { place, memory, start: 0, bytes })
    }

    fn bytes(&mut self, region: &Region) -> &mut [u8] {
        let Placed { buffer, start, bytes } = self.placement.find(region);
        let length = self.placement.bytes(buffer);
        let all = self.memory.entry(buffer).or_insert_with(|| vec![0xaa; length]);
        &mut all[start..start + bytes]
    }

    fn note(&mut self, call: &str, region: &Region) {
        let Region { place, memory, start, bytes } = region;
        self.calls.push(format!("{call} {place} {memory:?} {start}+{bytes}"));
    }
}

impl StateMemory for Device {
    type Error = Infallible;

    fn read(&mut self, from: &[Region], mut to: &mut [u8]) -> Result<(), Infallible> {
        for region in from {
            self.note("read", region);
            let (part, rest) = to.split_at_mut(region.bytes);
            part.copy_from_slice(self.bytes(region));
            to = rest;
        }
        assert!(to.is_empty(), "bytes that no region fills");
        Ok(())
    }

    fn write(&mut self, to: &[Region], mut from: &[u8]) -> Result<(), Infallible> {
        for region in to {
            self.note("write", region);
            let (part, rest) = from.split_at(region.bytes);
            self.bytes(region).copy_from_slice(part);
            from = rest;
        }
        assert!(from.is_empty(), "bytes that no region takes");
        Ok(())
    }

    fn copy(&mut self, pairs: &[(Region, Region)]) -> Result<(), Infallible> {
        for (from, to) in pairs {
            self.note(&format!("copy to {} {}", to.place, to.start), from);
            let bytes = self.bytes(from).to_vec();
            self.bytes(to).copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn clear(&mut self, regions: &[Region]) -> Result<(), Infallible> {
        for region in regions {
            self.note("clear", region);
            self.bytes(region).fill(0);
        }
        Ok(())
    }
}

/// What a layer leaves behind the tokens whose hash is `seed`.
fn pattern(seed: u64, what: usize, bytes: usize) -> Vec<u8> {
    let words = (0..bytes as u64).map(|at| {
        let mixed = (seed ^ (what as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(at);
        (mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8
    });
    words.collect()
}

/// Sequences, their device, and what each should hold.
struct World {
    sequences: Sequences,
    device: Device,
    texts: HashMap<u32, Vec<u32>>,
}

impl World {
    fn new(layout: &Arc<SequenceLayout>) -> Self {
        let limits = Limits::new(SEQUENCES, CONTEXT, [40, 12]);
        let placement = Placement::new(layout, SEQUENCES, CONTEXT);
        let (layout_of, memory) = (Arc::clone(layout), HashMap::new());
        let device = Device { layout: layout_of, placement, memory, calls: Vec::new() };
        let sequences = Sequences::new(Arc::clone(layout), limits);
        Self { sequences, device, texts: HashMap::new() }
    }

    fn create(&mut self) -> Option<SequenceId> {
        self.create_at(None)
    }

    fn create_at(&mut self, home: Option<SequenceId>) -> Option<SequenceId> {
        let sequence = self.sequences.create(&mut self.device, home).ok()?;
        self.texts.insert(sequence.0, Vec::new());
        Some(sequence)
    }

    fn remove(&mut self, sequence: SequenceId) {
        self.sequences.remove(sequence);
        self.texts.remove(&sequence.0);
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Option<Snapshot> {
        let part = self.sequences.snapshot(&mut self.device, sequence).ok()?;
        Some(Snapshot::of_one(part))
    }

    fn restore(&mut self, sequence: SequenceId, snapshot: &Snapshot, text: &[u32]) {
        let [SnapshotShare::Here(part)] = snapshot.parts() else { panic!("one part") };
        self.sequences.restore(&mut self.device, sequence, part).unwrap();
        self.texts.insert(sequence.0, text.to_vec());
    }

    /// Runs a batch: answers, or prompts with marks at the ends of some runs, put aside on the way.
    fn run(&mut self, runs: &[(SequenceId, Vec<u32>)], answers: bool, marks: &[usize]) {
        let all = runs.iter().map(|(sequence, tokens)| Run { sequence: *sequence, tokens });
        self.sequences.begin(&all.collect::<Vec<_>>()).unwrap();
        marks.iter().for_each(|&run| self.sequences.mark(run).unwrap());
        let Ok(()) = self.sequences.place_windows(&mut self.device, answers);
        if !answers {
            let suspended = self.sequences.suspend(vec![7], vec![1.0]);
            assert_eq!(self.sequences.resume(suspended), (vec![7], vec![1.0]));
            let Ok(()) = self.sequences.place_windows(&mut self.device, answers);
        }
        for (sequence, tokens) in runs {
            self.texts.get_mut(&sequence.0).unwrap().extend(tokens);
        }
        let layers = 0..self.device.layout.layers() as u16;
        for layer in layers.map(LayerId) {
            for run in 0..runs.len() {
                self.layer(layer, run, answers);
            }
        }
        for run in 0..runs.len() {
            self.compressed_rows(run);
        }
        let Ok(()) = self.sequences.commit(&mut self.device, answers);
    }

    /// Hashes of a sequence's tokens, one for each length from 1 on.
    fn hashes(&self, sequence: SequenceId) -> Vec<u64> {
        let text = &self.texts[&sequence.0];
        let hash = |hash: &mut u64, token: &u32| {
            *hash = (*hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
            Some(*hash)
        };
        text.iter().scan(0xcbf2_9ce4_8422_2325, hash).collect()
    }

    /// What a layer does for a run: it finds what is behind the tokens before and leaves what is behind the run.
    fn layer(&mut self, layer: LayerId, run: usize, answers: bool) {
        let (span, layout) = (self.sequences.spans()[run], Arc::clone(&self.device.layout));
        let (hashes, place) = (self.hashes(span.sequence), span.sequence.place());
        let row = match layout.kept(layer) {
            Kept::Window => layout.window_row(),
            _ => layout.row(),
        };
        let (index, number) = (layout.index(layer), usize::from(layer.0));
        let rows = |position: usize, side| pattern(hashes[position], 8 * number + side, row);
        let mut parts = Vec::new();
        match layout.kept(layer) {
            Kept::Paged => {
                for side in 0..layout.sides() {
                    let memory = self.device.of(place, Memory::Rows { layer: index, side });
                    let mut rows_of = memory.chunks_exact_mut(row);
                    for (position, held) in rows_of.by_ref().take(span.position).enumerate() {
                        assert!(held == rows(position, side), "{layer:?}: {position} of {span:?}");
                    }
                    for position in span.position..span.end() {
                        rows_of.next().unwrap().copy_from_slice(&rows(position, side));
                    }
                }
            }
            Kept::Window => {
                let form = layout.window_rows().unwrap();
                let base = form.base(span.position);
                for side in [0, 1] {
                    let held = self.device.of(place, Memory::Window { layer: index, side });
                    for position in base.max(span.base)..span.position {
                        let at = (position - span.base) * row;
                        assert!(held[at..at + row] == rows(position, side), "{position}: {span:?}");
                    }
                    let to = if answers { span.position } else { form.base(span.end()) };
                    let front = if answers { span.base } else { to };
                    for position in to..span.end() {
                        let at = (position - front) * row;
                        held[at..at + row].copy_from_slice(&rows(position, side));
                    }
                }
                parts.push(Part::Window);
            }
            Kept::State => parts.extend([Part::Tail, Part::State]),
            Kept::Compressed => parts.push(Part::Compressed),
            Kept::Nothing => unreachable!("a device that computes all layers"),
        }
        let (side, number_of) = (layout.side(), layer.index());
        parts.extend(side.index(number_of).map(|_| Part::Index));
        parts.extend(side.ngrams(number_of).map(|_| Part::Ngrams));
        for part in parts {
            if part != Part::Window {
                let region = layout.region(place, layer, part);
                let seed = |length: usize| pattern(hashes[length - 1], number, region.bytes);
                let held = self.device.bytes(&region);
                match span.position {
                    0 => assert!(held.iter().all(|byte| *byte == 0), "{layer:?}: a new sequence"),
                    length => assert!(held == seed(length), "{layer:?}: {part:?} of {span:?}"),
                }
                held.copy_from_slice(&seed(span.end()));
            }
            let Ok(()) = self.sequences.keep(&mut self.device, (layer, part), run);
        }
    }

    /// Rows of pages that a run's tokens complete.
    fn compressed_rows(&mut self, run: usize) {
        let layout = Arc::clone(&self.device.layout);
        let compressed = |tokens| layout.compressed().filled(tokens);
        self.rows_of_pages(run, Memory::Pages, layout.compressed().page_bytes, &compressed);
        let index = |tokens| {
            let ranges = layout.side().filled(tokens).into_iter();
            ranges.map(|(start, range)| start..start + range.len()).collect()
        };
        self.rows_of_pages(run, Memory::IndexPages, layout.side().page_bytes(), &index);
    }

    /// Rows of pages of `page` bytes in `memory`; so many tokens fill these ranges of a page.
    fn rows_of_pages(
        &mut self,
        run: usize,
        memory: Memory,
        page: usize,
        ranges: &dyn Fn(usize) -> Vec<std::ops::Range<usize>>,
    ) {
        if page == 0 {
            return;
        }
        let span = self.sequences.spans()[run];
        let (hashes, place) = (self.hashes(span.sequence), span.sequence.place());
        let filled = |tokens: usize| {
            let mut marked = vec![false; page];
            ranges(tokens).into_iter().for_each(|range| marked[range].fill(true));
            marked
        };
        for (position, hash) in hashes.iter().enumerate() {
            let (number, token) = (position / PAGE_TOKENS, position % PAGE_TOKENS);
            let (before, after) = (filled(token), filled(token + 1));
            let held = &mut self.device.of(place, memory)[number * page..][..page];
            for (at, byte) in
                held.iter_mut().enumerate().filter(|(at, _)| before[*at] != after[*at])
            {
                let expected = (hash >> (at % 8 * 8)) as u8;
                if position < span.position {
                    assert!(*byte == expected, "byte {at} of page {number}: {span:?}");
                }
                *byte = expected;
            }
        }
    }
}

fn file_of(snapshot: &Snapshot) -> Vec<u8> {
    let mut file = Vec::new();
    (0..snapshot.full_pages()).for_each(|page| snapshot.write_page(page, &mut file).unwrap());
    snapshot.write_rest(&mut file).unwrap();
    file
}

/// The file of a text that nothing else has ever been beside.
fn clean_file(layout: &Arc<SequenceLayout>, text: &[u32]) -> Vec<u8> {
    let mut world = World::new(layout);
    let sequence = world.create().unwrap();
    world.run(&[(sequence, text.to_vec())], false, &[]);
    file_of(&world.snapshot(sequence).unwrap())
}

#[test]
fn every_token_finds_what_the_tokens_before_it_left() {
    for case in [
        "qwen35-calm-mlx-mixed",
        "gptoss-calm-mxfp4",
        "deepseek-calm-hf",
        "dsv32-calm-hf",
        "glm5-calm-hf",
        "dsv4-calm-hf",
        "gemma4-calm-hf",
        "flash-next-calm-hf",
        "kimi-linear-calm-hf",
        "glm-next-calm-hf",
    ] {
        let layout = layout(case);
        let mut state = 0x5eed_u64;
        let mut next = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        };
        let mut world = World::new(&layout);
        let mut live: Vec<SequenceId> = Vec::new();
        let mut kept: Vec<(Snapshot, Vec<u32>)> = Vec::new();
        let (mut restored, mut filed) = (0, 0);
        for _ in 0..250 {
            let any = next(SEQUENCES);
            let chosen = live.get(any).copied();
            let length = chosen.map_or(0, |it| world.texts[&it.0].len());
            let mut text =
                |tokens: usize| -> Vec<u32> { (0..tokens).map(|_| next(60) as u32).collect() };
            let choice = text(1)[0] % 10;
            match (choice, chosen) {
                (0 | 1, None) => live.extend(world.create()),
                (0, Some(sequence)) => {
                    world.remove(sequence);
                    live.retain(|it| *it != sequence);
                }
                (2..=4, Some(sequence)) if length + 200 < CONTEXT => {
                    // A prompt in two runs, marked behind the first.
                    let tokens = 2 + text(1)[0] as usize * 3;
                    let runs =
                        [(sequence, text(tokens / 2)), (sequence, text(tokens - tokens / 2))];
                    let room = world.sequences.room();
                    let marks: &[usize] = if room.states > 0 { &[0] } else { &[] };
                    let marked = [world.texts[&sequence.0].clone(), runs[0].1.clone()].concat();
                    world.run(&runs, false, marks);
                    let marks = world.sequences.take_marks();
                    let parts = marks.into_iter().filter_map(|(_, part)| part);
                    kept.extend(parts.map(|it| (Snapshot::of_one(it), marked.clone())));
                }
                (5 | 6, Some(_)) => {
                    let fits = |it: &&SequenceId| world.texts[&it.0].len() < CONTEXT;
                    let runs: Vec<_> = live.iter().filter(fits).map(|it| (*it, text(1))).collect();
                    world.run(&runs, true, &[]);
                }
                (7, Some(sequence)) if length > 0 => {
                    if let Some(snapshot) = world.snapshot(sequence) {
                        kept.push((snapshot, world.texts[&sequence.0].clone()));
                    }
                }
                (8, Some(sequence)) if !kept.is_empty() => {
                    let (snapshot, text) = &kept[text(1)[0] as usize % kept.len()];
                    let length = text.len() - text.len() / 7;
                    restored += 1;
                    match snapshot.truncated(length) {
                        Some(earlier) => world.restore(sequence, &earlier, &text[..length]),
                        None => world.restore(sequence, snapshot, text),
                    }
                }
                (9, _) if !kept.is_empty() => {
                    let (snapshot, text) = kept.swap_remove(any % kept.len());
                    let file = file_of(&snapshot);
                    assert!(file == clean_file(&layout, &text), "{case}: {} tokens", text.len());
                    filed += 1;
                    drop(snapshot);
                    let blank = world.sequences.blank(text.len()).unwrap();
                    let read = Snapshot::read(vec![blank], &mut file.as_slice()).unwrap();
                    kept.push((read, text));
                    if kept.len() > 8 {
                        kept.remove(0);
                    }
                }
                _ => {}
            }
        }
        assert!(restored > 5 && filed > 5, "{case}: {restored} restored, {filed} read");
    }
}

/// What a GPU is asked for, in order.
#[test]
fn a_place_that_has_a_page_is_not_written_and_copies_wait_once() {
    let layout = layout("gptoss-calm-mxfp4");
    let (row, paged, windows) =
        (layout.row(), layout.count(Kept::Paged), layout.count(Kept::Window));
    assert!(paged > 0 && windows > 0);
    let mut world = World::new(&layout);
    let text: Vec<u32> = (0..PAGE_TOKENS as u32 + 40).collect();
    let sequence = world.create().unwrap();
    world.run(&[(sequence, text.clone())], false, &[]);
    assert!(world.device.calls.is_empty(), "no state to clear, nothing to keep");
    let snapshot = world.snapshot(sequence).unwrap();
    let rows = |call: &str, place: usize, start: usize, tokens: usize| {
        let sides = (0..paged).flat_map(|layer| [0, 1].map(|side| Memory::Rows { layer, side }));
        let line = |memory| format!("{call} {place} {memory:?} {}+{}", start * row, tokens * row);
        sides.map(line).collect::<Vec<_>>()
    };
    let form = layout.window_rows().unwrap();
    let window = |call: &str, place: usize, length: usize| {
        let sides =
            (0..windows).flat_map(|layer| [0, 1].map(|side| Memory::Window { layer, side }));
        let bytes = (length - form.base(length)) * row;
        sides.map(|memory| format!("{call} {place} {memory:?} 0+{bytes}")).collect::<Vec<_>>()
    };
    let calls = |world: &mut World| std::mem::take(&mut world.device.calls);
    let page = rows("read", 0, 0, PAGE_TOKENS);
    let rest = rows("read", 0, PAGE_TOKENS, 40);
    assert_eq!(calls(&mut world), [window("read", 0, text.len()), page, rest].concat());
    // A full page has a copy now.
    assert_eq!(world.sequences.snapshot_pages(sequence, text.len()), 1);
    // The next sequence at the place finds the full page there; another copies it from there.
    world.remove(sequence);
    let home = sequence;
    let sequence = world.create_at(Some(home)).unwrap();
    assert_eq!(sequence, home);
    world.restore(sequence, &snapshot, &text);
    let rest = rows("write", 0, PAGE_TOKENS, 40);
    assert_eq!(calls(&mut world), [window("write", 0, text.len()), rest].concat());
    let other = world.create().unwrap();
    world.restore(other, &snapshot, &text);
    let page = rows("copy to 1 0", 0, 0, PAGE_TOKENS);
    let rest = rows("write", 1, PAGE_TOKENS, 40);
    assert_eq!(calls(&mut world), [window("write", 1, text.len()), page, rest].concat());
}

/// A conversation's rows stay at its place while others come and go, as long as there are places that were left before.
#[test]
fn a_new_sequence_goes_home_or_where_rows_are_oldest() {
    let mut world = World::new(&layout("gptoss-calm-mxfp4"));
    let [first, second, third] = [(); 3].map(|()| world.create().unwrap());
    assert!(world.create_at(Some(first)).is_none(), "all places are taken");
    for sequence in [second, first] {
        world.remove(sequence);
    }
    assert_eq!(world.create_at(Some(third)), Some(second), "another is there: the one left first");
    world.remove(second);
    assert_eq!(world.create_at(Some(second)), Some(second));
    assert_eq!(world.create(), Some(first));
}

/// Places of a kind fill their buffer and do not overlap; what follows each other in it is one copy.
#[test]
fn places_fill_their_buffers_and_regions_that_follow_each_other_are_one() {
    let mut kinds = std::collections::HashSet::new();
    for case in ["qwen35-calm-mlx-mixed", "gptoss-calm-mxfp4", "dsv4-calm-hf", "flash-next-calm-hf"]
    {
        let layout = layout(case);
        let placement = Placement::new(&layout, SEQUENCES, CONTEXT);
        let sides = |layers: usize| (0..layers).flat_map(|layer| [(layer, 0), (layer, 1)]);
        let rows = sides(layout.count(Kept::Paged)).filter(|(_, side)| *side < layout.sides());
        let windows = sides(layout.count(Kept::Window));
        let mut all = layout.fixed();
        all.extend(rows.map(|(layer, side)| Memory::Rows { layer, side }));
        all.extend(windows.map(|(layer, side)| Memory::Window { layer, side }));
        all.extend([Memory::Pages, Memory::IndexPages]);
        let mut device = World::new(&layout).device;
        for memory in all {
            for place in 0..SEQUENCES {
                let held = device.of(place, memory);
                assert!(held.iter().all(|byte| *byte == 0xaa), "{case}: {memory:?} of {place}");
                held.fill(0);
            }
        }
        for (buffer, held) in &device.memory {
            assert!(held.iter().all(|byte| *byte == 0), "{case}: {buffer:?} has bytes of no place");
            kinds.extend((!held.is_empty()).then_some(std::mem::discriminant(buffer)));
        }
        let regions = World::new(&layout).sequences.fixed_regions(1);
        let bytes: usize = regions.iter().map(|region| region.bytes).sum();
        let joined = placement.find_all(&regions);
        assert!(joined.len() <= 4, "{case}: a copy for each buffer, not for each layer");
        assert_eq!(joined.iter().map(|it| it.bytes).sum::<usize>(), bytes);
    }
    assert_eq!(kinds.len(), 8, "every kind of buffer is met");
}

/// Rows are numbered as they are written: each token finds all that it sees, in pages and in rings.
#[test]
fn rows_in_blocks_are_found_where_they_were_written() {
    let layout = layout_in(RowForm::Blocks, "gptoss-calm-mxfp4");
    let limits = Limits { shares_pages: true, ..Limits::new(1, CONTEXT, [8, 0]) };
    let mut sequences = Sequences::new(Arc::clone(&layout), limits);
    let (sequence, mut state) = (SequenceId(0), vec![0.0; layout.state_values()]);
    let layers = || (0..layout.layers() as u16).map(LayerId);
    let windows = layers().filter(|layer| layout.kept(*layer) == Kept::Window).count();
    assert!(windows > 0 && windows < layout.layers(), "both kinds of layers");
    let (mut length, most) = (0, layers().map(|layer| sequences.part_tokens(layer)).min().unwrap());
    for tokens in [1, 100, most, 3, most, 60] {
        sequences.places[0].length = Some(length);
        sequences.begin(&[Run { sequence, tokens: &vec![7; tokens] }]).unwrap();
        for layer in layers() {
            for PagePart { page, first, tokens } in page_parts(length, tokens) {
                let block = sequences.block_mut(&mut state, sequence, layer, page);
                let (keys, values) = block.split_at_mut(block.len() / 2);
                for (row, at) in (first..).zip(tokens) {
                    let word = ((length + at) as u32).to_le_bytes();
                    keys[4 * row..][..4].copy_from_slice(&word);
                    values[4 * row..][..4].copy_from_slice(&word.map(|byte| !byte));
                }
            }
            for position in length..length + tokens {
                let (begin, seen) =
                    sequences.blocks(&state, sequence, layer, position..position + 1);
                let window = layout.ring(layer).map_or(usize::MAX, |_| 4);
                for row in (position + 1).saturating_sub(window)..=position {
                    let (block, at) = ((row - begin) / PAGE_TOKENS, 4 * (row % PAGE_TOKENS));
                    let word = (row as u32).to_le_bytes();
                    assert_eq!(seen[block].keys[at..at + 4], word, "{layer:?}: {row}");
                    assert_eq!(seen[block].values[at..at + 4], word.map(|byte| !byte));
                }
            }
        }
        length += tokens;
    }
    assert!(length > PAGE_TOKENS, "more than a page");
}

/// Keys of an indexer in one piece for each layer: those of all pages fill the pieces in their order, each byte once.
#[test]
fn index_keys_of_a_layer_in_one_piece_follow_each_other() {
    for case in ["dsv32-calm-hf", "glm5-calm-hf"] {
        let by_page = layout(case);
        let by_layer = SequenceLayout::clone(&by_page).with_keys_by_layer();
        let (page, key) = (by_page.side().page_bytes(), by_page.side().key_bytes());
        let mut filled = vec![0; by_layer.count(Kept::Paged)];
        for start in (0..2 * page).step_by(key) {
            assert_eq!(by_page.index_region(1, start, key).memory, Memory::IndexPages);
            let Region { place: 1, memory: Memory::Rows { layer, side: 1 }, start, bytes } =
                by_layer.index_region(1, start, key)
            else {
                panic!("{case}: not in the place of values")
            };
            assert_eq!((start, bytes), (filled[layer], key), "{case}: layer {layer}");
            filled[layer] += bytes;
        }
        let wanted = (0..filled.len()).map(|index| by_layer.index_bytes(index, 2 * PAGE_TOKENS));
        assert_eq!(filled, wanted.collect::<Vec<_>>(), "{case}");
    }
}
