//! Buckets of S3-compatible object stores, and images in them.
//!
//! | files | subject |
//! | --- | --- |
//! | `config`, `client`, `error` | a bucket, requests to it, and why they fail |
//! | `parts` | writing large objects |
//! | `images/` | images in a bucket: taken there, listed, brought back, removed |
//!
//! `fermata-app` keeps its level 5 in a bucket, too, in a format of its own (`levels/object` there).
#![forbid(unsafe_code)]

mod client;
mod config;
mod error;
mod images;
mod parts;

pub use client::{Client, REQUESTS};
pub use config::{DEADLINE, ObjectConfig, Secret};
pub use error::{Cause, ObjectError, Result};
pub use images::{Address, Listed, Pushed, Shelf};
pub use parts::{LARGE, put_parts};
