//! A worker whose stages but the first are processes of their own: this test program, started again for the same test,
//! which then serves a stage and nothing else.

use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use engine::engine::Engine;
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::stages::Stage;
use engine::stages::remote::{Channel, Ended, Facts, Joined, Limits, Reached, Terms};
use engine::weights::Catalog;
use server::work::EngineWorker;
use store::format::Checkpoint;
use wire::{Connection, Listener, connect};

use super::{Setting, demo, device, opened};

/// Names the layers of a stage to the process that serves it.
const LAYERS: &str = "FLASHMOE_TEST_STAGE";
/// What a stage says before its address.
const LISTENS: &str = "stage listens at ";
const PATIENCE: Duration = Duration::from_secs(10);

/// A worker and the processes of its stages.
pub(crate) struct Apart {
    pub(crate) worker: EngineWorker,
    stages: Vec<Child>,
}

impl Apart {
    /// A worker over the demo model, cut as the setting says. `test` is the name of the test that starts it; `None` in
    /// a process that is a stage of it, once that has served.
    pub(crate) fn start(test: &str, setting: &Setting) -> Option<Self> {
        if let Ok(layers) = std::env::var(LAYERS) {
            let (first, end) = layers.split_once(':').unwrap();
            serve(first.parse().unwrap()..end.parse().unwrap(), setting);
            return None;
        }
        let (checkpoint, config, model) = declared();
        let layers = config.layers.len();
        let ends = setting.cuts.iter().copied().skip(1).chain([layers]);
        let ranges = setting.cuts.iter().copied().zip(ends).map(|(start, end)| start..end);
        let (mut stages, mut others) = (Vec::new(), Vec::new());
        for range in ranges {
            let (child, address) = started(test, &range);
            stages.push(child);
            let connection = connect(&address, None, PATIENCE).unwrap();
            let terms = terms(&config, range, setting);
            others.push(Reached::over(channel(connection), &terms, PATIENCE).unwrap());
        }
        // The head is the first process's.
        let here = |layers: Range<usize>| Stage {
            backend: device(&checkpoint, &config, layers.clone(), setting, false),
            layers,
        };
        let (first, head) = (here(0..setting.cuts[0]), here(layers..layers));
        let engine = Engine::over_hosts(config, model, first, others, Some(head), setting.chunk);
        let worker = super::start(engine.unwrap(), setting);
        Some(Self { worker, stages })
    }

    /// Ends the worker, and checks that its stages end in order.
    pub(crate) fn end(mut self) {
        self.worker.stop();
        for stage in &mut self.stages {
            assert!(stage.wait().unwrap().success(), "a stage was not ended in order");
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        for stage in &mut self.stages {
            _ = stage.kill();
            _ = stage.wait();
        }
    }
}

fn declared() -> (Arc<Checkpoint>, ModelConfig, Model) {
    let (checkpoint, config) = opened(&demo());
    let model = Model::declare(&config, &mut Catalog::new(&checkpoint)).unwrap();
    (Arc::new(checkpoint), config, model)
}

/// Starts the process of a stage, and waits for its address.
fn started(test: &str, layers: &Range<usize>) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(LAYERS, format!("{}:{}", layers.start, layers.end))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = lines.map_while(Result::ok);
    let address = said.find_map(|line| Some(line.split_once(LISTENS)?.1.to_owned()));
    // It goes on to write, to a pipe that has to be read.
    std::thread::spawn(move || said.for_each(drop));
    (child, address.expect("a stage that was not started"))
}

/// Serves a stage until its first process ends.
#[allow(clippy::print_stdout, reason = "its address, for the test that started it")]
fn serve(layers: Range<usize>, setting: &Setting) {
    let (checkpoint, config, model) = declared();
    let backend = device(&checkpoint, &config, layers.clone(), setting, true);
    let listener = Listener::bind("127.0.0.1:0", None).unwrap();
    println!("{LISTENS}{}", listener.address().unwrap());
    let (stream, from) = listener.accept().unwrap();
    let connection = listener.secure(stream, from).unwrap();
    let (own, facts) =
        (terms(&config, layers.clone(), setting), Facts::of(&*backend, setting.chunk));
    let joined = Joined::over(channel(connection), &own, &facts, PATIENCE).unwrap();
    let ended = joined.serve(Stage { layers, backend }, &model).unwrap();
    assert_eq!(ended, Ended::InOrder);
}

fn channel(connection: Connection) -> Channel {
    let Connection { reader, writer, end, look, address } = connection;
    Channel { reader, writer, end, look: Arc::new(move |time| look.set(time)), address }
}

fn terms(config: &ModelConfig, layers: Range<usize>, setting: &Setting) -> Terms {
    Terms {
        build: "test".to_owned(),
        contents: 1,
        device: "paced".to_owned(),
        arithmetic: "int16".to_owned(),
        model_layers: config.layers.len(),
        layers,
        head: false,
        limits: Limits {
            sequences: setting.sequences,
            context: setting.context,
            batch_tokens: setting.chunk,
            round_tokens: 1,
            width: config.streams() * config.hidden,
            vocabulary: config.vocabulary,
        },
    }
}
