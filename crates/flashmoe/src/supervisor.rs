//! What a supervisor such as systemd is told: ready, how far, stopping, alive (sd_notify(3), over a datagram socket).
//!
//! Where `NOTIFY_SOCKET` names no socket, nothing is said. A message that does not arrive is no failure: the supervisor
//! may have gone. Windows has no such supervisor.

use std::sync::Arc;
use std::time::Duration;

use server::registry::Models;

/// Whom to tell.
#[derive(Clone, Debug)]
pub(crate) struct Supervisor(Option<Arc<system::Socket>>);

#[cfg(unix)]
mod system {
    use std::ffi::OsStr;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    /// A socket, and the supervisor's.
    #[derive(Debug)]
    pub(super) struct Socket(UnixDatagram, SocketAddr);

    impl Socket {
        pub(super) fn of_environment() -> Option<Self> {
            let address = address(&std::env::var_os("NOTIFY_SOCKET")?)?;
            Some(Self(UnixDatagram::unbound().ok()?, address))
        }

        pub(super) fn tell(&self, message: &str) {
            let _gone = self.0.send_to_addr(message.as_bytes(), &self.1);
        }
    }

    /// A path, or on Linux a name outside of the file system, written with `@`.
    fn address(path: &OsStr) -> Option<SocketAddr> {
        #[cfg(target_os = "linux")]
        if let Some(name) = path.as_encoded_bytes().strip_prefix(b"@") {
            use std::os::linux::net::SocketAddrExt;
            return SocketAddr::from_abstract_name(name).ok();
        }
        SocketAddr::from_pathname(path).ok()
    }
}

#[cfg(windows)]
mod system {
    /// There is none.
    #[derive(Debug)]
    pub(super) enum Socket {}

    impl Socket {
        pub(super) fn of_environment() -> Option<Self> {
            None
        }

        pub(super) fn tell(&self, _message: &str) {
            match *self {}
        }
    }
}

impl Supervisor {
    /// The one that the environment names.
    pub(crate) fn of_environment() -> Self {
        Self(system::Socket::of_environment().map(Arc::new))
    }

    fn tell(&self, message: &str) {
        if let Some(socket) = &self.0 {
            socket.tell(message);
        }
    }

    /// Requests can be answered.
    pub(crate) fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    /// The end has begun.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=finishing what runs");
    }

    /// Tells from a thread how far loading is and then, as often as the supervisor asks (`WATCHDOG_USEC`), that the
    /// server is alive, for as long as the engine's thread gave a sign of life within `silence`.
    pub(crate) fn watch(&self, models: Arc<Models>, silence: Duration) -> std::io::Result<()> {
        if self.0.is_none() {
            return Ok(());
        }
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let asked = number("WATCHDOG_USEC").filter(|_| own).map(Duration::from_micros);
        let every = asked.map_or(Duration::from_secs(5), |asked| asked / 2);
        let every = every.clamp(Duration::from_millis(10), Duration::from_secs(5));
        let supervisor = self.clone();
        let tell = move || loop {
            match models.starting() {
                // Loading takes what it takes: the supervisor's patience is renewed.
                Some(percent) => {
                    supervisor.tell(&format!(
                        "STATUS=loading the model: {percent} %\nEXTEND_TIMEOUT_USEC=60000000\nWATCHDOG=1"
                    ));
                }
                None if models.silence() <= silence => {
                    let all: Vec<_> = models.workers().iter().map(|it| it.status()).collect();
                    supervisor.tell(&format!(
                        "WATCHDOG=1\nSTATUS=serving: {} running, {} waiting",
                        all.iter().map(|status| status.running.len()).sum::<usize>(),
                        all.iter().map(|status| status.queued).sum::<usize>()
                    ));
                }
                None => supervisor.tell("STATUS=the engine's thread gives no sign of life"),
            }
            std::thread::sleep(every);
        };
        std::thread::Builder::new().name("supervisor".to_owned()).spawn(tell).map(|_| ())
    }
}
