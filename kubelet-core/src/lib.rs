#![doc = include_str!("../README.md")]

pub mod env;
mod objects;

pub use objects::{
    DirectoryObjects, Freshness, MapObjects, Object, ObjectError, ObjectFileFault, ObjectKey,
    ObjectKind, ObjectQuery, ObjectSource, ObjectWatch, Watched,
};
