//! A server over a worker of the engine, on a free port of loopback. The test file has `support` and `engine_support`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;
use server::work::{EngineWorker, Loading, Worker};
use server::{ServeOptions, Server, Stopper};

use crate::engine_support::{Setting, worker};
use crate::support::{Response, exchange, request};

/// Ends with the test.
pub(crate) struct Served {
    address: SocketAddr,
    stopper: Stopper,
    pub(crate) worker: Arc<EngineWorker>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub(crate) fn start(options: ServeOptions) -> Self {
        Self::start_with(options, &Setting::default())
    }

    pub(crate) fn start_with(options: ServeOptions, setting: &Setting) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(ServeOptions { address, ..options }).unwrap();
        let (address, stopper) = (server.address().unwrap(), server.stopper());
        let worker = Arc::new(worker(setting));
        let loading = Arc::new(Loading::finished(Arc::clone(&worker) as Arc<dyn Worker>));
        let thread = std::thread::spawn(move || server.run(loading).unwrap());
        Self { address, stopper, worker, thread: Some(thread) }
    }

    pub(crate) fn send(&self, path: &str, headers: &[&str], body: &str) -> Response {
        exchange(self.address, request("POST", path, headers, body).as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send(path, &["Content-Type: application/json"], &body.to_string())
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        exchange(self.address, request("GET", path, &[], "").as_bytes())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap();
        self.worker.stop();
    }
}
