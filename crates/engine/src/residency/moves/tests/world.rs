//! A device whose memory is a vector, with all that is above it: files, store, placement, misses and moves.
//!
//! Copies end late, at a look chosen by chance, and move their bytes only then: a slot that is written or a host copy
//! that is given back too early shows as wrong bytes. A copy into a slot spoils it at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use kernels::format::{Encoding, FloatType};
use store::cache::{Admission, Phase, SlotBudget, StorageMode, StoreOptions};
use store::format::{
    Checkpoint, CheckpointFile, ExpertExtents, Extent, FileId, LayerExperts, ProjectionShape,
    SourceKind,
};
use store::io::{FaultPlan, IoEngine, Simulator};
use tempfile::TempDir;

use super::super::*;
use crate::residency::port::{Found, Request, RunningStep};
use crate::residency::{Dimensions, Residency};

/// Bytes of a record and of a slot.
const RECORD: usize = 4096;
/// What a slot has while it is copied into.
const SPOILED: u64 = u64::MAX;
/// Address of the first slot in device memory; those of the host tier are above.
const DEVICE: u64 = 1 << 30;
/// As a prompt's waves (`STAGING_RECORDS / 2`).
const WAVE: usize = 32;

/// Random numbers of a seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

/// Shape and room of a world.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) layers: usize,
    pub(super) experts: usize,
    /// Experts of a step and layer, at most.
    pub(super) per_step: usize,
    pub(super) device_slots: usize,
    pub(super) host_slots: usize,
    /// Looks until a copy ends, below this number.
    pub(super) late: usize,
    /// Records of the next layer that a step prefetches in each, at random.
    pub(super) guesses: usize,
    /// Layers whose experts are known before a step begins, from the first on.
    pub(super) certain: usize,
    /// Copies out of slots that cannot be begun, of a hundred.
    pub(super) broken: usize,
}

/// Slots of the device: the record that each has, by its first word; and copies that have not ended.
struct Memory {
    slots: Vec<u64>,
    dice: Dice,
    late: usize,
    broken: usize,
    /// Calls since the last step or prompt, where they are recorded.
    calls: Option<Vec<String>>,
}

impl Memory {
    fn note(&mut self, call: impl FnOnce() -> String) {
        if let Some(calls) = &mut self.calls {
            calls.push(call());
        }
    }
}

pub(super) struct Carry {
    memory: Rc<RefCell<Memory>>,
}

pub(super) struct Filling {
    slot: u32,
    word: u64,
    looks: RefCell<usize>,
}

pub(super) struct Save {
    slot: u32,
    to: Admission,
    looks: RefCell<usize>,
}

impl Carry {
    fn looks(&self) -> RefCell<usize> {
        let mut memory = self.memory.borrow_mut();
        let late = memory.late;
        RefCell::new(memory.dice.below(late))
    }
}

/// One look less; true when none is left.
fn look(looks: &RefCell<usize>) -> bool {
    let left = *looks.borrow();
    *looks.borrow_mut() = left.saturating_sub(1);
    left == 0
}

impl DeviceMemory for Carry {
    type Filling = Filling;
    type Saving = Save;

    fn load(&mut self, from: &Held, slot: u32, _key: u32) -> Result<(), EngineError> {
        self.memory.borrow_mut().slots[slot as usize] = first_word(from.bytes());
        Ok(())
    }

    fn fill(&mut self, from: &Held, slot: u32, _key: u32) -> Result<Filling, EngineError> {
        let mut memory = self.memory.borrow_mut();
        memory.slots[slot as usize] = SPOILED;
        memory.note(|| format!("fill {slot} with {}", first_word(from.bytes()) - 1));
        drop(memory);
        Ok(Filling { slot, word: first_word(from.bytes()), looks: self.looks() })
    }

    fn is_filled(&mut self, filling: &Filling) -> Result<bool, EngineError> {
        let ended = look(&filling.looks);
        let mut memory = self.memory.borrow_mut();
        memory.note(|| format!("filled {} {ended}", filling.slot));
        if ended {
            memory.slots[filling.slot as usize] = filling.word;
        }
        Ok(ended)
    }

    fn save(&mut self, slot: u32, to: Admission) -> Result<Save, EngineError> {
        let mut memory = self.memory.borrow_mut();
        let broken = memory.dice.below(100) < memory.broken;
        memory.note(|| format!("save {slot}{}", if broken { " refused" } else { "" }));
        if broken {
            return Err(EngineError::Request("a copy that cannot be begun".to_owned()));
        }
        drop(memory);
        Ok(Save { slot, to, looks: self.looks() })
    }

    fn is_saved(&mut self, saving: &Save) -> Result<bool, EngineError> {
        let ended = look(&saving.looks);
        self.memory.borrow_mut().note(|| format!("saved {} {ended}", saving.slot));
        Ok(ended)
    }

    fn finish(&mut self, mut saving: Save) -> Result<Admission, EngineError> {
        let mut memory = self.memory.borrow_mut();
        let word = memory.slots[saving.slot as usize];
        memory.note(|| format!("finish {} of {}", saving.slot, word.wrapping_sub(1)));
        saving
            .to
            .bytes()
            .chunks_exact_mut(8)
            .for_each(|to| to.copy_from_slice(&word.to_le_bytes()));
        Ok(saving.to)
    }

    fn wait_for(&mut self, filling: &Filling) -> Result<(), EngineError> {
        let mut memory = self.memory.borrow_mut();
        memory.note(|| format!("wait for {}", filling.slot));
        memory.slots[filling.slot as usize] = filling.word;
        Ok(())
    }

    fn relocate(&mut self, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        let mut memory = self.memory.borrow_mut();
        memory.note(|| format!("relocate {pairs:?}"));
        for &(from, to) in pairs {
            memory.slots[to as usize] = memory.slots[from as usize];
        }
        Ok(())
    }
}

fn first_word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// FNV-1a of 64 bits.
pub(super) fn digest(bytes: impl Iterator<Item = u8>) -> u64 {
    let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

/// Every word of a record.
fn word_of(key: u32) -> u64 {
    u64::from(key) + 1
}

/// A checkpoint whose records are made of one word each.
fn checkpoint(root: &Path, layers: usize, experts: usize) -> Checkpoint {
    let mut files = Vec::new();
    let mut described = Vec::new();
    for layer in 0..layers {
        let path = root.join(format!("layer_{layer:02}.bin"));
        let words = (0..experts).map(|expert| word_of((layer * experts + expert) as u32));
        let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes().repeat(RECORD / 8)).collect();
        std::fs::write(&path, &bytes).unwrap();
        let length = bytes.len() as u64;
        files.push(CheckpointFile {
            path,
            length,
            modified_ns: 0,
            changed_ns: 0,
            header_checksum: 0,
        });
        let extents = |expert: usize| {
            let piece = |index: usize| Extent {
                file: FileId(layer as u32),
                offset: (expert * RECORD + index * RECORD / 4) as u64,
                length: RECORD as u64 / 4,
            };
            ExpertExtents { weight: [0, 1, 2].map(piece), scales_biases: [None; 3] }
        };
        let encoding = Encoding::Float(FloatType::Bf16);
        let shapes = [ProjectionShape { rows: 16, columns: 32, encoding }; 3];
        let experts = (0..experts).map(extents).collect();
        described.push(Some(LayerExperts { shapes, experts }));
    }
    Checkpoint {
        kind: SourceKind::Native,
        root: root.to_path_buf(),
        files,
        config: store::format::Configuration::default(),
        generation_config: None,
        tokenizer: None,
        tokenizer_config: None,
        chat_template: None,
        tensors: BTreeMap::new(),
        experts: described,
        row_tables: BTreeMap::new(),
        norms_are_zero_centred: false,
        head: store::format::Head::Absent,
        skipped: Vec::new(),
        unused: Vec::new(),
        input_majors: Default::default(),
        pack: None,
    }
}

pub(super) struct World {
    pub(super) shape: Shape,
    pub(super) residency: Residency<Carry>,
    memory: Rc<RefCell<Memory>>,
    _files: TempDir,
}

/// A step: in each layer it reads what the table names, asks for the rest and waits.
struct Step<'a> {
    memory: &'a RefCell<Memory>,
    words: Vec<u64>,
    uses: &'a [Vec<u32>],
    layer: usize,
    asked: Vec<Request>,
    waiting: Vec<u32>,
    answered: Vec<(u32, Option<u64>)>,
    experts: usize,
    guesses: usize,
    /// Records named in the host tier that the step reads, with the words.
    read_from_host: Vec<(u32, u64)>,
}

impl Step<'_> {
    fn enter(&mut self) {
        let next = ((self.layer + 1) * self.experts) as u32;
        for _ in 0..self.guesses {
            let key = next + self.memory.borrow_mut().dice.below(self.experts) as u32;
            if self.words.get(key as usize) == Some(&0) {
                self.asked.push(Request { key, prefetched: true });
            }
        }
        for &key in &self.uses[self.layer] {
            match self.words[key as usize] {
                0 => {
                    self.asked.push(Request { key, prefetched: false });
                    self.waiting.push(key);
                }
                word if word < DEVICE << 1 => {
                    let slot = ((word - DEVICE) / RECORD as u64) as usize;
                    let found = self.memory.borrow().slots[slot];
                    assert_eq!(found, word_of(key), "the slot that the table names has the record");
                }
                word => self.read_from_host.push((key, word)),
            }
        }
    }
}

impl RunningStep for Step<'_> {
    fn take_request(&mut self) -> Option<Request> {
        self.asked.pop()
    }

    fn copy_ahead(&mut self, _layer: LayerId, _key: u32, _held: &Held) {}

    fn answer(&mut self, key: u32, found: Option<Found<'_>>) {
        self.answered.push((key, found.map(|found| found.address)));
        self.waiting.retain(|&waiting| waiting != key);
    }

    fn is_done(&mut self) -> Result<bool, EngineError> {
        if !self.waiting.is_empty() || !self.asked.is_empty() {
            return Ok(false);
        }
        self.layer += 1;
        if self.layer == self.uses.len() {
            return Ok(true);
        }
        self.enter();
        Ok(false)
    }
}

impl World {
    /// Files, a store that reads them (with faults where there is a plan), and slots filled evenly over the layers.
    pub(super) fn open(shape: Shape, faults: Option<FaultPlan>, seed: u64) -> Self {
        let files = tempfile::tempdir().unwrap();
        let checkpoint = Arc::new(checkpoint(files.path(), shape.layers, shape.experts));
        let mut options = StoreOptions::new(StorageMode::Budget, shape.per_step);
        options.slots = SlotBudget::Slots(shape.host_slots);
        options.prefill_part = crate::residency::PREFILL_PART;
        options.io = IoEngine::Pread;
        let faulty = faults.is_some();
        options.storage = faults.map(|plan| Box::new(Simulator::new(plan, seed)) as _);
        let store = ExpertStore::open(checkpoint, options).unwrap();
        let memory = Memory {
            slots: vec![SPOILED; shape.device_slots],
            dice: Dice(seed),
            late: shape.late,
            broken: shape.broken,
            calls: None,
        };
        let memory = Rc::new(RefCell::new(memory));
        let addresses = (0..shape.device_slots as u64).map(|slot| DEVICE + slot * RECORD as u64);
        let dimensions = Dimensions {
            layers: shape.layers,
            experts: shape.experts,
            per_layer: shape.per_step,
            slots: addresses.collect(),
            bases: vec![1 << 40],
            can_move: true,
        };
        let device = Carry { memory: Rc::clone(&memory) };
        let residency = Residency::new(Arc::new(store), device, dimensions);
        let mut world = Self { residency, memory, shape, _files: files };
        if faulty {
            world.load_what_can_be_read();
        } else {
            world.residency.load(|_| {}).unwrap();
        }
        world
    }

    /// Records the calls on the device from now on.
    pub(super) fn record(&mut self) {
        self.memory.borrow_mut().calls = Some(Vec::new());
    }

    /// What was called since this was asked last.
    pub(super) fn calls(&mut self) -> Vec<String> {
        self.memory.borrow_mut().calls.replace(Vec::new()).unwrap_or_default()
    }

    fn load_what_can_be_read(&mut self) {
        let Residency { store, placement, .. } = &mut self.residency;
        let mut slot = 0;
        for layer in 0..self.shape.layers {
            let (slots, layers) = (self.shape.device_slots, self.shape.layers);
            let count = slots / layers + usize::from(layer < slots % layers);
            let id = LayerId(layer as u16);
            for expert in (0..count as u16).map(ExpertId) {
                let visit = store.visit(id, &[expert], Phase::Prefill).unwrap();
                let key = placement.key(id, expert);
                if visit.wait(0).is_ok() {
                    placement.place(Fill { slot, key });
                    self.memory.borrow_mut().slots[slot as usize] = word_of(key);
                    store.mark_on_device(std::iter::once((id, expert, true)));
                    slot += 1;
                }
            }
        }
    }

    pub(super) fn key(&self, layer: usize, expert: usize) -> u32 {
        (layer * self.shape.experts + expert) as u32
    }

    /// One step with the given keys of each layer, as the backend does it: the step before ends, what is between steps
    /// is done, the step runs while the policy learns of the one before, and is served.
    pub(super) fn step(&mut self, uses: &[Vec<u32>]) -> Result<usize, EngineError> {
        self.residency.begin_step()?;
        self.check();
        let words = self.residency.placement.words().to_vec();
        if let Some(words) = self.residency.changed_words() {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            self.memory.borrow_mut().note(|| format!("table {:016x}", digest(bytes)));
        }
        let experts = self.shape.experts;
        let expert = move |key: &u32| ExpertId((*key as usize % experts) as u16);
        let certain = uses.iter().enumerate().take(self.shape.certain);
        let certain =
            certain.map(|(layer, keys)| (LayerId(layer as u16), keys.iter().map(expert).collect()));
        self.residency.read_certain(&certain.collect::<Vec<_>>());
        self.residency.learn();
        let memory = Rc::clone(&self.memory);
        let mut step = Step {
            memory: &memory,
            words: words.clone(),
            uses,
            layer: 0,
            asked: Vec::new(),
            waiting: Vec::new(),
            answered: Vec::new(),
            experts: self.shape.experts,
            guesses: self.shape.guesses,
            read_from_host: Vec::new(),
        };
        step.enter();
        let served = self.residency.serving().1.serve(&mut step);
        let Step { answered, read_from_host, .. } = step;
        // Reads of one layer end in any order.
        let mut answers: Vec<_> = answered.iter().collect();
        answers.sort_by_key(|(key, _)| *key);
        answers.iter().for_each(|answer| self.memory.borrow_mut().note(|| format!("{answer:x?}")));
        // What is given back in a step are records of layers that it has passed.
        let last = answered.iter().map(|(key, _)| self.residency.placement.record(*key).0).max();
        for (key, word) in words.iter().enumerate().filter(|(_, word)| **word >= DEVICE << 1) {
            let kept = self.residency.placement.host_address(key as u32) == Some(*word);
            let layer = self.residency.placement.record(key as u32).0;
            assert!(kept || last.is_some_and(|last| layer < last), "given back while named");
        }
        for (key, word) in read_from_host {
            self.check_host(key, word);
        }
        let misses = served?;
        for &(key, address) in &answered {
            self.check_host(key, address.expect("the step did not fail"));
        }
        self.residency.end_step(|layer| uses[layer].iter().map(expert));
        Ok(misses)
    }

    /// Drafts that chose these keys: what has a word is there. Gives the keys without one.
    pub(super) fn draft(&mut self, chosen: &[u32]) -> Vec<u32> {
        self.residency.begin_draft();
        self.check();
        let words = self.residency.placement.words().to_vec();
        for &key in chosen {
            match words[key as usize] {
                0 => {}
                word if word >= DEVICE << 1 => self.check_host(key, word),
                word => {
                    let slot = (word - DEVICE) as usize / RECORD;
                    assert_eq!(self.memory.borrow().slots[slot], word_of(key), "record {key}");
                }
            }
        }
        let experts = self.shape.experts;
        let expert = move |key: &u32| ExpertId((*key as usize % experts) as u16);
        self.residency.end_draft(chosen.iter().map(expert));
        chosen.iter().copied().filter(|&key| words[key as usize] == 0).collect()
    }

    /// A record of the host tier lies where a word says, unless its slot went to another since the step read it.
    fn check_host(&self, key: u32, word: u64) {
        let (layer, expert) = self.residency.placement.record(key);
        if let Some(held) = self.residency.store.hold(layer, expert) {
            let address = self.residency.bases[0] + held.offset() as u64;
            if self.residency.placement.in_host(key) {
                assert_eq!(address, word, "record {key} does not move");
            }
            let words = held.bytes().chunks_exact(8).map(first_word);
            assert!(words.into_iter().all(|word| word == word_of(key)), "bytes of record {key}");
        }
    }

    /// Between steps and prompts: the first `slots` slots have memory; what the others have is lost.
    pub(super) fn resize(&mut self, slots: usize) -> Result<(), EngineError> {
        if slots < self.residency.slots() {
            self.residency.shrink(slots)?;
            self.memory.borrow_mut().slots[slots..].fill(SPOILED);
        } else {
            self.residency.grow(slots);
        }
        let mut held = self.residency.placement.held_slots();
        assert!(held.all(|(slot, _)| (slot as usize) < slots));
        self.check();
        Ok(())
    }

    /// A prompt whose layers each need the given experts. `give_up` stops it in that layer, half-way.
    pub(super) fn prompt(
        &mut self,
        wanted: &[Vec<ExpertId>],
        give_up: Option<usize>,
    ) -> Result<(), EngineError> {
        self.prompt_with(wanted, give_up, &mut |_| Ok(()))
    }

    /// As [`World::prompt`], put aside after each layer for what `between` does.
    pub(super) fn prompt_with(
        &mut self,
        wanted: &[Vec<ExpertId>],
        give_up: Option<usize>,
        between: &mut dyn FnMut(&mut Self) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for (layer, wanted) in wanted.iter().enumerate() {
            let id = LayerId(layer as u16);
            self.residency.begin_prompt_layer()?;
            self.check();
            let (_, missing) = self.residency.split(id, wanted);
            let store = Arc::clone(&self.residency.store);
            let mut visit = store.visit(id, &missing, Phase::Prefill)?;
            if layer + 1 < self.shape.layers && give_up.is_none() {
                self.residency.read_ahead(LayerId(layer as u16 + 1));
            }
            let order = visit.order().to_vec();
            let wave = WAVE.min(self.shape.host_slots / 2);
            for (turn, members) in order.chunks(wave).enumerate() {
                for &member in members {
                    let cancelled = give_up == Some(layer) && turn == order.len() / wave / 2;
                    visit.wait_while(member, &|| !cancelled)?;
                    let held = self.residency.store.hold(id, missing[member]).unwrap();
                    let key = self.residency.placement.key(id, missing[member]);
                    assert_eq!(first_word(held.bytes()), word_of(key));
                }
                members.iter().for_each(|&member| visit.release(member));
            }
            for expert in wanted {
                let key = self.residency.placement.key(id, *expert);
                if let Some(slot) = self.residency.placement.held_slots().find(|held| held.1 == key)
                {
                    assert_eq!(self.memory.borrow().slots[slot.0 as usize], word_of(key));
                }
            }
            drop(visit);
            between(self)?;
        }
        Ok(())
    }

    /// Nothing that a slot has is held in the host tier as well, and sources of copies are held.
    fn check(&self) {
        for (_, key) in self.residency.placement.held_slots() {
            assert!(
                !self.residency.placement.in_host(key),
                "a host copy of record {key} is kept for nothing"
            );
        }
        for fill in self.residency.moves.under_way() {
            assert!(
                self.residency.placement.in_host(fill.key)
                    && self.residency.placement.is_filling(fill.key)
            );
        }
    }

    /// Gives everything back: then every slot of the host tier takes a record again.
    pub(super) fn end(mut self) {
        let (moves, mut tiers, _, device) = self.residency.parts();
        moves.settle(&mut tiers, device).unwrap();
        for key in 0..self.residency.placement.words().len() as u32 {
            drop(self.residency.placement.remove_host(key));
        }
        let mut left = self.shape.host_slots;
        let mut visits = Vec::new();
        for layer in 0..self.shape.layers {
            let count = left.min(self.shape.experts);
            let all: Vec<ExpertId> = (0..count as u16).map(ExpertId).collect();
            visits.push(
                self.residency.store.visit(LayerId(layer as u16), &all, Phase::Decode).unwrap(),
            );
            left -= count;
        }
        let members = visits.iter().flat_map(|visit| (0..visit.len()).map(move |m| (visit, m)));
        for (visit, member) in members {
            // A read may fail where the files are made to; a lost slot would leave this without an end.
            let _ = visit.wait(member);
        }
    }
}
