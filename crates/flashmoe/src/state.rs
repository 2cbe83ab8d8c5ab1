//! Where flashmoe keeps what it remembers between runs: the XDG place of state files.

use std::path::PathBuf;

use store::io::platform::HOME;

/// `$XDG_STATE_HOME/flashmoe`, else `.local/state/flashmoe` in the user's folder; `None` without a home.
pub(crate) fn folder() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute(HOME)?.join(".local/state")));
    Some(state?.join("flashmoe"))
}
