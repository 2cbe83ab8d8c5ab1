//! Tiers of a simulated device over a real store: bytes, leases and names hold whatever moves meanwhile.

mod drafts;
mod property;
mod recorded;
mod simulation;
mod world;
