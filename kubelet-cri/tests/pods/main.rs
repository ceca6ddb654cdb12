//! A whole kubelet on real containerds.

mod life;
mod node;
mod restart;
mod security;
