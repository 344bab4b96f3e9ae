//! Buckets of S3-compatible object stores, and images in them.
//!
//! | files | subject |
//! | --- | --- |
//! | `config`, `client`, `error` | a bucket, requests to it, and why they fail |
//! | `parts`, `reads`, `at_once` | writing large objects, reading pieces of them, several requests at the same time |
//! | `images/` | images in a bucket: taken there, listed, brought back, removed |
//!
//! `fermata-app` keeps its level 5 in a bucket, too, in a format of its own (`levels/object` there).
#![forbid(unsafe_code)]

mod at_once;
mod client;
mod config;
mod error;
mod images;
mod parts;
mod reads;

pub use at_once::at_once;
pub use client::Client;
pub use config::{DEADLINE, ObjectConfig, Secret};
pub use error::{Cause, ObjectError, Result};
pub use images::{Address, Listed, Pushed, Shelf};
pub use parts::{LARGE, put_parts, put_pieces};
pub use reads::{Place, reads};
