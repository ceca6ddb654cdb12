#![doc = include_str!("../README.md")]

mod quantity;

pub use quantity::{ParseQuantityError, Quantity, QuantityFormat};
