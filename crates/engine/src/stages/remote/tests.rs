//! Goal: what is written is read as it was, and no bytes of another process do more than be refused: none panics, none
//! has memory taken for what it only announces. Method: messages of every kind, whole, cut, with bits flipped, and
//! arbitrary bytes.

use std::time::Duration;

use proptest::prelude::*;
use store::cache::StoreCounters;
use text::sampling::{Ranked, Wanted};

use super::bytes::{Reading, Writing};
use super::fault::Fault;
use super::frames::{FIRST_BYTES_MAX, FrameReader, FrameWriter, Kind};
use super::head::HeadOrder;
use super::messages::{Ask, Batch, Beat, Done, Given, Order, Replied, write_numbers};
use super::read_as_any;
use super::terms::{Facts, Limits, Terms};
use crate::backend::{BatchRules, Purpose, Room, SequenceId};
use crate::model::StageTimes;

const LIMITS: Limits = Limits {
    sequences: 3,
    context: 64,
    batch_tokens: 16,
    round_tokens: 4,
    width: 5,
    vocabulary: 50,
};

fn batch() -> Batch {
    Batch {
        ticket: 7,
        purpose: Purpose::Prompt,
        changed: true,
        fault: None,
        runs: vec![(SequenceId(0), vec![1, 2]), (SequenceId(2), vec![3])],
        marks: vec![1],
        kept: vec![(SequenceId(1), 2)],
    }
}

fn residual() -> Vec<f32> {
    (0..15).map(|index| if index == 3 { f32::NAN } else { index as f32 / 3.0 }).collect()
}

fn done() -> Done {
    let time = Duration::from_nanos;
    Done {
        ticket: 7,
        changed: false,
        fault: Some(Fault::Choice(3, 4)),
        marks: vec![(SequenceId(1), Some((9, 4))), (SequenceId(0), None)],
        times: StageTimes {
            attention: time(1),
            delta_net: time(2),
            mixture: time(3),
            head: time(4),
        },
        room: Room { pages: 3, states: usize::MAX },
    }
}

fn orders() -> Vec<Order> {
    vec![
        Order::Nothing,
        Order::Create(None),
        Order::Create(Some(SequenceId(2))),
        Order::Remove(SequenceId(2)),
        Order::Snapshot(SequenceId(1)),
        Order::Restore(SequenceId(1), (8, 20)),
        Order::SnapshotPages(SequenceId(0), 30),
        Order::KeepFirst(SequenceId(2), 3),
        Order::Recover(vec![SequenceId(0), SequenceId(2)]),
        Order::Counters,
        Order::Room,
        Order::Head(None, HeadOrder::Expect(vec![0, 3])),
        Order::Head(Some(0), HeadOrder::Logits(vec![1], true)),
        Order::Head(Some(7), HeadOrder::MostLikely(15)),
        Order::Head(Some(7), HeadOrder::Rank(2, Wanted::Top)),
        Order::Head(Some(7), HeadOrder::Rank(2, Wanted::Weights { temperature: 0.5, least: 3 })),
        Order::Head(Some(7), HeadOrder::RankedLogits(40, 10)),
    ]
}

fn counters() -> Box<StoreCounters> {
    let mut counters = Box::<StoreCounters>::default();
    counters.decode.hits = 5;
    counters.draft.requests = 6;
    counters.prefill.routing_us = 7;
    (counters.bytes_read, counters.device.cache_bytes) = (8, 9);
    counters
}

fn given() -> Vec<Given> {
    vec![
        Given::Done,
        Given::Sequence(SequenceId(1)),
        Given::Part((4, 5)),
        Given::Pages(6),
        Given::Counters(counters()),
        Given::Rows(vec![1.0, 2.5]),
        Given::Chosen(Some(4)),
        Given::Chosen(None),
        Given::Ranked(None),
        Given::Ranked(Some(Ranked { top: vec![(3, 0.5)], sums: vec![1, u64::MAX] })),
        Given::Failed(Fault::Other("a device".to_owned())),
        Given::Failed(Fault::Unread("a disk".to_owned())),
    ]
}

fn terms() -> Terms {
    Terms {
        build: "0.1".to_owned(),
        contents: 3,
        device: "cpu".to_owned(),
        arithmetic: "f16".to_owned(),
        model_layers: 4,
        layers: 2..4,
        head: true,
        limits: LIMITS,
    }
}

fn facts() -> Facts {
    let rules = BatchRules { round_tokens: usize::MAX, spins: true, ..BatchRules::default() };
    let room = Room { pages: 1, states: 2 };
    Facts { rules, places: 3, shares_pages: true, batch_tokens: 9, state_bytes: 40, room }
}

fn beat() -> Beat {
    let (busy, waited) = (Duration::from_millis(3), Duration::from_millis(4));
    let (experts, layers) = (*counters(), vec![(7, 2), (9, 0)]);
    Beat { pulse: 1, batches: 2, busy, waited, experts, layers }
}

fn written(fill: impl FnOnce(&mut Writing)) -> Vec<u8> {
    let mut to = Writing::default();
    fill(&mut to);
    to.bytes
}

/// A message of every kind, and of every case of it.
fn messages() -> Vec<Vec<u8>> {
    let mut all = vec![
        written(|to| batch().write(&residual(), to)),
        written(|to| {
            let fault = Some(Fault::Panic("no".to_owned()));
            Batch { fault, ..batch() }.write(&[], to);
        }),
        written(|to| done().write(&residual(), to)),
        written(|to| beat().write(to)),
        written(|to| write_numbers(&[1, 2, u64::MAX], to)),
        written(|to| terms().write(to)),
        written(|to| facts().write(to)),
    ];
    for order in orders() {
        let touched = vec![SequenceId(1)];
        all.push(written(|to| Ask { number: 3, touched, order }.write(to)));
    }
    for given in given() {
        let room = Room { pages: 1, states: 2 };
        all.push(written(|to| Replied { number: 3, given, room }.write(to)));
    }
    all
}

/// Writes what the fuzzer begins with.
#[test]
#[ignore = "writes fuzz/corpus"]
fn corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/stage-message");
    std::fs::create_dir_all(folder).expect("a folder");
    for (index, message) in messages().iter().enumerate() {
        std::fs::write(format!("{folder}/{index:02}"), message).expect("written");
    }
}

#[test]
fn what_is_written_is_read_as_it_was() {
    let mut into = Vec::new();
    let bytes = written(|to| batch().write(&residual(), to));
    assert_eq!(Batch::read(Reading::new(&bytes), &LIMITS, &mut into), Ok(batch()));
    let bits = |values: &[f32]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&into), bits(&residual()), "to the bit");
    let bytes = written(|to| done().write(&[], to));
    assert_eq!(Done::read(Reading::new(&bytes), &LIMITS, &mut into), Ok(done()));
    for order in orders() {
        let ask = Ask { number: 5, touched: vec![SequenceId(0), SequenceId(2)], order };
        let bytes = written(|to| ask.write(to));
        assert_eq!(Ask::read(Reading::new(&bytes), &LIMITS), Ok(ask));
    }
    for given in given() {
        let replied = Replied { number: 6, given, room: Room { pages: 7, states: 8 } };
        let bytes = written(|to| replied.write(to));
        assert_eq!(Replied::read(Reading::new(&bytes), &LIMITS), Ok(replied));
    }
    let bytes = written(|to| beat().write(to));
    assert_eq!(Beat::read(Reading::new(&bytes)), Ok(beat()));
    let bytes = written(|to| facts().write(to));
    assert_eq!(Facts::read(Reading::new(&bytes)), Ok(facts()));
    let bytes = written(|to| terms().write(to));
    assert_eq!(Terms::read(Reading::new(&bytes)).expect("terms").0, terms());
}

#[test]
fn a_message_that_is_cut_or_goes_on_does_no_harm() {
    for message in messages() {
        assert!(read_as_any(&message) >= 1, "{message:?}");
        // What is cut may be whole as another kind.
        for end in 0..message.len() {
            read_as_any(&message[..end]);
        }
        let longer: Vec<u8> = message.iter().copied().chain([0]).collect();
        read_as_any(&longer);
    }
}

#[test]
fn what_names_nothing_is_refused() {
    let read = |batch: &Batch, residual: &[f32]| {
        let bytes = written(|to| batch.write(residual, to));
        Batch::read(Reading::new(&bytes), &LIMITS, &mut Vec::new())
    };
    let wrong = [
        Batch { runs: vec![(SequenceId(3), vec![1, 2, 3])], ..batch() },
        Batch { runs: vec![(SequenceId(0), vec![]), (SequenceId(1), vec![1, 2, 3])], ..batch() },
        Batch { runs: vec![(SequenceId(0), vec![1; 17])], ..batch() },
        Batch { marks: vec![2], ..batch() },
        Batch { kept: vec![(SequenceId(9), 1)], ..batch() },
    ];
    assert!(read(&batch(), &residual()).is_ok());
    assert!(read(&batch(), &residual()[..14]).is_err(), "a value is missing");
    assert!(read(&batch(), &[0.0; 16]).is_err(), "one too many");
    for batch in wrong {
        let residual = vec![0.0; batch.tokens() * LIMITS.width];
        assert!(read(&batch, &residual).is_err(), "{batch:?}");
    }
}

/// A reader of these bytes.
fn reader(bytes: Vec<u8>) -> FrameReader {
    FrameReader::new(Box::new(std::io::Cursor::new(bytes)))
}

#[test]
fn a_frame_takes_no_memory_for_what_it_announces() {
    for length in [0, FIRST_BYTES_MAX + 1, u32::MAX as usize] {
        let mut bytes = (length as u32).to_le_bytes().to_vec();
        bytes.push(Kind::Batch as u8);
        assert!(reader(bytes).next().is_err(), "{length}");
    }
    let mut short = 1000u32.to_le_bytes().to_vec();
    short.extend([Kind::Batch as u8, 1, 2, 3]);
    let error = reader(short).next().expect_err("cut");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    for kind in (0..=255).filter(|kind| Kind::ALL.iter().all(|it| *it as u8 != *kind)) {
        assert!(reader(vec![1, 0, 0, 0, kind]).next().is_err(), "{kind}");
    }
}

#[test]
fn frames_follow_each_other() {
    let sent = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    struct To(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl std::io::Write for To {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("a lock").extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut writer = FrameWriter::new(Box::new(To(std::sync::Arc::clone(&sent))));
    for kind in Kind::ALL {
        writer.send(kind, |to| to.long(kind as u64)).expect("sent");
    }
    let mut reader = reader(sent.lock().expect("a lock").clone());
    for kind in Kind::ALL {
        let (found, content) = reader.next().expect("a message");
        assert_eq!((found, content), (kind, &(kind as u64).to_le_bytes()[..]));
    }
    assert!(reader.next().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_as_any(&bytes);
        let mut reader = reader(bytes);
        while reader.next().is_ok() {}
    }

    #[test]
    fn messages_with_wrong_bytes_are_refused_or_read(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        more in proptest::collection::vec(any::<u8>(), 0..8),
    ) {
        let all = messages();
        let mut message = which.get(&all).clone();
        let at = at.index(message.len());
        message.splice(at..(at + more.len() + 1).min(message.len()), more.into_iter().chain([byte]));
        read_as_any(&message);
    }
}
