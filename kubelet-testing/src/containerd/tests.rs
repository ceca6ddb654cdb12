//! Tests on both lines of releases. They need root, and what `scripts/test` installs.

mod leave;
mod pod;
mod pull;
mod run;
