//! What the first process and a stage have to agree on before a token is computed, and the first messages.

use std::io;
use std::ops::Range;
use std::time::Duration;

use thiserror::Error;

use super::bytes::{Malformed, Reading, Writing};
use super::frames::{Channel, FrameReader, FrameWriter, Kind, within};
use crate::backend::{Backend, BatchRules, PAGE_TOKENS, Room};

/// The version of the messages.
pub const PROTOCOL: u32 = 1;
/// Most rows of logits of one message.
const LOGIT_ROWS: usize = 64;
/// How long the first message may take.
const FIRST: Duration = Duration::from_secs(10);

/// What must be equal on both sides, so that answers are those of one process, and how much there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Version and commit of the program.
    pub build: String,
    /// A number of all that the model is made of ([`store::format::Checkpoint::contents`]).
    pub contents: u64,
    /// The kind of device, its kernels and its model, as they decide last bits.
    pub device: String,
    /// What else decides bits: types of keys and values, arithmetic, experts per token, routing.
    pub arithmetic: String,
    /// Layers of the model.
    pub model_layers: usize,
    /// Layers of the stage.
    pub layers: Range<usize>,
    /// Whether the stage has what is behind the last layer, the norm and the head.
    pub head: bool,
    /// Sizes; those of a stage are at least those of the first process, which cuts prompts to what all take.
    pub limits: Limits,
}

/// How much there may be at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub context: usize,
    /// Tokens of a batch.
    pub batch_tokens: usize,
    /// Tokens of a round.
    pub round_tokens: usize,
    /// Values of the residual stream of a token; equal on both sides.
    pub width: usize,
    /// Tokens that there are; equal on both sides.
    pub vocabulary: usize,
}

impl Limits {
    /// Most logits of a message: rows of a few tokens.
    pub(super) fn logits(&self) -> usize {
        LOGIT_ROWS.saturating_mul(self.vocabulary)
    }

    /// Bytes of the longest message.
    pub(super) fn message_bytes(&self) -> usize {
        let token = self.width.saturating_mul(4).saturating_add(8);
        let batch = self.batch_tokens.saturating_mul(token);
        let longest = batch.max(self.logits().saturating_mul(4));
        longest.saturating_add(super::frames::FIRST_BYTES_MAX * 2)
    }
}

/// What of a stage's device the first process has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub(in crate::stages) rules: BatchRules,
    pub(in crate::stages) places: usize,
    pub(in crate::stages) shares_pages: bool,
    /// Tokens of a batch that the stage takes.
    pub(in crate::stages) batch_tokens: usize,
    /// Bytes of the states of a snapshot.
    pub(in crate::stages) state_bytes: usize,
    pub(in crate::stages) room: Room,
}

/// Why a stage and the first process do not work together.
#[derive(Debug, Error)]
pub enum JoinError {
    /// They differ in something that must be equal.
    #[error("{what}: {first} in the first process, {stage} in the stage{}", advice(what))]
    Differs {
        /// In what.
        what: String,
        /// What the first process has.
        first: String,
        /// What the stage has.
        stage: String,
    },
    /// The connection failed or ended.
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    /// The other side speaks another protocol.
    #[error("what answers is no stage of flashmoe: {0}")]
    Protocol(&'static str),
}

impl From<Malformed> for JoinError {
    fn from(Malformed(why): Malformed) -> Self {
        Self::Protocol(why)
    }
}

/// What to do about a difference.
fn advice(what: &str) -> &'static str {
    match what {
        "build" => ": install the same on both",
        "contents of the model" => ": copy the same files to both",
        "layers" => ": the stage's --layers and the file of --stages name the same",
        _ if what.starts_with("--") => ": give both the same",
        _ => "",
    }
}

impl Terms {
    pub(super) fn write(&self, to: &mut Writing) {
        to.word(PROTOCOL);
        to.text(&self.build);
        to.long(self.contents);
        to.text(&self.device);
        to.text(&self.arithmetic);
        let Limits { sequences, context, batch_tokens, round_tokens, width, vocabulary } =
            self.limits;
        let Range { start, end } = self.layers;
        let sizes =
            [self.model_layers, start, end, sequences, context, batch_tokens, round_tokens, width];
        let sizes = sizes.into_iter().chain([vocabulary]);
        sizes.chain([PAGE_TOKENS]).for_each(|size| to.size(size));
        to.flag(self.head);
    }

    /// Terms of another process: those of this protocol alone can be read.
    ///
    /// # Errors
    /// The protocol's version, or what is none of it.
    pub(super) fn read(mut from: Reading<'_>) -> Result<(Self, usize), JoinError> {
        let version = from.word()?;
        if version != PROTOCOL {
            let (first, stage) = (version.to_string(), PROTOCOL.to_string());
            return Err(JoinError::Differs { what: "protocol".to_owned(), first, stage });
        }
        let (build, contents) = (from.text()?, from.long()?);
        let (device, arithmetic) = (from.text()?, from.text()?);
        let mut size = || from.size();
        let (model_layers, layers) = (size()?, size()?..size()?);
        let limits = Limits {
            sequences: size()?,
            context: size()?,
            batch_tokens: size()?,
            round_tokens: size()?,
            width: size()?,
            vocabulary: size()?,
        };
        let (page, head) = (size()?, from.flag()?);
        from.end()?;
        let terms =
            Self { build, contents, device, arithmetic, model_layers, layers, head, limits };
        Ok((terms, page))
    }

    /// Whether a stage of these terms serves a first process of others.
    ///
    /// # Errors
    /// The first that differs.
    fn check(&self, first: &Self, page: usize) -> Result<(), JoinError> {
        let differs = |what: &str, first: String, stage: String| {
            Err(JoinError::Differs { what: what.to_owned(), first, stage })
        };
        let shown = |layers: &Range<usize>| format!("{}:{}", layers.start, layers.end);
        let contents = |terms: &Self| format!("{:016x}", terms.contents);
        let (own, their) = (&self.limits, &first.limits);
        let equal = [
            ("build", first.build.clone(), self.build.clone()),
            ("contents of the model", contents(first), contents(self)),
            ("device", first.device.clone(), self.device.clone()),
            ("arithmetic", first.arithmetic.clone(), self.arithmetic.clone()),
            ("layers of the model", first.model_layers.to_string(), self.model_layers.to_string()),
            ("layers", shown(&first.layers), shown(&self.layers)),
            ("tokens that there are", their.vocabulary.to_string(), own.vocabulary.to_string()),
            ("head in the stage", first.head.to_string(), self.head.to_string()),
            ("tokens of a page", page.to_string(), PAGE_TOKENS.to_string()),
            ("width of the residual stream", their.width.to_string(), own.width.to_string()),
        ];
        for (what, first, stage) in equal {
            if first != stage {
                return differs(what, first, stage);
            }
        }
        let least = [
            ("--sequences", their.sequences, own.sequences),
            ("--context", their.context, own.context),
            ("--draft (tokens of a round)", their.round_tokens, own.round_tokens),
        ];
        for (what, first, stage) in least {
            if first > stage {
                return differs(what, first.to_string(), stage.to_string());
            }
        }
        Ok(())
    }
}

impl Facts {
    /// What a device says of itself that takes batches of so many tokens.
    pub fn of(backend: &dyn Backend, batch_tokens: usize) -> Self {
        let (sequences, rules) = (backend.sequences(), backend.rules());
        let view = sequences.view();
        Self {
            rules,
            places: view.places(),
            shares_pages: view.shares_pages(),
            batch_tokens,
            state_bytes: sequences.layout().state_bytes(),
            room: view.room(),
        }
    }

    pub(super) fn write(&self, to: &mut Writing) {
        let BatchRules { cut_tokens, answers_replay, joint_tokens, round_tokens, spins: _ } =
            self.rules;
        let Room { pages, states } = self.room;
        let sizes = [
            cut_tokens,
            joint_tokens,
            round_tokens,
            self.places,
            self.state_bytes,
            self.batch_tokens,
        ];
        sizes.into_iter().chain([pages, states]).for_each(|size| to.size(size));
        to.flag(answers_replay);
        to.flag(self.shares_pages);
    }

    pub(super) fn read(mut from: Reading<'_>) -> Result<Self, Malformed> {
        let mut size = || from.size();
        let (cut_tokens, joint_tokens, round_tokens) = (size()?, size()?, size()?);
        let (places, state_bytes, batch_tokens) = (size()?, size()?, size()?);
        let room = Room { pages: size()?, states: size()? };
        let (answers_replay, shares_pages) = (from.flag()?, from.flag()?);
        from.end()?;
        // Its own thread may spin or not: who waits for it here decides by the devices here.
        let spins = true;
        let rules = BatchRules { cut_tokens, answers_replay, joint_tokens, round_tokens, spins };
        Ok(Self { rules, places, shares_pages, batch_tokens, state_bytes, room })
    }
}

/// A connection whose sides have agreed.
pub(super) struct Agreed {
    pub(super) reader: FrameReader,
    pub(super) writer: FrameWriter,
    pub(super) end: std::sync::Arc<dyn Fn() + Send + Sync>,
    pub(super) look: std::sync::Arc<dyn Fn(Duration) + Send + Sync>,
    pub(super) address: String,
    pub(super) limits: Limits,
    /// Whether the stage has the head.
    pub(super) head: bool,
}

/// The first process's part.
///
/// # Errors
/// They differ, or the connection failed.
pub(super) fn ask(channel: Channel, terms: &Terms) -> Result<(Agreed, Facts), JoinError> {
    let Channel { reader, writer, end, look, address } = channel;
    let (mut reader, mut writer) = (FrameReader::new(reader), FrameWriter::new(writer));
    let facts = within(FIRST, &end, || {
        writer.send(Kind::Hello, |to| terms.write(to))?;
        let (kind, content) = reader.next()?;
        Ok(answered(kind, content))
    })??;
    let batch_tokens = terms.limits.batch_tokens.min(facts.batch_tokens);
    let limits = Limits { batch_tokens, ..terms.limits };
    reader.allow(limits.message_bytes());
    Ok((Agreed { reader, writer, end, look, address, limits, head: terms.head }, facts))
}

fn answered(kind: Kind, content: &[u8]) -> Result<Facts, JoinError> {
    let mut from = Reading::new(content);
    match kind {
        Kind::Welcome => Ok(Facts::read(from)?),
        Kind::Refused => {
            let (what, first, stage) = (from.text()?, from.text()?, from.text()?);
            from.end()?;
            Err(JoinError::Differs { what, first, stage })
        }
        _ => Err(JoinError::Protocol("a first message of another kind")),
    }
}

/// The stage's part: tells the first process why, where it is refused.
///
/// # Errors
/// They differ, or the connection failed.
pub(super) fn welcome(channel: Channel, terms: &Terms, facts: &Facts) -> Result<Agreed, JoinError> {
    let Channel { reader, writer, end, look, address } = channel;
    let (mut reader, mut writer) = (FrameReader::new(reader), FrameWriter::new(writer));
    let limits = within(FIRST, &end, || {
        let (kind, content) = reader.next()?;
        let greeted = match kind {
            Kind::Hello => Terms::read(Reading::new(content)),
            _ => Err(JoinError::Protocol("a first message of another kind")),
        };
        let agreed = greeted.and_then(|(first, page)| {
            terms.check(&first, page)?;
            let batch_tokens = first.limits.batch_tokens.min(facts.batch_tokens);
            Ok(Limits { batch_tokens, ..first.limits })
        });
        match &agreed {
            Ok(_) => writer.send(Kind::Welcome, |to| facts.write(to))?,
            Err(JoinError::Differs { what, first, stage }) => {
                writer.send(Kind::Refused, |to| {
                    [what, first, stage].into_iter().for_each(|text| to.text(text));
                })?;
            }
            Err(_) => {}
        }
        Ok(agreed)
    })??;
    reader.allow(limits.message_bytes());
    Ok(Agreed { reader, writer, end, look, address, limits, head: terms.head })
}
