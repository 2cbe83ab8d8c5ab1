//! Where flashmoe keeps what it remembers between runs: the XDG places of state and of what can be made again.

use std::path::PathBuf;

use store::io::platform::HOME;

/// `$XDG_STATE_HOME/flashmoe`, else `.local/state/flashmoe` in the user's folder; `None` without a home.
pub(crate) fn folder() -> Option<PathBuf> {
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute(HOME)?.join(".local/state")));
    Some(state?.join("flashmoe"))
}

/// `$XDG_CACHE_HOME/flashmoe`, else `.cache/flashmoe` in the user's folder; `None` without a home.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute(HOME)?.join(".cache")));
    Some(cache?.join("flashmoe"))
}

/// A folder that a variable names; a relative one counts as none, as the XDG rules have it.
fn absolute(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
